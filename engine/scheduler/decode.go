package scheduler

import (
	"slices"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// pickDecode takes the next token of every sequence that has one to compute: of running ones, and, with overlap, of those
// whose prompt ends with a step in flight. With pipeline stages it takes a fair part of those that are not in flight.
func (s *Scheduler) pickDecode() batch {
	items := s.scratch.items[:0]
	for _, st := range []state{stateRunning, statePrefilling} {
		for _, q := range s.in[st] {
			switch s.nextToken(q) {
			case tokenReady:
				items = append(items, item{seq: q, n: 1, decode: true})
			case tokenAwaited:
				return batch{}
			case tokenNone:
			}
		}
	}
	if s.cfg.Stages > 1 {
		items = s.microBatch(items)
	}
	s.scratch.items = items
	if len(items) == 0 {
		return batch{}
	}
	return batch{kind: decodeBatch, items: items}
}

// readiness is whether a sequence's next token can be computed.
type readiness uint8

const (
	tokenReady   readiness = iota // yes, if its last token is a future one by Row.Future
	tokenNone                     // there is none, or not before results that come by themselves
	tokenAwaited                  // not before results in flight, and others shall wait for it, else they would lose each other
)

// nextToken says whether q's next decode step can be launched.
func (s *Scheduler) nextToken(q *sequence) readiness {
	switch {
	case q.masking != nil:
		return tokenNone // what may follow is not known
	case q.state == statePrefilling && q.future == 0:
		return tokenNone // its prompt is not launched to its end
	case q.future == 0:
		return tokenReady
	case !s.cfg.overlaps() || s.cfg.Role == Prefill:
		return tokenNone
	case q.generated()+q.future >= q.req.Sampling.MaxNewTokens || len(q.tokens)+q.future >= s.limit:
		return tokenNone // it ends with the token that is on its way
	case q.future == 1 && q.step == s.flight.last && s.foresees(q):
		return tokenReady
	case q.state == stateRunning:
		return tokenAwaited
	default:
		return tokenNone
	}
}

// foresees reports whether q's next step can be launched before its newest token is known: a grammar has to know it first.
func (s *Scheduler) foresees(q *sequence) bool { return q.matcher == nil }

// makeRoom gives every sequence of a batch that decodes the page that its token needs. When there are too few, sequences are
// retracted until the rest fits; what remains is the batch. No sequence is retracted while steps are in flight: then the
// batch is empty until their results are taken.
func (s *Scheduler) makeRoom(b batch) (_ batch, retracted int) {
	if !b.kind.decodes() {
		return b, 0
	}
	n := s.cfg.TestRetractSteps
	forced := n > 0 && (s.steps.decodePicks+1)%n == 0
	short := func() bool { return s.pagesNeeded(b)*s.cfg.PageSize > s.roomTokens() }
	if (forced || short()) && len(s.flight.steps) > 0 {
		return batch{}, 0
	}
	s.steps.decodePicks++
	input, output := 0, 0
	for short() && s.yieldSession() {
		continue // it was idle, and loses nothing that it can't compute again
	}
	for short() || forced && retracted == 0 {
		q := s.victim()
		retracted, input, output = retracted+1, input+q.prompt, output+q.generated()
		s.retract(q)
		b = s.without(b, q)
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
	for _, i := range b.items {
		if !i.decode {
			continue
		}
		s.allocate(i.seq, i.seq.launched+i.n)
		if i.seq.timeline.Stage() == ledger.StageDecodeWaiting {
			s.enter(i.seq, ledger.StageDecodeForward)
		}
	}
	return b, retracted
}

// without gives the batch without a sequence that was retracted.
func (s *Scheduler) without(b batch, q *sequence) batch {
	if b.kind == decodeBatch {
		return s.pickDecode()
	}
	b.items = slices.DeleteFunc(b.items, func(i item) bool { return i.seq == q })
	if !slices.ContainsFunc(b.items, func(i item) bool { return i.decode }) {
		b.kind = prefillBatch
	}
	return b
}

// pagesNeeded counts the pages that a batch needs and its sequences do not have.
func (s *Scheduler) pagesNeeded(b batch) int {
	n := 0
	for _, i := range b.items {
		n += s.pagesFor(i.seq, i.seq.launched+i.n)
	}
	return n
}

// victim is the running sequence to retract.
func (s *Scheduler) victim() *sequence {
	return slices.MinFunc(s.in[stateRunning], func(a, b *sequence) int { return s.cfg.Retraction.compare(s.runner(a), s.runner(b)) })
}

// retract takes a running sequence's pages. It is recomputed later from its tokens, so its answer goes on as if nothing
// had happened. No step in flight has it.
func (s *Scheduler) retract(q *sequence) {
	if q.step > s.flight.over {
		panic("scheduler: request " + q.req.RID + " is retracted while a step computes it")
	}
	s.digest.note(notedRetraction, uint64(q.arrival))
	s.releasePages(q)
	q.computed, q.launched = 0, 0
	q.logprobs.again()
	q.retractions++
	s.becomeRetracted(q)
}
