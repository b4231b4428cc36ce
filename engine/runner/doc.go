// Package runner executes scheduled steps: it owns the model on its device, the KV pages of all layers, and sampling. It
// checks every row before anything is written. It knows no request queue, page owner or peer: which page belongs to whom
// is the scheduler's.
//
// engine/rank makes a Runner, engine/scheduler calls Execute, engine/disagg moves pages through Pages.
//
// A row's result depends on the row's sequence alone: it is bit-identical whatever else is in the step, however the
// prompt was cut into chunks, whatever the page size and the number of threads.
package runner
