// Package engine is the engine of Sluice. It holds no code, only this order in which to read its packages: the path of
// one request, then what goes with it.
//
//  1. request: a sequence as plain data, from the API process to a rank and back.
//  2. server: the API process: HTTP in and out, and the life of a replica.
//  3. tokenizer: text to tokens, chat templates, tokens to text.
//  4. node: how the API processes of a replica's pods start and end together.
//  5. dp: the DP controller, which makes several replicas of the model look like one rank.
//  6. rank: a rank as a process of its own or inside a test, and the client that speaks to it.
//  7. scheduler: which sequences a step computes, and what becomes of each.
//  8. kvcache: the pages of KV memory and who holds them.
//  9. runner: a step on the device, from tokens to the next tokens.
//  10. model: the layers of an architecture and the files of its weights.
//  11. parallel: the ranks of one copy of the model, and what they say to each other.
//  12. sampling: logits to the next token.
//  13. grammar: schemas and expressions to the tokens that may come next.
//  14. disagg: KV pages from a prefill rank to a decode rank.
//  15. ledger: the stages of a request and the only clock.
//  16. metrics: the table of families, the store of a process, the exposition of a replica.
//  17. trace: the spans of a request, from the ledger, and their export.
//  18. loads: the wire types of /v1/loads, which router and operator read too.
//  19. profile: pprof profiles of a process while it serves.
//
// What may import what is in hack/layers.
package engine
