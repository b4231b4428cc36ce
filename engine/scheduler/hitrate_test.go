package scheduler

import "testing"

func TestHits(t *testing.T) {
	var h hits
	if h.rate() != 0 {
		t.Errorf("without an admission the rate is %g", h.rate())
	}
	h.add(60, 20, false)
	h.add(0, 20, false)
	h.add(5, 95, true)
	if h != (hits{input: 65, hit: 135, reprocessedInput: 5, reprocessedHit: 95}) || h.rate() != 0.4 {
		t.Errorf("hits are %+v, their rate %g, want 0.4: 40 of 100, what is computed again apart", h, h.rate())
	}
}

func TestHitWindow(t *testing.T) {
	w := hitWindow{nanos: 15}
	for _, step := range []struct {
		at, hit, total int
		want           float64
		reason         string
	}{
		{0, 20, 100, 0.2, "one sample"}, {10, 80, 100, 0.5, "their sum"}, {15, 90, 100, 0.85, "a sample as old as the window is gone"},
		{16, 0, 0, 0.85, "nothing looked for is no sample"}, {40, 0, 10, 0, "the others are gone"}, {60, 0, 0, 0, "empty"},
	} {
		if got := w.add(int64(step.at), step.hit, step.total); got != step.want || got != w.rate() {
			t.Errorf("at %d: %s: the rate is %g, want %g", step.at, step.reason, got, step.want)
		}
	}
	w.add(70, 1, 1)
	if w.reset(); w.rate() != 0 {
		t.Errorf("after a reset the rate is %g", w.rate())
	}
}
