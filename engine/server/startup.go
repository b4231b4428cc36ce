package server

import (
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/rank"
)

// The steps of the API process's start; see metrics' startup_latency_breakdown_seconds_max.
const (
	stepTokenizer = "load_tokenizer"
	stepNodes     = "gather_nodes" // several nodes: until all are there
	stepRanks     = "start_ranks"  // until all ranks of the replica serve
	stepAttach    = "attach"       // until requests are taken
)

// stopwatch times the steps of the start, one after another.
type stopwatch struct {
	clock  ledger.Clock
	events Events
	begun  ledger.Instant
}

func (s *Server) newStopwatch() *stopwatch {
	return &stopwatch{clock: s.clock, events: s.events, begun: s.clock.Now()}
}

// step ends a step, which the next follows, and tells its time.
func (w *stopwatch) step(name string) (nanos int64) {
	now := w.clock.Now()
	nanos = now.Sub(w.begun)
	w.begun = now
	w.events.StartupStep(name, nanos)
	return nanos
}

// tellStartup tells how long the phases of the start took: the tokenizer's here, the others at the slowest rank.
func (s *Server) tellStartup(tokenizerNanos int64, ranks rank.Startup) {
	for _, phase := range []struct {
		name  string
		nanos int64
	}{
		{"tokenizer_e2e", tokenizerNanos},
		{"load_weight", ranks.LoadWeightNanos},
		{"kv_cache_allocation", ranks.KVCacheNanos},
		{"scheduler_e2e", ranks.TotalNanos},
	} {
		s.events.StartupTime(phase.name, phase.nanos)
		if phase.name != "tokenizer_e2e" { // which is a step already
			s.events.StartupStep(phase.name, phase.nanos)
		}
	}
}
