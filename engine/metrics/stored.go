package metrics

import (
	"math"
	"sync/atomic"
	"unsafe"
)

// addFloat adds v to the float in w.
func addFloat(w *atomic.Uint64, v float64) {
	for {
		old := w.Load()
		if w.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

// storedCounter, storedGauge and storedHistogram are the values of a series where they lie: in mapped memory, or in that of
// a series that waits for room.
type storedCounter atomic.Uint64

func (c *storedCounter) Add(v float64) {
	if v > 0 {
		addFloat((*atomic.Uint64)(c), v)
	}
}

type storedGauge struct{ value, wall atomic.Uint64 }

func (g *storedGauge) Set(v float64, wallNanos int64) {
	g.value.Store(math.Float64bits(v))
	g.wall.Store(uint64(wallNanos))
}

func (g *storedGauge) Add(v float64, wallNanos int64) {
	addFloat(&g.value, v)
	g.wall.Store(uint64(wallNanos))
}

type storedHistogram struct {
	bounds []float64
	sum    *atomic.Uint64
	counts []atomic.Uint64
}

func (h *storedHistogram) Observe(v float64) { h.observe(v, v, 1) }

func (h *storedHistogram) ObserveWeighted(total float64, weight uint64) {
	if weight > 0 {
		h.observe(total/float64(weight), total, weight)
	}
}

// histogramAt gives the histogram whose values are at words: its sum, its bounds, its counts.
func histogramAt(words unsafe.Pointer, bounds []float64) storedHistogram {
	return storedHistogram{
		bounds: bounds, sum: (*atomic.Uint64)(words),
		counts: unsafe.Slice((*atomic.Uint64)(unsafe.Add(words, 8+8*len(bounds))), len(bounds)+1),
	}
}

// observe adds the total to the sum and the weight to the bucket of v, which is the first whose bound is not below v.
func (h *storedHistogram) observe(v, total float64, weight uint64) {
	if math.IsNaN(v) {
		return
	}
	lo, hi := 0, len(h.bounds)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if h.bounds[mid] < v {
			lo = mid + 1
			continue
		}
		hi = mid
	}
	h.counts[lo].Add(weight)
	addFloat(h.sum, total)
}
