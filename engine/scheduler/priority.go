package scheduler

import (
	"cmp"
	"math"
	"slices"
)

// Priorities says what a request's priority does. The zero value ignores priorities.
type Priorities struct {
	// Enabled orders the queue by priority, lets a more urgent request push the least urgent one out of a full queue and
	// preempt running ones.
	Enabled bool
	// LowFirst makes lower values more urgent; else higher values are.
	LowFirst bool
	// Default is the priority of requests that bring none; nil: they are less urgent than any other.
	Default *int
	// Threshold is what a waiting request's priority must exceed a running one's by to preempt it, at least 0.
	Threshold int
	// NoPreemption lets running requests run.
	NoPreemption bool
	// RefuseWhenDisabled refuses requests that bring a priority while Enabled is false.
	RefuseWhenDisabled bool
}

// preempts reports whether waiting requests may take the places of running ones.
func (p Priorities) preempts() bool { return p.Enabled && !p.NoPreemption }

// urgency orders requests: the higher is served first, whatever the sign of the configuration. All requests are equal
// while priorities are not enabled.
type urgency int64

// leastUrgent is a request without priority where there is no default.
const leastUrgent urgency = math.MinInt64

// resolve gives the priority that a request counts under, nil when it has none.
func (p Priorities) resolve(given *int) *int {
	switch {
	case !p.Enabled:
		return nil
	case given != nil:
		return given
	default:
		return p.Default
	}
}

// urgency gives the urgency of a request with the priority given.
func (p Priorities) urgency(given *int) urgency {
	if !p.Enabled {
		return 0
	}
	v := p.resolve(given)
	if v == nil {
		return leastUrgent
	}
	u := urgency(*v)
	if p.LowFirst {
		u = -1 - u // the negative could overflow
	}
	return max(u, leastUrgent+1)
}

// exceeds reports whether a is more urgent than b by more than threshold. Differences may be larger than an int64.
func (a urgency) exceeds(b urgency, threshold int) bool {
	return a > b && uint64(a)-uint64(b) > uint64(threshold)
}

// runner is what preemption and retraction look at: a sequence that holds pages.
type runner struct {
	urgency   urgency
	arrival   int64 // of the request
	prompt    int   // tokens
	generated int   // tokens
	tokens    int   // pool tokens that become free when it gives way, its probable growth included
	window    int   // pages of the window pool that it claims
}

// shortage is what a waiting request lacks; negative values are what it has to spare.
type shortage struct {
	places int // in the batch
	tokens int // in the pool, the request's probable growth included
	window int // pages of the window pool
}

func (s shortage) met() bool { return s.places <= 0 && s.tokens <= 0 && s.window <= 0 }

// preempted gives the indexes of the running sequences that give way to a request of an urgency: the least urgent, of
// those the last to enter the queue, until nothing lacks. It is empty when even all that may be preempted would not do.
func preempted(running []runner, u urgency, threshold int, lack shortage) []int {
	var weak []int
	for i, r := range running {
		if u.exceeds(r.urgency, threshold) {
			weak = append(weak, i)
		}
	}
	slices.SortFunc(weak, func(a, b int) int {
		return cmp.Or(cmp.Compare(running[a].urgency, running[b].urgency), cmp.Compare(running[b].arrival, running[a].arrival))
	})
	for n, i := range weak {
		lack.places--
		lack.tokens -= running[i].tokens
		lack.window -= running[i].window
		if lack.met() {
			return weak[:n+1]
		}
	}
	return nil
}

// queued is what decides who is pushed out of a full queue.
type queued struct {
	urgency urgency
	arrival int64 // of the request
	begun   bool  // part of its answer exists, so it can't be refused any more
}

// pushedOut gives the index of the request of a full queue that makes way for a newcomer: the least urgent, of those the
// youngest. It is -1 when none is less urgent than the newcomer, and then the newcomer is refused.
func pushedOut(queue []queued, newcomer urgency) int {
	out := -1
	for i, q := range queue {
		if q.begun || q.urgency >= newcomer {
			continue
		}
		if out < 0 || q.urgency < queue[out].urgency || q.urgency == queue[out].urgency && q.arrival > queue[out].arrival {
			out = i
		}
	}
	return out
}
