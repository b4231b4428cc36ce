package scheduler

import (
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// Timeouts bounds how long a request may wait and run; 0: no bound.
type Timeouts struct {
	WaitingNanos int64 // in the waiting queue, each time that it enters it
	RunningNanos int64 // from its first forward on, retractions included
}

// timed is what a time-out looks at: a live sequence. Times are nanoseconds of the scheduler's unpaused time: they stand
// still while generation is paused.
type timed struct {
	waiting bool  // in the waiting queue
	since   int64 // when it entered the queue
	forward int64 // of its first forward, valid when began
	began   bool
}

// timeoutKind says which bound a request exceeded.
type timeoutKind uint8

const (
	noTimeout timeoutKind = iota
	waitedTooLong
	ranTooLong
)

// due gives the time at which a sequence exceeds a bound, and which; noTimeout when none applies.
func (t Timeouts) due(x timed) (at int64, kind timeoutKind) {
	if t.WaitingNanos > 0 && x.waiting {
		at, kind = x.since+t.WaitingNanos, waitedTooLong
	}
	if t.RunningNanos > 0 && x.began {
		if end := x.forward + t.RunningNanos; kind == noTimeout || end < at {
			at, kind = end, ranTooLong
		}
	}
	return at, kind
}

// exceeded says which bound a sequence has exceeded at the time now, noTimeout when none.
func (t Timeouts) exceeded(x timed, now int64) timeoutKind {
	at, kind := t.due(x)
	if kind == noTimeout || now < at {
		return noTimeout
	}
	return kind
}

// stopwatch is the time that passes while generation is not paused. The zero value runs from 0 on.
type stopwatch struct {
	paused bool
	at     int64 // of the clock, when it was paused
	lost   int64 // nanoseconds of all pauses that have ended
}

// read gives the unpaused time at the clock's time now.
func (w stopwatch) read(now int64) int64 {
	if w.paused {
		now = w.at
	}
	return now - w.lost
}

// pause stops the watch. Pausing twice changes nothing.
func (w *stopwatch) pause(now int64) {
	if !w.paused {
		w.paused, w.at = true, now
	}
}

// resume lets it go on where it stopped, and gives the nanoseconds of the pause.
func (w *stopwatch) resume(now int64) (nanos int64) {
	if !w.paused {
		return 0
	}
	w.paused = false
	w.lost += now - w.at
	return now - w.at
}

// expired gives the aborts of the requests that have exceeded a bound, in the order of their lists, and the time until
// the next one will; ok is false when none will. Only the rank that leads asks: clocks of ranks differ.
func (s *Scheduler) expired(now ledger.Instant) (aborts []message, next int64, ok bool) {
	if s.cfg.Timeouts == (Timeouts{}) || s.paused {
		return nil, 0, false
	}
	unpaused := s.watch.read(int64(now))
	for st, l := range s.in {
		for _, q := range l {
			if !q.began {
				if at, began := q.timeline.ForwardEntry(); began {
					q.began, q.forward = true, s.watch.read(int64(at))
				}
			}
			at, kind := s.cfg.Timeouts.due(timed{
				waiting: (state(st) == stateWaiting || state(st) == stateRetracted), since: q.since, forward: q.forward, began: q.began,
			})
			switch {
			case kind == noTimeout:
			case unpaused >= at:
				aborts = append(aborts, abortMsg{rid: q.req.RID, reason: request.OutcomeTimeout})
			case !ok || at-unpaused < next:
				next, ok = at-unpaused, true
			}
		}
	}
	return aborts, next, ok
}

// sleep is how long nothing will happen when no message comes and no transfer moves.
func (s *Scheduler) sleep() time.Duration {
	now := s.deps.Clock.Now()
	patience := idleReportAge
	for _, next := range []func(ledger.Instant) ([]message, int64, bool){s.expired, s.expiredSessions} {
		switch due, nanos, ok := next(now); {
		case len(due) > 0:
			return 0
		case ok:
			patience = min(patience, time.Duration(nanos))
		}
	}
	return patience
}
