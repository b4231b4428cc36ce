package ledger

import (
	"sync"
	"testing"
	"time"
)

func TestSystemClockNeverGoesBack(t *testing.T) {
	c := System()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := c.Now()
			for range 10000 {
				now := c.Now()
				if now < last {
					t.Errorf("%d after %d", now, last)
					return
				}
				last = now
			}
		})
	}
	wg.Wait()
}

func TestSystemClockFollowsTheWall(t *testing.T) {
	c := System().(*systemClock)
	// The wall clock was stepped by an hour since the last calibration, which is now old.
	c.offset.Add(int64(time.Hour))
	c.calibrated.Store(int64(c.Now()) - calibrationNanos)
	before := time.Now().UnixNano()
	wall := c.Wall(c.Now())
	after := time.Now().UnixNano()
	// Wall and monotonic clocks are read at different moments in here, and the wall may be slewed a little.
	if slack := int64(time.Minute); wall < before-slack || wall > after+slack {
		t.Errorf("wall time %d is not in [%d, %d]", wall, before, after)
	}

	// A fresh calibration is kept: the offset isn't taken again for every span.
	offset := c.offset.Load()
	c.calibrated.Store(int64(c.Now()))
	c.offset.Store(offset + 1)
	if got := c.Wall(0); got != offset+1 {
		t.Errorf("wall of instant 0 is %d, not the kept offset %d", got, offset+1)
	}
}
