package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/request"
)

// Run schedules until ctx ends or the executor fails, and finishes every request before it returns: nil when ctx ended.
// It may be called once. It is the only goroutine that touches the scheduler's state; the messages that it acts on are
// listed in inbox.go. It works while there is a batch to compute and else sleeps until a message or a transfer wakes it.
func (s *Scheduler) Run(ctx context.Context) error {
	idle := time.NewTimer(idleReportAge)
	defer idle.Stop()
	for ctx.Err() == nil {
		worked, err := s.step(ctx)
		if err != nil && ctx.Err() == nil {
			s.endAll(request.OutcomeInternal, "the engine failed: "+err.Error())
			return err
		}
		if worked {
			continue
		}
		idle.Reset(idleReportAge)
		select {
		case <-s.inbox.wake:
		case <-idle.C:
		case <-ctx.Done():
		}
	}
	s.endAll(request.OutcomeAbortedOperator, "the engine is shutting down")
	return nil
}

// step is one turn of the loop; worked is false when there was nothing to compute, and then only a message or a transfer
// can change that.
func (s *Scheduler) step(ctx context.Context) (worked bool, err error) {
	// 1. Drain the inbox: receive or refuse requests, abort what messages name.
	s.drain()
	// 2. Poll transfers: queues of prefill and decode roles move on, settled pages come back. Transfers expire by themselves.
	s.pollTransfers()
	// 3. Pick a prefill batch, or a decode batch.
	b := s.pick()
	worked = b.kind != noBatch
	// 4. Check memory: pages for the tokens of a decode batch, retracting when there are too few.
	b = s.makeRoom(b)
	if b.kind != noBatch {
		s.deliver(s.deps.Clock.Now())
	}
	// 5. Forward.
	r, err := s.forward(ctx, b)
	if err != nil {
		return false, fmt.Errorf("compute %s batch of %d: %w", b.kind, len(b.items), err)
	}
	// 6. Process the results: tokens, finishes, hand-overs.
	s.process(b, r)
	// 7. Report.
	if b.kind != noBatch || !worked {
		s.report(b, r)
	}
	s.deliver(s.deps.Clock.Now())

	if kvcache.Invariants || s.checked {
		if err := s.check(); err != nil {
			panic(err)
		}
	}
	return worked, nil
}

func (s *Scheduler) drain() {
	for _, m := range s.inbox.drain() {
		switch m := m.(type) {
		case submitMsg:
			s.receive(m)
		case abortMsg:
			s.abort(m)
		case flushMsg:
			if len(s.live) > 0 || len(s.held) > 0 {
				m.reply <- ErrBusy
				continue
			}
			m.reply <- nil
		case controlMsg:
			m.reply <- s.control(m)
		}
	}
}

// control does what a controlMsg asks for.
func (s *Scheduler) control(m controlMsg) error {
	switch m.kind {
	case controlPause:
		return s.pause(m.mode)
	case controlContinue:
		return s.resume()
	case controlOpenSession:
		return s.openSession(m.session)
	case controlCloseSession:
		return s.closeSession(m.session.ID)
	default:
		panic(fmt.Sprintf("scheduler: a control message of kind %d", m.kind))
	}
}

// pick decides what the step computes. Prefill comes first, so that a batch fills up before it decodes, but no two prefill
// batches follow each other while sequences run: a long prompt, or many, must not hold up the answers under way.
func (s *Scheduler) pick() batch {
	s.joinTransferred()
	s.preallocate()
	if s.steps.prefilled {
		s.steps.prefilled = false
		if b := s.pickDecode(); b.kind != noBatch {
			return b
		}
	}
	b := s.pickPrefill()
	if b.kind == noBatch {
		b = s.pickDecode()
	}
	s.steps.prefilled = b.kind == prefillBatch
	return b
}

// check verifies the invariants of all sequences, lists and the pool.
func (s *Scheduler) check() error {
	n := 0
	var tables [][]int32
	for st, l := range s.in {
		for i, q := range l {
			if q.state != state(st) {
				return fmt.Errorf("scheduler: request %s is %s, but in the list of %s", q.req.RID, q.state, state(st))
			}
			if i > 0 && l[i-1].arrival >= q.arrival {
				return fmt.Errorf("scheduler: list of %s is not in order of arrival at %d", state(st), i)
			}
			if s.live[q.req.RID] != q {
				return fmt.Errorf("scheduler: request %s is %s, but not live", q.req.RID, q.state)
			}
			if err := q.check(s.cfg.PageSize); err != nil {
				return fmt.Errorf("scheduler: %w", err)
			}
			tables = append(tables, q.pages)
			n++
		}
	}
	if n != len(s.live) {
		return fmt.Errorf("scheduler: %d requests live, but %d are in lists", len(s.live), n)
	}
	heldPages := 0
	for _, h := range s.held {
		heldPages += len(h.pages)
	}
	if st := s.pool.Stats(); st.Reserved != heldPages*s.cfg.PageSize {
		return fmt.Errorf("scheduler: pool has %d tokens reserved, but %d pages are held", st.Reserved, heldPages)
	}
	return s.pool.Check(tables...)
}
