package scheduler

// hits counts the tokens of a step's chunks, and those that the sequences which begin with it found in the prefix cache. Those of requests that are computed again are
// counted apart: they find what they left behind, which says nothing about the cache.
type hits struct {
	input, hit                       int // tokens that are computed, and that were found
	reprocessedInput, reprocessedHit int // of these, of requests that had been admitted before
}

// add counts tokens of one sequence.
func (h *hits) add(input, hit int, again bool) {
	h.input, h.hit = h.input+input, h.hit+hit
	if again {
		h.reprocessedInput, h.reprocessedHit = h.reprocessedInput+input, h.reprocessedHit+hit
	}
}

// effective gives the tokens found and all tokens, without those of requests that are computed again.
func (h hits) effective() (hit, total int) {
	hit = h.hit - h.reprocessedHit
	return hit, hit + h.input - h.reprocessedInput
}

// rate is the share of tokens found, 0 when nothing was looked for.
func (h hits) rate() float64 {
	hit, total := h.effective()
	return ratio(hit, total)
}

func ratio(hit, total int) float64 {
	if total == 0 {
		return 0
	}
	return float64(hit) / float64(total)
}

// hitWindow is the share of tokens found over the last while. Invariant: hit and total are the sums over samples.
type hitWindow struct {
	nanos      int64 // length of the window
	samples    []hitSample
	hit, total int
}

// defaultHitWindow is the length of the window where the configuration gives none.
const defaultHitWindow = 15_000_000_000

// hitSample is what one prefill batch found.
type hitSample struct {
	at         int64 // nanoseconds
	hit, total int   // total > 0
}

// add counts a sample at a time, drops those that are as old as the window is long, and gives the share.
func (w *hitWindow) add(at int64, hit, total int) float64 {
	if total > 0 {
		w.samples = append(w.samples, hitSample{at, hit, total})
		w.hit, w.total = w.hit+hit, w.total+total
	}
	old := 0
	for ; old < len(w.samples) && w.samples[old].at <= at-w.nanos; old++ {
		w.hit, w.total = w.hit-w.samples[old].hit, w.total-w.samples[old].total
	}
	w.samples = append(w.samples[:0], w.samples[old:]...)
	return w.rate()
}

// rate is the share at the last add.
func (w *hitWindow) rate() float64 { return ratio(w.hit, w.total) }

// reset forgets every sample.
func (w *hitWindow) reset() { w.samples, w.hit, w.total = w.samples[:0], 0, 0 }
