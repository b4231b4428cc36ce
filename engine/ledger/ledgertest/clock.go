package ledgertest

import (
	"sync/atomic"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// Clock is a ledger.Clock that stands still until it is advanced. It is safe for concurrent use.
type Clock struct {
	now    atomic.Int64
	offset atomic.Int64
	step   atomic.Int64
	reads  atomic.Int64
}

var _ ledger.Clock = (*Clock)(nil)

// New gives a clock at instant 0 whose wall time is 1,700,000,000 seconds after the Unix epoch.
func New() *Clock {
	c := &Clock{}
	c.offset.Store(1_700_000_000 * int64(time.Second))
	return c
}

// Now gives the instant, and then goes on by the step that SetStep gave.
func (c *Clock) Now() ledger.Instant {
	c.reads.Add(1)
	step := c.step.Load()
	return ledger.Instant(c.now.Add(step) - step)
}

// Wall gives the Unix nanoseconds of an instant.
func (c *Clock) Wall(i ledger.Instant) int64 { return int64(i) + c.offset.Load() }

// Advance moves the clock on by d, which may be negative to play a faulty clock.
func (c *Clock) Advance(d time.Duration) { c.now.Add(int64(d)) }

// SetStep lets each reading move the clock on by d.
func (c *Clock) SetStep(d time.Duration) { c.step.Store(int64(d)) }

// StepWall steps the wall clock by d and leaves the monotonic one alone.
func (c *Clock) StepWall(d time.Duration) { c.offset.Add(int64(d)) }

// Reads counts the calls of Now.
func (c *Clock) Reads() int64 { return c.reads.Load() }
