package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// Scheduler runs the requests of one rank. Submit, Abort, AbortAll, Load, Timelines, AwaitStep, Flush and Wake may be called from any
// goroutine at any time; everything below progress belongs to the goroutine of Run.
type Scheduler struct {
	cfg   Config
	deps  Deps
	limit int // most tokens of a sequence: what the context length and the pool allow

	inbox    *inbox
	progress *progress

	pool   *kvcache.Pool
	window *kvcache.Pool // of sliding-window layers; nil: the model has none
	tree   *kvcache.Tree // the prefix cache over the pools; nil: there is none
	in     [numStates]list
	live   map[string]*sequence // by RID; the sum of all lists
	held   []held

	sessions     map[string]*session // by id
	remembered   int                 // tokens, see session.go
	sessionMoves int64               // opens and ends of turns

	admitted   hits      // of sequences whose first step is not launched yet
	recentHits hitWindow // at nanoseconds since began
	began      ledger.Instant
	arrivals   int64
	seeds      *rand.Rand

	compilations compilations
	masking      []*sequence // that advance began with, in order: those whose masking is not nil
	flight       flight      // what is being computed

	digest digest // of all decisions

	told      []told // not delivered yet
	answered  []answered
	taken     int // submissions drained since the load was published
	takenToks int // of their prompts

	passes  passes
	reserve reserve
	paused  bool
	watch   stopwatch // stands still while paused
	steps   counters
	traced  int // sequences with spans
	said    reported
	time    loopTime

	scratch scratch
	checked bool // check after every step, as in builds with kvcache.Invariants
}

// counters are what the steps since the start have come to.
type counters struct {
	decodePicks   int   // decode batches picked, also those that retraction emptied
	decodeSteps   int   // decode batches computed
	prefilled     bool  // the last launched batch was a prefill batch
	prefillTokens int64 // computed prompt tokens
	prefillNanos  int64 // time in prefill batches
	// generatedTokens were sampled here: on a prefill rank the first of each answer, on a decode rank the others.
	generatedTokens int64
	lastTransfer    report.KVTransfer
	decodedSince    int            // tokens since the last decode report
	lastDecode      ledger.Instant // of the last decode report, at first the start
	retractedReqs   int            // of the last retraction, 0 after a report
	lastReport      ledger.Instant
	throughput      float64 // tokens per second of the last decode report
	hitRate         float64 // of the last step with chunks: tokens found in the cache over all that were looked for
	sumSeqLens      int     // tokens with KV of the sequences in the batch of the last decode report
	routing         routing // keys at the last decode report at which every running request had one
	occupancy       occupancy
}

// New returns a scheduler that has not started.
func New(cfg Config, deps Deps) (*Scheduler, error) {
	if err := errors.Join(cfg.validate(), deps.validate(cfg.Role)); err != nil {
		return nil, err
	}
	s := &Scheduler{
		cfg: cfg, deps: deps, inbox: newInbox(), progress: newProgress(),
		compilations: compilations{turns: make(chan struct{}, maxCompilations), masks: make(chan struct{}, maxMasks)},
		live:         map[string]*sequence{},
		sessions:     map[string]*session{},
		seeds:        rand.New(rand.NewPCG(cfg.Seed, 0x5eed)),
		reserve:      newReserve(cfg.Conservativeness),
		began:        deps.Clock.Now(),
	}
	s.recentHits.nanos = cmp.Or(cfg.HitWindowNanos, defaultHitWindow)
	if err := s.newPools(); err != nil {
		return nil, err
	}
	var err error
	if s.digest, err = newDigest(cfg); err != nil {
		return nil, err
	}
	now := deps.Clock.Now()
	s.steps.lastDecode, s.steps.lastReport = now, now
	s.steps.occupancy.reset()
	s.said.running = -1 // so that the first step of an idle scheduler reports
	s.publishLoad(now)
	deps.Reporter.Started(s.constants())
	return s, nil
}

// Submit hands a request over; it must not change afterwards. The sink gets exactly one Finish, also when the request is
// refused. An error means that the scheduler has ended, and then the sink gets nothing.
func (s *Scheduler) Submit(r *request.Request, sink Sink) error {
	if !s.inbox.put(submitMsg{req: r, sink: sink}) {
		return ErrEnded
	}
	return nil
}

