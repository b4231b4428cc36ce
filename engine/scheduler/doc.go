// Package scheduler decides, step by step, which sequences run on a device and which pages they hold. One goroutine owns
// all state (loop.go); others send messages. It moves token and page ids, never tensors, and never sees HTTP.
// engine/rank builds and runs it, engine/runner implements Executor.
package scheduler
