package fleet

import (
	"fmt"
	"time"
)

// patience is how long one request waits for a usable engine: up to busy while pools are awake, counted anew when they wake,
// and up to wake since it came while they are asleep. So it waits for wake + busy at most.
type patience struct {
	busy, wake time.Duration // 0 <= busy <= wake

	came   time.Time
	awake  time.Time // when it was seen that pools are awake, last; came <= awake
	asleep bool      // whether they are asleep, as seen last
	slept  bool      // whether they ever were; asleep → slept
}

func newPatience(busy, wake time.Duration, now time.Time, asleep bool) *patience {
	return &patience{busy: busy, wake: max(busy, wake), came: now, awake: now, asleep: asleep, slept: asleep}
}

// left takes what pools do now and gives the rest of the patience, <= 0 when it is at its end.
func (p *patience) left(now time.Time, asleep bool) time.Duration {
	if p.asleep && !asleep {
		p.awake = now
	}
	p.asleep, p.slept = asleep, p.slept || asleep
	if asleep {
		return p.wake - now.Sub(p.came)
	}
	return p.busy - now.Sub(p.awake)
}

// lost adds to the state of the fleet what the request has waited for, where pools may be asleep: wakes says whether.
func (p *patience) lost(none error, now time.Time, wakes bool) error {
	waited := now.Sub(p.came).Round(time.Second)
	switch {
	case wakes && p.asleep:
		return fmt.Errorf("%w, after a wait of %v for a pool to wake up", none, waited)
	case wakes && p.slept:
		return fmt.Errorf("%w, after a wait of %v in which a pool woke up", none, waited)
	}
	return none
}
