// Package server is the API process of a replica: it speaks the OpenAI and SGLang HTTP APIs, turns text into tokens and
// back, and hands sequences to the rank.
//
// It owns the routes, the bodies and errors of the wire, the life of a replica (Serve: start, serve, drain, death of the
// rank) and, on a prefill engine, the listener of the bootstrap server. It must not know how a batch is made, where KV
// lies or what a tensor is; its only view of the rank is the interface Rank. cmd/engine calls it.
//
// One client request:
//
//	routes.go       the table: route, methods, key
//	middleware.go   the body, within its limit
//	account.go      what the request holds, from its arrival until it is answered; outcomes.go the books that it is in
//	object.go       JSON fields, each with an error that names it
//	completions.go, chat.go, generate.go   the three bodies; prompt.go and sampling.go what they share
//	sequence.go     one sequence at the rank: its timeline, its outputs, its end
//	times.go        what the timeline says, for meta_info and the log
//	stoptext.go     tokens into text that may be given away
//	job.go          the sequences of one request together
//	sse.go          a stream's events
package server
