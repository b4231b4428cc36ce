// Package trace makes the spans of requests, from the ledger's times, and sends them to a collector over OTLP.
//
// It owns names, attributes, parents and links of spans, levels and modules, what of a trace crosses a process, and the
// export. It must not know queues, batches, HTTP or metrics, and it reads no clock for a request: every time in a span is one
// that a Timeline has read. It alone imports go.opentelemetry.io. Callers: engine/server opens one Process for the API
// process and makes roots; engine/dp and engine/rank follow the requests that reach them.
//
// # A tree
//
//	root                     one per sequence, from arrival to the end; made and ended by the API process alone
//	├─ thread                one per process that the request passes through
//	│  ├─ slice              one per stage, in order, without gaps where all stages have the level
//	│  │  └─ slice           laps of the stage: chunks, decode steps
//	│  └─ slice ──link──►    to the slice before, also when another process made that one
//	└─ thread …
//
// # Cost
//
// Nothing is made for a request that is not traced: its Root and its Threads are nil, and every method of a nil one returns
// at once. A span is a plain value until it leaves the goroutine of its request, by an append under a lock; all else is done
// by the goroutine of the export. When the queue is full spans are dropped and counted. No request ever waits for a
// collector.
package trace
