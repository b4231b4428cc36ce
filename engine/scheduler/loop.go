package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// Run schedules until ctx ends or the executor fails, and finishes every request before it returns: nil when ctx ended.
// It may be called once. It is the only goroutine that touches the scheduler's state; the messages that it acts on are
// listed in inbox.go. It works while there is something to compute and else sleeps until a message or a transfer wakes it.
func (s *Scheduler) Run(ctx context.Context) error {
	defer s.compilations.running.Wait() // all are cancelled by the ends of their requests
	stop := s.start(ctx)
	err := s.loop(ctx)
	s.time.enter(report.LoopOther)
	s.tellLoopTime(true)
	stop()
	if err != nil && ctx.Err() == nil {
		s.endAll(request.OutcomeInternal, "the engine failed: "+err.Error())
	} else {
		err = nil
		s.endAll(request.OutcomeAbortedOperator, "the engine is shutting down")
	}
	s.reportIdle(s.deps.Clock.Now()) // what is told of the engine outlives it
	return err
}

func (s *Scheduler) loop(ctx context.Context) error {
	idle := time.NewTimer(idleReportAge)
	defer idle.Stop()
	for {
		worked, over, err := s.step(ctx.Err() != nil)
		if err != nil || over {
			return err
		}
		if worked || !s.leads() { // who follows waits for the leader
			continue
		}
		idle.Reset(s.patience())
		s.time.enter(report.LoopIdle)
		select {
		case <-s.inbox.wake:
		case <-idle.C:
		case <-ctx.Done():
		}
	}
}

// patience is how long an idle leader waits without being woken.
func (s *Scheduler) patience() time.Duration {
	wait := min(s.sleep(), loopTimeAge) // idle seconds are told as others
	if due, ok := s.grammarDue(s.deps.Clock.Now()); ok {
		wait = min(wait, due)
	}
	if s.deps.Peers != nil && len(s.handoffs()) > 0 {
		wait = min(wait, transferPoll) // other ranks' transfers wake other ranks
	}
	return wait
}

// transferPoll is how often an idle leader asks the other ranks for the states of their transfers while there are some.
const transferPoll = 2 * time.Millisecond

// step is one turn of the loop, the last one when stop or over; worked is false when there was nothing to compute, and then
// only a message or a transfer can change that. What it waits for depends on the state alone, so that ranks with the same
// input decide the same.
func (s *Scheduler) step(stop bool) (worked, over bool, err error) {
	// 1. Take the input: messages, and what is decided by the clock.
	if s.leads() || !s.time.idle {
		s.time.enter(report.LoopReceive)
	} else { // who follows waits here for the leader to have something to do
		s.time.enter(report.LoopIdle)
	}
	in, err := s.takeInput(stop)
	if err != nil || in.stop {
		return false, true, err
	}
	// 2. Apply it: receive or refuse requests, abort, pause, continue, flush.
	s.time.enter(report.LoopProcessInput)
	if len(in.messages) > 0 {
		s.time.wake()
	}
	if err := s.apply(in); err != nil {
		return false, false, err
	}
	// 3. Poll transfers: queues of prefill and decode roles move on, held pages come back. Transfers expire by themselves.
	s.time.enter(report.LoopQueue)
	if err := s.pollTransfers(); err != nil {
		return false, false, err
	}
	// 4. Pick a prefill batch, a decode batch, or one of both, among what is not waiting for a result.
	s.time.enter(report.LoopPick)
	b := s.pick()
	// 5. Make room: pages for the tokens of a decode batch, retracting when there are too few.
	b, retracted := s.makeRoom(b)
	now := s.time.enter(report.LoopResult)
	if b.kind != noBatch { // others may have to wait for the step
		s.deliver(now)
	}
	// 6. Launch. The executor computes while the loop goes on.
	s.time.enter(report.LoopRun)
	s.launch(b)
	// 7. Take the oldest result once enough is in flight, or when nothing could be launched: tokens, finishes, hand-overs.
	took := len(s.flight.steps) >= s.cfg.depth() || b.kind == noBatch && len(s.flight.steps) > 0
	if took {
		if err := s.take(); err != nil {
			return false, false, err
		}
	}
	// 8. Report.
	worked = took || retracted > 0 || b.kind != noBatch
	stage := report.LoopResult
	if !worked {
		stage = report.LoopIdle
	}
	now = s.time.enter(stage)
	if !worked {
		s.reportIdle(now)
	}
	s.deliver(now)

	if s.checking() {
		s.time.enter(report.LoopCheck)
		if err := s.check(); err != nil {
			panic(err)
		}
	}
	s.time.enter(report.LoopOther)
	s.time.turn(!worked && len(s.live) == 0)
	s.tellLoopTime(false)
	return worked, false, nil
}

