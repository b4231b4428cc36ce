package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/trace"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// sequenceSpec is one sequence that a client asked for, checked and in tokens.
type sequenceSpec struct {
	rid        string
	choice     int     // among the answers to the same prompt
	prompt     []int32 // [promptTokens], at least one
	sampling   sampling
	logprobs   *request.WantLogprobs // nil: none
	turn       *request.Turn         // nil: not of a session
	bootstrap  *request.Bootstrap    // nil on a unified engine
	priority   *int
	dpRank     *int
	cacheKey   string
	routingKey string
	streaming  bool
	uncounted  bool                // log_metrics=false: nothing of it reaches the metrics
	unlogged   bool                // no_logs: nothing of it reaches the log
	labels     map[string]string   // the client's custom labels, allowed keys only
	timeline   ledger.Timeline     // in StageTokenize since the request's arrival
	entry      *entry              // in the books; nil: none
	parent     traceparent.Context // the client's span; not Valid: it sent none
}

// sequence is a sequence that the rank is working on. One goroutine owns it. It ends exactly once: with the piece that has
// a finish, with an error of next, or with abandon. After that it is settled once, when it is known what the client gets.
type sequence struct {
	sequenceSpec
	server *Server
	engine *engine
	stream *rank.Stream
	trace  *trace.Root // nil: it is not traced
	recent *recent     // nil: it is not remembered
	text   answerText

	promptTokens, cachedTokens, retractions int
	completionTokens                        int              // of the last piece; baseline of the inter-token latency
	finish                                  *request.Finish  // how it ended at the rank; nil: it lives
	ended                                   bool             // nothing of it is left at the rank, and the rid is free
	settled                                 bool             // it has ended in the books
	said                                    *strings.Builder // the answer for the request log; nil: not wanted
}

// piece is new output of a sequence as the client may see it.
type piece struct {
	text           string                  // new text, without the stop that ended the sequence
	ids            []int32                 // new tokens
	logprobs       []request.TokenLogprobs // of ids, when wanted
	promptLogprobs []request.TokenLogprobs // new ones of the prompt, when wanted
	finish         *request.Finish
}

// submit hands a sequence to the rank. On an error nothing of it is left behind.
func (s *Server) submit(ctx context.Context, e *engine, spec sequenceSpec) (_ *sequence, failed *apiError) {
	q := &sequence{
		sequenceSpec: spec, server: s, engine: e, promptTokens: len(spec.prompt),
		text: answerText{
			detokenizer: e.tokenizer.NewStream(spec.sampling.skipSpecial),
			stops:       spec.sampling.Stop,
			keepStop:    spec.sampling.keepStop,
		},
	}
	if !s.claim(spec.rid) {
		return nil, badField("rid", "%q is in use by a running request: send another or leave it out", spec.rid)
	}
	q.trace = s.traceRoot(&q.sequenceSpec)
	q.recent = s.recent.begin(&q.sequenceSpec)
	defer func() { // also after a panic
		if q.stream == nil {
			why := failed
			if why == nil {
				why = panicked()
			}
			q.finishTime()
			q.publish(why.outcome(), why.message)
			q.traceEnd(why.outcome(), why.message)
			q.end()
		}
	}()
	tokenized := q.timeline.Move(ledger.StageAPIServerDispatch)
	q.trace.Slice(tokenized, ledger.StageAPIServerDispatch)
	q.recent.moved(&q.timeline)
	q.time(funcTokenize, tokenized)
	stream, err := e.rank.Submit(ctx, &request.Request{
		RID: spec.rid, PromptIDs: spec.prompt, Sampling: spec.sampling.Sampling, Grammar: spec.sampling.grammar, Logprobs: spec.logprobs,
		Session: spec.turn, Bootstrap: spec.bootstrap, Priority: spec.priority, DPRank: spec.dpRank, CacheKey: spec.cacheKey,
		RoutingKey: spec.routingKey, LogMetrics: !spec.uncounted, ReceivedWallNanos: s.clock.Wall(q.timeline.Started()),
		Trace: q.trace.Carry(ledger.StageAPIServerDispatch),
	})
	if err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, clientGone()
		case errors.Is(err, rank.ErrTooLarge):
			return nil, failure(http.StatusRequestEntityTooLarge, codeTooLarge, "%v", err)
		}
		return nil, failure(http.StatusBadGateway, codeEngineFailed, "hand request %s to the rank: %v", spec.rid, err)
	}
	if b := spec.bootstrap; s.rooms != nil && b != nil && !b.Fake() {
		s.rooms.Assign(b.Room, stream.DPRank())
	}
	if s.doomed(spec.rid) { // the ranks were told before it was there
		if err := e.rank.Abort(spec.rid, request.OutcomeAbortedOperator); err != nil {
			s.log.Warn("abort a request that was aborted on its way", "rid", spec.rid, "error", err)
		}
	}
	dispatched := q.timeline.Move(ledger.StageAwaitOutput)
	q.trace.Dispatched(dispatched)
	q.time(funcDispatch, dispatched)
	q.stream = stream
	if rank := q.answeringRank(); rank != nil && q.recent != nil {
		q.recent.dpRank.Store(int64(*rank))
	}
	q.recent.moved(&q.timeline)
	if level, on := s.requests.wants(q); on && level >= 2 {
		q.said = &strings.Builder{}
	}
	s.requests.received(q)
	return q, nil
}

// time reports a stage as the time of a function.
func (q *sequence) time(function string, s ledger.Slice) {
	if !q.uncounted {
		q.server.events.FuncLatency(function, s.Nanos())
	}
}

func clientGone() *apiError {
	return failure(statusClientClosed, string(request.OutcomeAbortedClient), "the client closed the connection")
}

