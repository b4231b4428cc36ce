package metrics

import "sync"

// refCountedGauge counts the keys that are in use: each key once, however often it is held. It is safe for concurrent use.
//
// Invariants: held[k] >= 1; the series is len(held).
type refCountedGauge struct {
	series GaugeSeries
	mu     sync.Mutex
	held   map[string]int
}

func newRefCountedGauge(series GaugeSeries, wallNanos int64) *refCountedGauge {
	series.Set(0, wallNanos)
	return &refCountedGauge{series: series, held: map[string]int{}}
}

// inc holds a key once more.
func (g *refCountedGauge) inc(key string, wallNanos int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held[key]++
	if g.held[key] == 1 {
		g.series.Add(1, wallNanos)
	}
}

// dec lets go of a key once; one that nobody holds changes nothing.
func (g *refCountedGauge) dec(key string, wallNanos int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.held[key] {
	case 0:
	case 1:
		delete(g.held, key)
		g.series.Add(-1, wallNanos)
	default:
		g.held[key]--
	}
}
