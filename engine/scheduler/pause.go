package scheduler

import (
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// pause stops computing until resume: nothing is launched, new requests queue, and no time-out runs. The mode says what
// becomes of the requests that live.
//
//	abort     all of them end
//	retract   those that hold pages for computing give them back and wait; they don't count as retracted for memory
//	in_place  all stay where they are, with their KV
//
// The steps in flight are over when it returns. KV that is on its way from or to a peer arrives or leaves all the same.
// Pausing again applies the new mode.
func (s *Scheduler) pause(mode request.PauseMode) error {
	switch mode {
	case request.PauseAbort, request.PauseRetract, request.PauseInPlace:
	default:
		return fmt.Errorf("pause mode is %q: use %s, %s or %s", mode, request.PauseAbort, request.PauseRetract, request.PauseInPlace)
	}
	if err := s.settle(); err != nil {
		return err // the loop meets it too
	}
	switch mode {
	case request.PauseAbort:
		for _, q := range s.all() {
			s.finish(q, aborted(request.OutcomeAbortedOperator, pauseMessage))
		}
	case request.PauseRetract:
		s.retractAll()
	case request.PauseInPlace:
	}
	if !s.paused {
		s.deps.Log.Info("paused", "mode", string(mode), "live", len(s.live))
	}
	s.paused = true
	s.watch.pause(int64(s.deps.Clock.Now()))
	s.steps.throughput = 0
	s.said = reported{running: -1} // so that the pause is reported
	return nil
}

// pauseMessage is for the clients of requests that a pause ended.
const pauseMessage = "the engine paused and ended its requests: try again later"

// resume ends a pause.
func (s *Scheduler) resume() error {
	if s.paused {
		s.deps.Log.Info("continued", "live", len(s.live))
	}
	s.paused = false
	nanos := s.watch.resume(int64(s.deps.Clock.Now()))
	s.steps.lastDecode += ledger.Instant(nanos) // the next throughput is not that of the pause
	return nil
}

// retractAll takes the pages of everything that runs or computes its prompt. What has begun to leave for a decode rank
// stays: its pages are being read.
func (s *Scheduler) retractAll() {
	for _, st := range []state{stateRunning, statePrefilling} {
		for _, q := range slices.Clone(s.in[st]) {
			if q.sent == 0 {
				s.retract(q)
			}
		}
	}
}

// pausedInPlace counts the sequences that would be computed if the engine were not paused.
func (s *Scheduler) pausedInPlace() int {
	if !s.paused {
		return 0
	}
	return s.running()
}
