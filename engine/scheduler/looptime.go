package scheduler

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// loopTimeAge is how often the loop tells what it did.
const loopTimeAge = time.Second

// loopTime accounts for the wall time of the loop, which is in exactly one stage at any moment. To enter a stage ends the one
// before; a stage within another, such as a report within results, is entered and left for the one around it.
//
// Invariant (E6): told + spent.WallNanos() = at - began, in whole nanoseconds.
type loopTime struct {
	clock ledger.Clock
	cpu   func() int64 // of the process since its start; nil: not known

	stage  report.LoopStage
	at     ledger.Instant // since when
	active bool           // the device computed then
	began  ledger.Instant

	spent   report.LoopTime // since the last call of the reporter
	told    int64           // nanoseconds of stages before that
	flushed ledger.Instant
	cpuTold int64

	idle      bool           // the last step was idle
	idleSince ledger.Instant // and what follows until this is not counted yet

	computing atomic.Int32 // steps that are launched and that the executor has not ended; it writes it too
}

// start begins the account.
func (l *loopTime) start(clock ledger.Clock, cpu func() int64) {
	now := clock.Now()
	l.clock, l.cpu = clock, cpu
	l.began, l.at, l.flushed = now, now, now
	if cpu != nil {
		l.cpuTold = cpu()
	}
}

// enter goes on to a stage and gives the instant, the one that ends the stage before.
func (l *loopTime) enter(to report.LoopStage) ledger.Instant {
	now, active := l.clock.Now(), l.computing.Load() > 0
	overlap := report.OverlapNone
	switch {
	case l.active && active:
		overlap = report.OverlapFull
	case l.active || active:
		overlap = report.OverlapPartial
	}
	l.spent.StageNanos[l.stage][overlap] += now.Sub(l.at)
	l.stage, l.at, l.active = to, now, active
	return now
}

// turn ends a step; idle says that there is no request and nothing to compute. Idle time is what passes between two idle
// turns, or from one until there is something to do.
func (l *loopTime) turn(idle bool) {
	l.spent.Iterations++
	if l.idle && idle {
		l.spent.IdleNanos += l.at.Sub(l.idleSince)
	}
	l.idle, l.idleSince = idle, l.at
}

// wake follows the receipt of something to do.
func (l *loopTime) wake() {
	if l.idle {
		l.spent.IdleNanos += l.at.Sub(l.idleSince)
		l.idle = false
	}
}

// flush gives what was spent since the last time and begins anew; ok is false when that is not long ago.
func (l *loopTime) flush(atOnce bool) (t report.LoopTime, ok bool) {
	if !atOnce && l.at.Sub(l.flushed) < int64(loopTimeAge) {
		return report.LoopTime{}, false
	}
	if l.cpu != nil {
		now := l.cpu()
		l.spent.CPUNanos, l.cpuTold = max(now-l.cpuTold, 0), max(now, l.cpuTold)
	}
	t = l.spent
	l.told += t.WallNanos()
	l.flushed, l.spent = l.at, report.LoopTime{}
	return t, true
}

// check verifies E6.
func (l *loopTime) check() error {
	spent := l.spent.WallNanos()
	if wall := l.at.Sub(l.began); l.told+spent != wall {
		return fmt.Errorf("scheduler stages of %d ns and %d ns since make %d ns, but the loop has run for %d ns", l.told, spent, l.told+spent, wall)
	}
	return nil
}

// tellLoopTime tells what the loop did, when that is due or at once.
func (s *Scheduler) tellLoopTime(atOnce bool) {
	t, ok := s.time.flush(atOnce)
	if !ok {
		return
	}
	if err := s.time.check(); err != nil {
		s.violate(ledger.LawSchedulerTime, err)
	}
	s.deps.Reporter.LoopTime(t)
}
