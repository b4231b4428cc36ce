// Package grammar turns a JSON schema or a regular expression into masks over a vocabulary: after every token it tells
// which tokens may come next so that the text can still become one that the schema or the expression admits.
//
// The way of a Spec:
//
//  1. Compiler.Compile looks it up; the first to ask builds it, off the hot path, within limits of size and work.
//  2. regex.go reads expressions; schema.go, merge.go and types.go read schemas; json.go, number.go and class.go write what
//     they mean into a builder as nodes over bytes, with rules that call each other where a schema refers to itself.
//  3. nfa.go trims what can't end and removes the steps that consume nothing: what remains is a push-down automaton in
//     which every reachable configuration can be finished.
//  4. automaton.go runs it as sets of configurations, each set once, its successors kept as they are found.
//  5. mask.go walks the vocabulary as a trie through the automaton. What a token does below the rule that the text is
//     in is the same wherever the rule was called from, so that part is kept per place; only tokens that leave the rule
//     are looked at per set.
//  6. Matcher is one text's place in it.
//
// What a schema means here is in Spec. A mask, and each error, is a function of Spec, Config and Vocabulary alone: two
// processes that run the same tokens get the same ones, whatever each has kept.
//
// The package knows text as bytes and tokens as numbers with bytes. It must not know tokenizers, models, requests or
// schedulers. engine/rank makes the Compiler and lends it to the scheduler.
package grammar
