package ledger

import (
	"sync/atomic"
	"time"
)

// Instant is a reading of one process's monotonic clock, in nanoseconds. Instants of two processes, or of two clocks,
// are not comparable; send Clock.Wall of them instead.
type Instant int64

// Sub gives the nanoseconds from u to i.
func (i Instant) Sub(u Instant) int64 { return int64(i) - int64(u) }

// Clock tells the time of a request.
type Clock interface {
	// Now reads the monotonic clock. Later readings are never smaller.
	Now() Instant
	// Wall gives the Unix nanoseconds of an instant, by the offset between the two clocks as it is now.
	Wall(Instant) int64
}

// calibrationNanos is the age at which the wall offset is taken again, so that a stepped or slewed wall clock is
// followed.
const calibrationNanos = int64(time.Second)

// System gives the clock of the operating system. Its instants start near 0 at the call.
func System() Clock {
	c := &systemClock{base: time.Now()}
	c.calibrate()
	return c
}

// systemClock measures from base, whose monotonic part is the origin of its instants.
type systemClock struct {
	base       time.Time
	offset     atomic.Int64 // wall = monotonic + offset
	calibrated atomic.Int64 // monotonic nanoseconds at which offset was taken
}

func (c *systemClock) Now() Instant { return Instant(time.Since(c.base)) }

func (c *systemClock) Wall(i Instant) int64 {
	if int64(c.Now())-c.calibrated.Load() >= calibrationNanos {
		c.calibrate()
	}
	return int64(i) + c.offset.Load()
}

// calibrate takes the offset from one reading, which holds both clocks.
func (c *systemClock) calibrate() {
	now := time.Now()
	mono := int64(now.Sub(c.base))
	c.offset.Store(now.UnixNano() - mono)
	c.calibrated.Store(mono)
}
