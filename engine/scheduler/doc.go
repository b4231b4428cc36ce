// Package scheduler decides, step by step, which sequences run on a device and which pages they hold. One goroutine owns
// all state; others send messages (inbox.go) and read the published load. It moves token and page ids, never tensors, and
// never sees HTTP. engine/rank builds and runs it, engine/runner implements Executor, engine/metrics listens to its
// reports.
//
// Read loop.go first: the numbered step. Then, along a request's path:
//
//	input.go      what comes from outside: messages, and what the clock decides
//	scheduler.go  receives or refuses
//	state.go      the states and every transition
//	handover.go   queues of prefill and decode roles: bootstrap, prealloc, transfer
//	queue.go      who is considered first (policy.go, priority.go), and who finds no room
//	prefill.go    picks prompts, whole or in chunks, within admission.go's budget; preempt.go takes places for them
//	decode.go     picks what runs, makes room for its tokens, retracts (retraction.go says whom)
//	memory.go     pages: given, given back, held while somebody may touch them
//	batch.go      the decision as a value
//	agree.go      what ranks of a world share and compare: input (encode.go), digest.go, transfer states
//	launch.go     steps in flight: launched, computed by the executor's goroutine, taken in order
//	result.go     tokens, finishes, hand-overs; the only place that ends a request
//	grammar.go    the grammar queue; masks.go: what may follow a new token, when finding out takes long; logprobs.go: logprobs on their way
//	stop.go       when a token ends its request; deadline.go: when time does
//	pause.go      stops and goes on
//	observe.go    reports: count.go, routing.go, occupancy.go; looptime.go: the loop's own time
//	load.go       the load at any moment
//
// No decision depends on map order, wall time or floating point, so ranks that get the same messages decide the same.
package scheduler