// checking reports whether invariants are verified after each step.
func (s *Scheduler) checking() bool { return kvcache.Invariants || s.checked }

// pick decides what the step computes. Prefill comes first, so that a batch fills up before it decodes, but no two prefill
// batches follow each other while sequences run: a long prompt, or many, must not hold up the answers under way. Where the
// configuration says so both go into one batch.
func (s *Scheduler) pick() batch {
	if s.paused {
		return batch{}
	}
	s.joinTransferred()
	s.preallocate()
	if s.cfg.MixedChunk {
		if b, ok := s.pickMixed(); ok {
			return b
		}
	}
	if s.steps.prefilled {
		if b := s.pickDecode(); b.kind != noBatch {
			return b
		}
	}
	if b, await := s.pickPrefill(decodes{}); await || b.kind != noBatch {
		return b
	}
	return s.pickDecode()
}

// check verifies the invariants of all sequences, lists and the pool.
func (s *Scheduler) check() error {
	n := 0
	var owned kvcache.Owned
	for st, l := range s.in {
		for i, q := range l {
			if q.state != state(st) {
				return fmt.Errorf("scheduler: request %s is %s, but in the list of %s", q.req.RID, q.state, state(st))
			}
			if i > 0 && compareListed(l[i-1], q) >= 0 {
				return fmt.Errorf("scheduler: list of %s is not in order of urgency and arrival at %d", state(st), i)
			}
			if s.live[q.req.RID] != q {
				return fmt.Errorf("scheduler: request %s is %s, but not live", q.req.RID, q.state)
			}
			if err := q.check(s.cfg.PageSize, s.flight.over); err != nil {
				return fmt.Errorf("scheduler: %w", err)
			}
			owned.Pages = append(owned.Pages, q.pages[q.prefix.Pages():])
			owned.Handles = append(owned.Handles, q.prefix)
			window := q.ownWindow()
			if n := q.ownWindowPages(s.cfg.PageSize); n != len(window) {
				return fmt.Errorf("scheduler: request %s, %s, is audited with %d window pages and has %d", q.req.RID, q.state, n, len(window))
			}
			owned.Window = append(owned.Window, window)
			n++
		}
	}
	if n != len(s.live) {
		return fmt.Errorf("scheduler: %d requests live, but %d are in lists", len(s.live), n)
	}
	heldPages, heldWindow := 0, 0
	for _, h := range s.held {
		heldPages += len(h.pages)
		heldWindow += len(h.window)
		owned.Handles = append(owned.Handles, h.prefix)
	}
	if st := s.pool.Stats(); st.Reserved != heldPages*s.cfg.PageSize {
		return fmt.Errorf("scheduler: pool has %d tokens reserved, but %d pages are held", st.Reserved, heldPages)
	}
	for _, q := range s.masking {
		if q.masking == nil || s.live[q.req.RID] != q {
			return fmt.Errorf("scheduler: request %s is listed as one whose mask is made", q.req.RID)
		}
	}
	if err := s.checkSessions(); err != nil {
		return err
	}
	for _, x := range s.sessions {
		owned.Handles = append(owned.Handles, x.held)
	}
	if s.windowed() {
		if st := s.window.Stats(); st.Reserved != heldWindow*s.cfg.PageSize {
			return fmt.Errorf("scheduler: window pool has %d tokens reserved, but %d pages are held", st.Reserved, heldWindow)
		}
		if n := s.unclaimed(); n < 0 {
			return fmt.Errorf("scheduler: sequences claim %d window pages more than there are", -n)
		}
	}
	if s.tree != nil {
		return s.tree.Check(owned)
	}
	if err := s.pool.Check(owned.Pages...); err != nil || !s.windowed() {
		return err
	}
	return s.window.Check(owned.Window...)
}
