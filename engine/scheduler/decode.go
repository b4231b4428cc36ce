package scheduler

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// pickDecode takes every running sequence.
func (s *Scheduler) pickDecode() batch {
	running := s.in[stateRunning]
	if len(running) == 0 {
		return batch{}
	}
	items := s.scratch.items[:0]
	for _, q := range running {
		items = append(items, item{seq: q, n: 1})
	}
	s.scratch.items = items
	return batch{kind: decodeBatch, items: items}
}

// makeRoom gives every sequence of a decode batch the page that its token needs. When there are too few, sequences are
// retracted until the rest fits; what remains is the batch.
func (s *Scheduler) makeRoom(b batch) batch {
	if b.kind != decodeBatch {
		return b
	}
	retracted, input, output := 0, 0, 0
	retract := func() {
		q := s.victim()
		retracted, input, output = retracted+1, input+q.prompt, output+q.generated()
		s.retract(q)
	}
	for s.pagesNeeded()*s.cfg.PageSize > s.pool.Stats().Allocatable() {
		retract()
	}
	s.steps.decodePicks++
	if n := s.cfg.TestRetractSteps; n > 0 && s.steps.decodePicks%n == 0 && retracted == 0 {
		retract()
	}
	if retracted > 0 {
		s.reserve.raise(s.in[stateRunning])
		s.steps.retractedReqs = retracted
		s.deps.Reporter.Retracted(retracted, input, output)
		s.deps.Log.Info("retracted running requests for memory", "requests", retracted, "input_tokens", input,
			"output_tokens", output, "running", len(s.in[stateRunning]))
	} else {
		s.reserve.decay()
	}
	for _, q := range s.in[stateRunning] {
		var ok bool
		if q.pages, ok = s.pool.Alloc(q.pages, s.pool.Pages(len(q.tokens))-len(q.pages)); !ok {
			panic(fmt.Sprintf("scheduler: request %s has no page for token %d after the memory check", q.req.RID, len(q.tokens)))
		}
		if q.timeline.Stage() == ledger.StageDecodeWaiting {
			s.enter(q, ledger.StageDecodeForward)
		}
	}
	if retracted > 0 {
		return s.pickDecode()
	}
	return b
}

// pagesNeeded counts the pages that running sequences need for their next token and do not have.
func (s *Scheduler) pagesNeeded() int {
	n := 0
	for _, q := range s.in[stateRunning] {
		n += s.pool.Pages(len(q.tokens)) - len(q.pages)
	}
	return n
}

// victim is the running sequence to retract: the one with the shortest answer, which loses the least; of those the one
// with the longest prompt, which frees the most; of those the youngest.
func (s *Scheduler) victim() *sequence {
	var v *sequence
	for _, q := range s.in[stateRunning] {
		if v == nil || q.generated() < v.generated() || q.generated() == v.generated() && q.prompt >= v.prompt {
			v = q
		}
	}
	return v
}

// retract takes a running sequence's pages. It is recomputed later from its tokens, so its answer goes on as if nothing
// had happened.
func (s *Scheduler) retract(q *sequence) {
	s.releasePages(q)
	q.computed = 0
	s.becomeRetracted(q)
}
