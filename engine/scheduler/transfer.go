package scheduler

import (
	"errors"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// Transfer is one request's hand-over, seen from either side. Its methods never block and are called from the
// scheduler's goroutine. While the state isn't terminal the other side may touch the pages; from then on nobody does.
type Transfer interface {
	State() disagg.State
	Err() error // why, once the state is Failed
	// Abort ends the transfer, with a reason that the peer is told; a *disagg.Ended says what the request ended in. The state
	// becomes terminal some time later.
	Abort(reason error)
	Stats() disagg.TransferStats
}

// Sending is the prefill side. After Ready come Send for every page of every layer, in any order, and then Finish.
type Sending interface {
	Transfer
	// Send queues page, the ordinal-th of the sequence, of one layer. Its KV is final. Of sliding-window layers only the pages
	// are sent that the token behind the prompt sees.
	Send(layer, ordinal int, page int32)
	// Finish queues the first token. It comes after all pages.
	Finish(first disagg.First)
}

// Receiving is the decode side. After WaitingPages comes Allocate, once.
type Receiving interface {
	Transfer
	// Allocate gives the pages of the prompt, in order, and those of sliding-window layers, -1 where the token behind the
	// prompt sees none; nil without such layers. The receiver may write them from now on.
	Allocate(pages, window []int32)
	// First is what came with the KV; ok once the state is Done.
	First() (first disagg.First, ok bool)
}

// Sender opens hand-overs on a prefill rank. It calls the scheduler's Wake after a state has changed.
type Sender interface {
	// Open gives an error when the request can't be handed over, and then there is nothing to abort.
	Open(room int64, promptTokens int) (Sending, error)
}

// Receiver opens hand-overs on a decode rank. It calls the scheduler's Wake after a state has changed.
type Receiver interface {
	// Open gives an error when the request can't be handed over, and then there is nothing to abort.
	Open(at request.Bootstrap, promptTokens int) (Receiving, error)
}

// openTransfer opens the hand-over of a request on a prefill or decode rank. A health check has none. That it can't be
// opened is a failure like others: all ranks hear of it when they poll.
func (s *Scheduler) openTransfer(q *sequence) {
	if s.cfg.Role == Unified || q.req.Bootstrap.Fake() {
		return
	}
	q.hand = &handoff{}
	if s.cfg.Role == Prefill {
		t, err := s.deps.Sender.Open(q.req.Bootstrap.Room, q.prompt)
		if q.hand.opening = err; err == nil {
			q.hand.transfer, q.sending = t, t
		}
		return
	}
	t, err := s.deps.Receiver.Open(*q.req.Bootstrap, q.prompt)
	if q.hand.opening = err; err == nil {
		q.hand.transfer, q.receiving = t, t
	}
}

// forgoTransfer tells the other half of a request that ended before its hand-over was opened that there will be none; it would
// wait for it until its time-out.
func (s *Scheduler) forgoTransfer(r *request.Request, f request.Finish) {
	if s.cfg.Role == Unified || r.Bootstrap == nil {
		return
	}
	if q := s.live[r.RID]; q != nil && q.req != r && q.req.Bootstrap != nil && q.req.Bootstrap.Room == r.Bootstrap.Room {
		return // sent twice: the room is the other's
	}
	q := &sequence{req: r, prompt: len(r.PromptIDs)}
	if s.openTransfer(q); q.hand != nil {
		q.hand.abort(f) // it ends by itself: nothing has pages for it
	}
}

// handoff is a sequence's transfer as all ranks of the world see it: each has one for its own part of the KV. What a rank
// decides, it decides by these fields and not by its own transfer's state, which changes at any time.
type handoff struct {
	transfer Transfer     // nil when it could not be opened here
	opening  error        // and why
	agreed   disagg.State // Failed when it is so on any rank, else the earliest of all
	settled  bool         // the state is terminal on every rank, so no peer touches the pages any more
	failed   *failure     // why, when agreed is Failed; of the first rank that said so
	told     bool         // its bytes were reported
}

// own gives the state of this rank's part.
func (h *handoff) own() disagg.State {
	if h.transfer == nil {
		return disagg.Failed
	}
	return h.transfer.State()
}

// failure is why a hand-over failed.
type failure struct {
	err       error
	bootstrap bool            // before the peers had met
	outcome   request.Outcome // what the other engine ended the request with, Common; empty: it did not end it, or did not say
}

// ownFailure says why this rank's part failed.
func (h *handoff) ownFailure() failure {
	if h.transfer == nil {
		return failure{err: h.opening, bootstrap: true}
	}
	f := failure{err: h.transfer.Err()}
	var e *disagg.Error
	if errors.As(f.err, &e) {
		f.bootstrap, f.outcome = e.Bootstrap(), e.Outcome
	}
	return f
}

// look takes this rank's own state for that of all, in a world of one.
func (h *handoff) look() {
	h.agreed = h.own()
	h.settled = h.agreed.Terminal()
	if h.agreed == disagg.Failed && h.failed == nil {
		f := h.ownFailure()
		h.failed = &f
	}
}

// abort ends this rank's part, if it has not ended, because the request has.
func (h *handoff) abort(f request.Finish) {
	if h.transfer != nil {
		h.transfer.Abort(&disagg.Ended{Outcome: f.Outcome, Text: f.String()})
	}
}

// release says why nobody touches the pages of this rank's part any more.
func (h *handoff) release() report.ReleaseOutcome {
	if h.own() != disagg.Failed {
		return report.ReleaseDrained
	}
	var e *disagg.Error
	switch {
	case !errors.As(h.ownFailure().err, &e):
		return report.ReleaseError
	case e.Reason == disagg.ReasonAborted || e.Reason == disagg.ReasonPeerAborted:
		return report.ReleaseDrained
	case e.Reason == disagg.ReasonTimeout:
		return report.ReleaseTimeout
	default:
		return report.ReleaseError
	}
}
