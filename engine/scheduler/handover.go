package scheduler

import (
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// pollTransfers agrees on the state of every open transfer and moves its sequence on, and frees held pages whose transfer
// is settled.
//
//	prefill  bootstrapping: Ready → waiting            inflight: Done → finished
//	decode   preallocating: see preallocate            transferring: Done → waiting
//	both     Failed → finished
func (s *Scheduler) pollTransfers() error {
	if err := s.agree(); err != nil {
		return err
	}
	s.settleHeld()
	if s.cfg.Role == Unified {
		return nil
	}
	for _, q := range s.all() {
		if q.hand == nil {
			s.pollFake(q)
			continue
		}
		switch q.hand.agreed {
		case disagg.Failed:
			// Decode no longer needs the peer once the KV is here, and then the state is Done, not Failed.
			s.failTransfer(q)
		case disagg.Done:
			switch q.state {
			case stateInflight:
				s.finishInflight(q)
			case stateTransferring:
				s.arrive(q)
			}
		default:
			s.meet(q)
		}
	}
	return nil
}

// meet moves a request on whose peers have met.
func (s *Scheduler) meet(q *sequence) {
	if q.hand.agreed == disagg.Bootstrapping {
		return
	}
	switch q.state {
	case stateBootstrapping:
		s.meetPeer(q)
		s.becomeWaiting(q)
	case statePreallocating:
		if q.timeline.Visits(ledger.StageDecodeBootstrapHandshake) == 0 {
			s.lap(q, ledger.StageDecodeBootstrapHandshake)
		}
	}
}

// pollFake moves a health check on, which has no peer: it passes through the queues of its role and is computed here.
func (s *Scheduler) pollFake(q *sequence) {
	switch q.state {
	case stateBootstrapping:
		s.becomeWaiting(q)
	case statePreallocating:
		s.becomeTransferring(q)
		s.becomeWaiting(q)
	}
}

// failTransfer ends a request that the other engine has ended, or whose peers did not meet, or whose KV did not come over.
func (s *Scheduler) failTransfer(q *sequence) {
	f := q.hand.failed
	outcome := request.OutcomeTransferFailed
	switch {
	case f.outcome != "":
		outcome = f.outcome
	case f.bootstrap:
		outcome = request.OutcomeBootstrapFailed
	}
	s.finish(q, aborted(outcome, fmt.Sprint(f.err)))
}

// finishInflight ends a request on a prefill rank: the decode rank has everything.
func (s *Scheduler) finishInflight(q *sequence) {
	s.auditTransfer(q)
	went := s.finish(q, request.Finish{Type: request.FinishLength, Outcome: request.OutcomeLength}).Transfer
	if went == nil {
		return
	}
	waits := q.sending.Stats()
	t := report.KVTransfer{
		TotalBytes: went.OwnBytes, LatencyNanos: went.Nanos, BootstrapNanos: waits.BootstrapNanos, AllocNanos: waits.AllocNanos,
	}
	s.steps.lastTransfer = t
	if q.req.LogMetrics {
		s.deps.Reporter.KVTransfer(t)
	}
}

// preallocate gives pages to requests of a decode rank whose peer is there, first come first served. While a retracted
// one waits for memory nobody gets any.
func (s *Scheduler) preallocate() {
	if len(s.in[statePreallocating]) == 0 || len(s.in[stateRetracted]) > 0 {
		return
	}
	places := s.cfg.MaxRunning + min(s.cfg.MaxRunning, extraPlaces) - len(s.in[stateTransferring]) -
		len(s.in[stateWaiting]) - len(s.in[stateRunning]) - len(s.in[statePrefilling])
	free, kv, unclaimed := s.roomTokens(), s.kvTokens(), s.unclaimed()
	for _, q := range slices.Clone(s.in[statePreallocating]) {
		if q.hand == nil || q.hand.agreed != disagg.WaitingPages {
			continue
		}
		tokens := s.pagesFor(q, q.prompt) * s.cfg.PageSize
		alone := free == s.pool.Stats().Capacity
		if places < 1 || s.claim(q) > unclaimed || tokens > free || tokens+s.growth(q) > kv && !alone {
			return
		}
		places, free, kv, unclaimed = places-1, free-tokens, kv-tokens-s.growth(q), unclaimed-s.claim(q)
		s.allocate(q, q.prompt)
		s.cover(q, s.firstSeen(q.prompt)*s.cfg.PageSize, q.prompt)
		if s.checking() {
			s.checkReceived(q)
		}
		q.receiving.Allocate(q.pages, q.window)
		s.becomeTransferring(q)
		if q.req.LogMetrics {
			bootstrap := q.timeline.Duration(ledger.StageDecodeBootstrapHandshake)
			s.deps.Reporter.KVTransfer(report.KVTransfer{
				BootstrapNanos: bootstrap,
				AllocNanos:     q.timeline.Duration(ledger.StageDecodeBootstrap) - bootstrap,
			})
		}
	}
}

// checkReceived panics when a peer would write a page of q that a step in flight writes too, for a sequence that has ended.
func (s *Scheduler) checkReceived(q *sequence) {
	for _, st := range s.flight.steps {
		for _, row := range st.rows {
			at := row.Start / s.cfg.PageSize
			if slices.Contains(q.pages, row.Pages[at]) || s.windowed() && slices.Contains(q.window, row.Window[at]) {
				panic(fmt.Sprintf("scheduler: request %s is to receive its KV in a page that step %d writes", q.req.RID, st.number))
			}
		}
	}
}

// extraPlaces bounds the requests of a decode rank that receive KV beyond those that may run, so that the next ones are
// there when a place becomes free.
const extraPlaces = 32

// arrive takes the first token that came with the KV.
func (s *Scheduler) arrive(q *sequence) {
	first, ok := q.receiving.First()
	if !ok {
		panic(fmt.Sprintf("scheduler: request %s has its KV, but no first token", q.req.RID))
	}
	s.auditTransfer(q)
	q.first = first
	q.seed = first.Seed
	q.tokens = append(q.tokens, first.Token)
	s.digest.note(notedToken, uint64(q.arrival), uint64(uint32(first.Token)))
	q.logprobs.takeFirst(first)
	q.computed, q.launched = q.prompt, q.prompt
	q.book.received += q.book.extend(q.prompt, q.prompt)
	s.becomeWaiting(q)
}

// joinTransferred lets sequences whose KV has arrived run, as far as there are places. Their first token may be their
// last.
func (s *Scheduler) joinTransferred() {
	if s.cfg.Role != Decode {
		return
	}
	for _, q := range slices.Clone(s.in[stateWaiting]) {
		if q.computed == 0 {
			continue
		}
		if len(s.in[stateRunning])+len(s.in[statePrefilling]) >= s.cfg.MaxRunning {
			return
		}
		s.becomeRunning(q)
		s.tracePrebuilt(q)
		s.lap(q, ledger.StageFakeOutput)
		s.accept(q)
	}
}