// next waits for new output. When ctx ends, which means that the client has gone, the rank is told at once. After an error
// the sequence has ended.
func (q *sequence) next(ctx context.Context) (piece, *apiError) {
	out, err := q.stream.Recv(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		q.abandon(ctx)
		return piece{}, clientGone()
	case err != nil:
		q.end()
		return piece{}, failure(http.StatusBadGateway, codeEngineFailed, "request %s was lost: %v", q.rid, err)
	}
	p := q.take(out)
	if p.finish != nil && p.finish.Type == request.FinishAbort {
		return piece{}, q.outcomeError(*p.finish)
	}
	return p, nil
}

// take books one output of the rank and turns its tokens into text.
func (q *sequence) take(out request.Output) piece {
	p := piece{ids: out.TokenIDs, logprobs: out.Logprobs, promptLogprobs: out.PromptLogprobs, finish: out.Finish}
	if out.Finish == nil || out.Finish.Type != request.FinishAbort {
		p.text = q.text.push(out.TokenIDs, out.Finish)
	}
	if q.said != nil {
		q.said.WriteString(p.text)
	}
	q.book(out)
	return p
}

// book keeps the time and the counts of one output of the rank.
func (q *sequence) book(out request.Output) {
	q.promptTokens, q.cachedTokens, q.retractions = out.PromptTokens, out.CachedTokens, out.Retractions
	aborted := out.Finish != nil && out.Finish.Type == request.FinishAbort
	if !aborted { // an abort is no proof that the rank computes
		q.server.outputs.mark()
		q.keepTime(out.CompletionTokens, out.Finish != nil)
	}
	q.completionTokens = out.CompletionTokens
	q.recent.generated(out.CompletionTokens)
	if out.Finish != nil {
		q.finishTime()
		q.finish = out.Finish
		q.count()
		if q.turn != nil && !aborted {
			q.server.sessions.turned(q.turn.SessionID)
		}
		q.end()
	}
}

// keepTime moves the timeline at an output and reports the two latencies that are known at once. A prefill engine has
// neither: what it sends is not what the client waits for.
func (q *sequence) keepTime(completionTokens int, last bool) {
	observe := !q.uncounted && !q.server.prefillOnly()
	if q.timeline.Stage() == ledger.StageAwaitOutput {
		if last {
			q.timeline.Pass(ledger.StageStreamOutput, ledger.StageDone)
		} else {
			q.timeline.Move(ledger.StageStreamOutput)
		}
		q.recent.moved(&q.timeline)
		if nanos, ok := q.timeline.TimeToFirstToken(); ok && observe {
			q.server.events.FirstToken(q.subject(), nanos)
		}
		return
	}
	if fresh := completionTokens - q.completionTokens; fresh > 0 {
		lap := q.timeline.Lap(ledger.StageOutputBatch)
		if observe {
			q.server.events.InterToken(q.subject(), lap.Nanos(), fresh)
		}
	}
}

// finishTime ends the timeline, unless it has ended.
func (q *sequence) finishTime() {
	if q.timeline.Stage() != ledger.StageDone {
		q.timeline.Move(ledger.StageDone)
	}
}

// count reports the end of the sequence.
func (q *sequence) count() {
	if q.uncounted {
		return
	}
	done := metrics.Finished{PromptTokens: q.promptTokens, CompletionTokens: q.completionTokens, CachedTokens: q.cachedTokens, Structured: q.sampling.grammar != nil}
	done.E2ENanos, _ = q.timeline.EndToEnd()
	if perToken, ok := q.timeline.TimePerOutputToken(q.completionTokens); ok {
		done.TPOTNanos = perToken
	}
	q.server.events.Finished(q.subject(), done)
}

func (q *sequence) subject() metrics.Subject {
	priority := q.priority
	if priority == nil {
		priority = q.server.cfg.Rank.Priority.Default
	}
	return metrics.Subject{Streaming: q.streaming, Priority: priority, Custom: q.labels}
}

// settle ends the sequence in the books and in the request log, once: in the outcome of the error that the client gets, or
// without one as the rank says.
func (q *sequence) settle(err *apiError) {
	if q.settled {
		return
	}
	q.settled = true
	outcome, message := request.OutcomeInternal, ""
	switch {
	case err != nil:
		outcome, message = err.outcome(), err.message
	case q.finish != nil:
		outcome, message = q.finish.Outcome, q.finish.Message
	}
	q.finishTime()
	q.server.checkTimes(q)
	if q.entry != nil {
		q.server.books.end(q.entry, outcome)
	}
	q.publish(outcome, message)
	q.server.requests.ended(q, outcome, message)
	q.traceEnd(outcome, message)
}

// abandon ends a sequence whose client has gone, or whose request has failed: the rank frees its pages at once, and its last
// output is still counted.
func (q *sequence) abandon(ctx context.Context) {
	if q.ended {
		return
	}
	if err := q.engine.rank.Abort(q.rid, request.OutcomeAbortedClient); err != nil {
		q.server.log.Warn("abort a request whose client has gone", "rid", q.rid, "error", err)
		q.end()
		return
	}
	if !q.uncounted {
		q.server.events.Aborted()
	}
	lost := context.WithoutCancel(ctx) // the stream ends by itself: with the finish, or with the rank
	for !q.ended {
		out, err := q.stream.Recv(lost)
		if err != nil {
			q.end()
			return
		}
		q.book(out)
	}
}

// answeringRank is the data-parallel rank that answers; nil where there is one.
func (q *sequence) answeringRank() *int {
	if q.server.dataRanks() < 2 {
		return nil
	}
	rank := q.stream.DPRank()
	return &rank
}

// end releases the rid.
func (q *sequence) end() {
	if !q.ended {
		q.ended = true
		q.server.release(q.rid)
	}
}
