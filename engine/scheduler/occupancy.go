package scheduler

import (
	"math"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// occupancy is the share of the wall time in which the device computes, in windows of so many batches. The first batch of a
// window starts its clock and leaves the value alone; each further one takes the share since then.
type occupancy struct {
	percent float64 // 0 <= percent <= 100, NaN while it is not known
	batches int     // of the window
	began   ledger.Instant
	busy    int64 // nanoseconds since
}

// reset forgets the value and the window: nothing is computed.
func (o *occupancy) reset() { *o = occupancy{percent: math.NaN()} }

// known reports whether there is a value.
func (o *occupancy) known() bool { return !math.IsNaN(o.percent) }

// add counts a batch that has ended and kept the device busy for so long. A window has as many batches as given, but at least
// two, for else it would have no length.
func (o *occupancy) add(ended ledger.Instant, busyNanos int64, window int) {
	if o.batches == 0 {
		o.began, o.busy = ended, 0
	} else {
		o.busy += busyNanos
		if wall := ended.Sub(o.began); wall > 0 {
			o.percent = min(100, 100*float64(o.busy)/float64(wall))
		}
	}
	if o.batches++; o.batches >= max(window, 2) {
		o.batches = 0
	}
}
