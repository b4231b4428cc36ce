package observe

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// frozenAfter is after how many scrapes in a row without progress a rank is frozen: with 15 s between two, after a minute.
// A step, or the computation of a long prompt's chunk, must not take as long.
const frozenAfter = 4

// FrozenRank is a rank that holds work and does none.
type FrozenRank struct {
	Rank RankID
	// Since is when its counters were read first as they are.
	Since time.Time
	// Held says what it holds: "2 running, 1 waiting".
	Held string
}

// frozenWatch follows the counters of a pod's ranks from scrape to scrape.
type frozenWatch struct {
	ranks map[RankID]stand
}

// stand is how long a rank's counters have stood still. still counts the scrapes after the first that read the same.
type stand struct {
	tokens, iterations float64
	since              time.Time
	still              int
}

// see takes a reading. A rank is frozen when over frozenAfter further scrapes
//
//	Δ tokens = 0 and at each of them running + waiting > 0 and nothing is paused, nor waits behind hand-overs, or
//	Δ tokens = 0 and Δ iterations = 0 of every rank, and at each of them the API process holds requests that wait for no peer
//
// The second is a scheduler that took nothing in: its gauges still say what they said when it stopped. Requests of a prefill
// engine wait behind hand-overs when those hold the memory, the loop turns and nothing runs: the decode engine is at fault.
func (w *frozenWatch) see(e Exposition, role v1alpha1.Role, at time.Time) (frozen []FrozenRank) {
	next := make(map[RankID]stand, len(e.Ranks))
	idle := e.InFlight > 0
	for _, r := range e.Ranks {
		idle = idle && r.Handover == 0 && r.Paused == 0
	}
	for id, r := range e.Ranks {
		before, known := w.ranks[id]
		if known && r.Iterations != before.iterations {
			idle = false
		}
	}
	for id, r := range e.Ranks {
		before, known := w.ranks[id]
		behind := role == v1alpha1.RolePrefill && r.Running == 0 && r.Handover > 0 && known && r.Iterations != before.iterations
		works := r.Running+r.Waiting > 0 && r.Paused == 0 && !behind
		s := stand{tokens: r.Tokens, iterations: r.Iterations, since: at}
		if known && r.Tokens == before.tokens && (works || idle) {
			s.since, s.still = before.since, before.still+1
		}
		next[id] = s
	}
	w.ranks = next
	for _, id := range slices.SortedFunc(maps.Keys(next), RankID.compare) {
		if s := next[id]; s.still >= frozenAfter {
			r := e.Ranks[id]
			held := fmt.Sprintf("%.0f running, %.0f waiting", r.Running, r.Waiting)
			if r.Running+r.Waiting == 0 {
				held = fmt.Sprintf("%.0f in its API process", e.InFlight)
			}
			frozen = append(frozen, FrozenRank{id, s.since, held})
		}
	}
	return frozen
}