// ErrEnded says that Run has returned.
var ErrEnded = errors.New("the scheduler has ended")

// Abort ends the request rid with an outcome, at its next step. An unknown rid is ignored.
func (s *Scheduler) Abort(rid string, reason request.Outcome) {
	s.inbox.put(abortMsg{rid: rid, reason: reason})
}

// AbortAll ends the requests whose rid begins with prefix, with OutcomeAbortedOperator.
func (s *Scheduler) AbortAll(prefix string) {
	s.inbox.put(abortMsg{rid: prefix, prefix: true, reason: request.OutcomeAbortedOperator})
}

// ErrBusy says that a request lives.
var ErrBusy = errors.New("the engine is not idle")

// Flush empties the prefix cache. It gives ErrBusy while a request lives or a transfer holds pages.
func (s *Scheduler) Flush(ctx context.Context) error {
	reply := make(chan error, 1)
	return s.ask(ctx, flushMsg{reply: reply}, reply)
}

// ask puts a message and waits for its reply.
func (s *Scheduler) ask(ctx context.Context, m message, reply <-chan error) error {
	if !s.inbox.put(m) {
		return ErrEnded
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pause stops computing until Continue; mode says what becomes of the requests that run. New requests queue.
func (s *Scheduler) Pause(ctx context.Context, mode request.PauseMode) error {
	reply := make(chan error, 1)
	return s.ask(ctx, controlMsg{kind: controlPause, mode: mode, reply: reply}, reply)
}

// Continue ends a pause; there need not be one.
func (s *Scheduler) Continue(ctx context.Context) error {
	reply := make(chan error, 1)
	return s.ask(ctx, controlMsg{kind: controlContinue, reply: reply}, reply)
}

// OpenSession opens a session; an error when its id is in use.
func (s *Scheduler) OpenSession(ctx context.Context, session request.Session) error {
	reply := make(chan error, 1)
	return s.ask(ctx, controlMsg{kind: controlOpenSession, session: session, reply: reply}, reply)
}

// CloseSession ends the session's turn if one runs and frees what the session holds; an error when there is none.
func (s *Scheduler) CloseSession(ctx context.Context, id string) error {
	reply := make(chan error, 1)
	return s.ask(ctx, controlMsg{kind: controlCloseSession, session: request.Session{ID: id}, reply: reply}, reply)
}

// Wake makes the scheduler look at its transfers.
func (s *Scheduler) Wake() { s.inbox.signal() }

// receive judges a new request: it goes to the first queue of its role or is refused.
func (s *Scheduler) receive(m submitMsg) {
	s.taken++
	s.takenToks += len(m.req.PromptIDs)
	s.arrivals++
	q := &sequence{
		req: m.req, sink: m.sink, arrival: s.arrivals, urgency: s.cfg.Priorities.urgency(m.req.Priority),
		prompt: len(m.req.PromptIDs), logprobs: newLogprobs(m.req.Logprobs),
		tokens: append(make([]int32, 0, len(m.req.PromptIDs)+min(max(m.req.Sampling.MaxNewTokens, 1), 256)), m.req.PromptIDs...),
	}
	var outcome request.Outcome
	var message string
	if q.req.Session != nil {
		outcome, message = s.beginTurn(q)
	}
	q.timeline.Start(s.deps.Clock, s.cfg.Role.form())
	s.trace(q)
	q.seed = s.seeds.Uint64()
	if seed := m.req.Sampling.Seed; seed != nil {
		q.seed = uint64(*seed)
	}
	s.digest.note(notedReceipt, uint64(q.arrival), uint64(q.prompt), q.seed)
	s.digest.text(q.req.RID)
	s.in[stateNew].add(q)
	if outcome != "" {
		s.finish(q, aborted(outcome, message))
		return
	}
	if outcome, message := s.judge(q); outcome != "" {
		s.finish(q, aborted(outcome, message))
		return
	}
	if outcome, message := s.enqueue(q); outcome != "" {
		s.observeRejection(q, report.RejectedQueueFull)
		s.finish(q, aborted(outcome, message))
		return
	}
	s.live[q.req.RID] = q
	if q.session != nil {
		s.occupy(q)
	}
	if q.req.Grammar != nil {
		s.compile(q)
		return
	}
	s.join(q)
}

// join takes a request whose grammar is there, or that has none, into the first queue of its role.
func (s *Scheduler) join(q *sequence) {
	s.openTransfer(q)
	switch s.cfg.Role {
	case Unified:
		s.becomeWaiting(q)
	case Prefill:
		s.becomeBootstrapping(q)
	case Decode:
		s.becomePreallocating(q)
	}
}

// judge gives the outcome of a request that can't be served, with a message for the client; "" for one that can.
func (s *Scheduler) judge(q *sequence) (outcome request.Outcome, message string) {
	switch {
	case s.live[q.req.RID] != nil:
		return request.OutcomeInvalid, fmt.Sprintf("rid %q belongs to a request that lives: send another rid", q.req.RID)
	case q.prompt == 0:
		return request.OutcomeInvalid, "the prompt has no tokens: send at least one"
	case q.prompt+1 > s.limit:
		return request.OutcomeTooLong, fmt.Sprintf("the prompt has %d tokens, but this engine serves at most %d "+
			"(context length %d, KV capacity %d, one token for the answer): shorten the prompt",
			q.prompt, s.limit-1, s.cfg.ContextLength, s.pool.Stats().Capacity)
	case s.cfg.Role != Unified && q.req.Bootstrap == nil:
		return request.OutcomeBootstrapFailed, fmt.Sprintf("a %s engine serves requests with bootstrap_host, bootstrap_port and "+
			"bootstrap_room: send the request through the router", s.cfg.Role)
	case q.req.Priority != nil && !s.cfg.Priorities.Enabled && s.cfg.Priorities.RefuseWhenDisabled:
		return request.OutcomeRefused, "priority scheduling is off on this engine: send the request without a priority"
	}
	if q.req.Grammar != nil && s.deps.Grammars == nil {
		return request.OutcomeInvalid, "this engine has no grammars: send the request without one"
	}
	if t := q.req.Sampling.Temperature; t != t {
		return request.OutcomeInvalid, "temperature is not a number: give 0 or more"
	}
	for i, id := range q.req.PromptIDs {
		if id < 0 || int(id) >= s.cfg.VocabSize {
			return request.OutcomeInvalid, fmt.Sprintf("input_ids[%d] is %d: token ids of this model are 0 to %d", i, id, s.cfg.VocabSize-1)
		}
	}
	return "", ""
}

// queued counts requests that wait for their first batch.
func (s *Scheduler) queued() int {
	return len(s.in[stateCompiling]) + len(s.in[stateBootstrapping]) + len(s.in[statePreallocating]) + len(s.in[stateWaiting])
}

// abort ends what a message names.
func (s *Scheduler) abort(m abortMsg) {
	if !m.prefix {
		if q := s.live[m.rid]; q != nil {
			s.finish(q, aborted(m.reason, abortMessage(m.reason)))
		}
		return
	}
	for _, q := range s.all() {
		if strings.HasPrefix(q.req.RID, m.rid) {
			s.finish(q, aborted(m.reason, abortMessage(m.reason)))
		}
	}
}

func abortMessage(reason request.Outcome) string {
	switch reason {
	case request.OutcomeAbortedClient:
		return "the client went away"
	case request.OutcomeAbortedOperator:
		return "the request was aborted"
	case request.OutcomeTimeout:
		return "the request waited or ran longer than this engine allows"
	default:
		return "the request was aborted: " + string(reason)
	}
}

// all gives the live sequences by state and arrival. The slice is valid until the next call.
func (s *Scheduler) all() []*sequence {
	seqs := s.scratch.all[:0]
	for _, l := range s.in {
		seqs = append(seqs, l...)
	}
	s.scratch.all = seqs
	return seqs
}

// endAll finishes everything when Run returns; message is for the clients.
func (s *Scheduler) endAll(outcome request.Outcome, message string) {
	s.settleHeld()
	for _, q := range s.all() {
		s.finish(q, aborted(outcome, message))
	}
	s.progress.end()
	messages, looks := s.inbox.close()
	for _, l := range looks {
		close(l.reply)
	}
	for _, m := range messages {
		switch m := m.(type) {
		case submitMsg:
			s.endUnseen(unseen{m, outcome, message})
		case flushMsg:
			s.answer(m.reply, ErrEnded)
		case controlMsg:
			s.answer(m.reply, ErrEnded)
		case abortMsg, grammarMsg, maskMsg: // everything has ended
		}
	}
	s.deliver(s.deps.Clock.Now())
}
