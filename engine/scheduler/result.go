package scheduler

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// process takes the results of a step: sequences have more KV, and those whose last token was computed one more token.
// What came for a sequence that has ended meanwhile is dropped.
func (s *Scheduler) process(st *launched) {
	st.decoded = 0
	for at, i := range st.items {
		q := i.seq
		if q.state == stateFinished {
			if !i.decode {
				s.bookVain(i.n)
			}
			continue
		}
		q.computed += i.n
		q.logprobs.takePrompt(st.sampled[at].Logprobs, q.computed, q.prompt)
		if !i.decode {
			s.bookChunk(q, i.n, i.sample)
			s.store(q)
		}
		s.slide(q)
		if !i.sample {
			s.lapChunk(q)
			continue
		}
		q.future--
		q.tokens = append(q.tokens, st.sampled[at].Token)
		q.logprobs.takeToken(st.sampled[at])
		s.digest.note(notedToken, uint64(q.arrival), uint64(uint32(st.sampled[at].Token)))
		if q.req.LogMetrics {
			s.steps.generatedTokens++
		}
		switch {
		case i.decode:
			st.decoded++
			s.lap(q, ledger.StageDecodeLoop)
			s.accept(q)
		case s.cfg.Role == Prefill:
			s.handOver(q, st.sampled[at])
		default:
			s.accept(q)
		}
	}
	if st.kind.prefills() {
		if counted := countedPrompt(st.items); counted > 0 { // a probe of health each few seconds is no load
			s.steps.prefillNanos += st.ended.Sub(st.started)
			s.steps.prefillTokens += int64(counted)
		}
		s.steps.hitRate = st.found.rate()
		hit, total := st.found.effective()
		s.recentHits.add(st.ended.Sub(s.began), hit, total)
	}
	if st.kind.decodes() {
		s.steps.decodeSteps++
		s.steps.decodedSince += st.decoded
	}
}

// handOver ends the prompt on a prefill rank: the first token follows the pages. A health check has no peer and ends
// here.
func (s *Scheduler) handOver(q *sequence, first Sampled) {
	if q.hand == nil {
		s.finish(q, request.Finish{Type: request.FinishLength, Outcome: request.OutcomeLength})
		return
	}
	handed := disagg.First{Token: first.Token, Logprob: first.Logprob, CachedTokens: q.book.cached, Seed: q.seed}
	handed.Logprobs, handed.Prompt = q.logprobs.handOver()
	q.sending.Finish(handed)
	s.becomeInflight(q)
}

// accept looks at a sequence's newest token: the request ends with it, or the sequence runs on and the sink gets it.
func (s *Scheduler) accept(q *sequence) {
	f, ended := s.ends(q)
	if ended && (q.matcher == nil || f.Type == request.FinishStop) {
		if s.cfg.Role == Unified && q.timeline.Stage() == ledger.StagePrefillForward {
			s.enter(q, ledger.StageDecodeWaiting) // the prompt is computed to its end, and the answer needs no more
		}
		s.finish(q, f)
		return
	}
	if q.state != stateRunning {
		s.becomeRunning(q)
		if q.future > 0 { // its first decode step is under way already
			s.enter(q, ledger.StageDecodeForward)
		}
	}
	s.tell(q, nil)
	switch {
	case q.matcher == nil:
	case ended: // by its length, unless the grammar ends it
		s.advance(q, &f)
	default:
		s.advance(q, nil)
	}
}

// told is a piece of an answer on its way to its sink.
type told struct {
	sink   Sink
	output request.Output
}

// tell gives the sink the tokens that it does not have yet, and the Finish if there is one, at the next deliver.
func (s *Scheduler) tell(q *sequence, f *request.Finish) {
	from, to := q.prompt+q.delivered, len(q.tokens)
	q.delivered = q.generated()
	answer, prompt := q.logprobs.deliver()
	s.told = append(s.told, told{q.sink, request.Output{
		RID:              q.req.RID,
		TokenIDs:         q.tokens[from:to:to],
		Logprobs:         answer,
		PromptLogprobs:   prompt,
		PromptTokens:     q.prompt,
		CachedTokens:     q.book.cached + q.first.CachedTokens,
		CompletionTokens: q.generated(),
		Retractions:      q.retractions,
		Finish:           f,
	}})
}

// deliver publishes the load and then hands over what was told and answered since the last time, so that who sees a Finish finds
// the request gone from Load, its pages free and its metrics counted, and who was answered finds what was asked for.
func (s *Scheduler) deliver(now ledger.Instant) {
	s.publishLoad(now)
	for _, t := range s.told {
		if t.sink != nil { // the leader's alone
			t.sink.Put(t.output)
		}
	}
	clear(s.told)
	s.told = s.told[:0]
	for _, a := range s.answered {
		a.reply <- a.err
	}
	clear(s.answered)
	s.answered = s.answered[:0]
}

// finish ends a request: the only place that does. Its pages go back or are held for the transfer, the sink gets what it
// doesn't have yet and the Finish at the next deliver. It gives the record that the Finish has.
func (s *Scheduler) finish(q *sequence, f request.Finish) *ledger.Record {
	s.observeEnd(q, f.Outcome)
	if q.compilation != nil {
		q.compilation.cancel()
		q.compilation = nil
	}
	s.digest.note(notedEnd, uint64(q.arrival))
	s.digest.text(string(f.Outcome))
	switch {
	case q.hand != nil && !s.settledHand(q.hand):
		q.hand.abort(f)
	case q.state == stateNew || q.state == stateCompiling:
		s.forgoTransfer(q.req, f)
	}
	s.unmask(q)
	s.endTurn(q, f)
	s.releasePages(q)
	q.computed, q.launched, q.future = 0, 0, 0
	s.becomeFinished(q)
	if s.live[q.req.RID] == q {
		delete(s.live, q.req.RID)
	}
	if len(s.live) == 0 {
		s.reserve.reset()
	}

	clock := s.deps.Clock
	s.closeBooks(q, &f)
	if at, ok := q.timeline.ForwardEntry(); ok {
		f.ForwardEntryWallNanos = clock.Wall(at)
	}
	if at, ok := q.timeline.PrefillEnd(); ok {
		f.PrefillEndWallNanos = clock.Wall(at)
	}
	s.tell(q, &f)
	ended, ok := q.timeline.Finished()
	if !ok {
		panic(fmt.Sprintf("scheduler: request %s finished, but its timeline did not", q.req.RID))
	}
	s.traceEnd(q, ended, f)
	return f.Timeline
}

// aborted is a Finish of a request that did not end by itself.
func aborted(outcome request.Outcome, message string) request.Finish {
	return request.Finish{Type: request.FinishAbort, Outcome: outcome, Message: message}
}
