package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// Grammars compiles what answers must match.
type Grammars interface {
	// Compile may take long; it is called from many goroutines. An error other than ctx's is the client's.
	Compile(ctx context.Context, g request.Grammar) (Grammar, error)
}

// Grammar is a compiled one.
type Grammar interface {
	Matcher() Matcher
	Words() int // of a mask: ceil(vocabulary/64)
	Facts() GrammarFacts
}

// GrammarFacts is what is told of a grammar that was compiled.
type GrammarFacts struct {
	CacheHit bool // somebody had asked for the same before
	Schemas  int  // schemas in its source, the outermost included; 0 for a regular expression
	Size     int  // states of its automaton
}

// Matcher is one answer's place in a grammar. Its results are functions of the grammar and the tokens alone. One goroutine
// uses it at a time.
type Matcher interface {
	// Mask writes which tokens may come next, bit t%64 of dst[t/64]. It may take long. An error ends the request.
	Mask(dst []uint64) error
	// Follow goes on by a token that the mask allowed and then, unless the matcher is Done, masks. It may take long; once ctx has
	// ended it returns soon, with an error that nobody looks at. An error with ErrNotAllowed in it is the engine's fault, others
	// are the client's.
	Follow(ctx context.Context, token int32, dst []uint64) error
	// Try is Follow if that takes no longer than the scheduler's loop can wait. Else ok is false and the matcher is where it was.
	Try(token int32, dst []uint64) (ok bool, err error)
	// Done reports that nothing but an end token may follow.
	Done() bool
}

// ErrNotAllowed is in an error about a token that was sampled although the grammar does not allow it.
var ErrNotAllowed = errors.New("the answer left its grammar")

// maxCompilations is how many grammars are compiled at the same time; more wait for their turn.
const maxCompilations = 4

// compilations is the grammar queue, and what else is done for grammars off the loop.
type compilations struct {
	running sync.WaitGroup // of all goroutines; each is cancelled when its request ends
	turns   chan struct{}  // [maxCompilations]
	masks   chan struct{}  // [maxMasks]
}

// compilation is one sequence's wait for its grammar.
type compilation struct {
	started ledger.Instant
	cancel  context.CancelFunc
	done    chan struct{} // closed when grammar or err is set
	grammar Grammar
	matcher Matcher
	mask    []uint64 // of the first token
	err     error
	nanos   int64 // that the compiler took
	masked  int64 // nanoseconds that the mask took
}

// compile fills in what is done off the loop.
func (c *compilation) compile(ctx context.Context, s *Scheduler, g request.Grammar) {
	began := s.deps.Clock.Now()
	c.grammar, c.err = s.deps.Grammars.Compile(ctx, g)
	compiled := s.deps.Clock.Now()
	c.nanos = compiled.Sub(began)
	if c.err == nil {
		c.matcher, c.mask = c.grammar.Matcher(), make([]uint64, c.grammar.Words())
		c.err = c.matcher.Mask(c.mask)
		c.masked = s.deps.Clock.Now().Sub(compiled)
	}
}

// verdict is what the leader found out about a compilation.
type verdict uint8

const (
	grammarReady    verdict = iota // it is there; on other ranks soon
	grammarFailed                  // it is not supported, or wrong
	grammarTimedOut                // it was not there in time
)

// compile puts q into the grammar queue. Every rank compiles for itself; the leader says when it is ready.
func (s *Scheduler) compile(q *sequence) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.flight.ctx))
	c := &compilation{started: s.deps.Clock.Now(), cancel: cancel, done: make(chan struct{})}
	q.compilation = c
	s.becomeCompiling(q)
	g := *q.req.Grammar
	s.compilations.running.Go(func() {
		defer s.inbox.signal()
		defer close(c.done)
		select {
		case s.compilations.turns <- struct{}{}:
			defer func() { <-s.compilations.turns }()
		case <-ctx.Done():
			c.err = ctx.Err()
			return
		}
		c.compile(ctx, s, g)
	})
}

// judgeGrammars gives what the leader knows about the grammar queue, in order.
func (s *Scheduler) judgeGrammars(now ledger.Instant) []message {
	var found []message
	for _, q := range s.in[stateCompiling] {
		c := q.compilation
		select {
		case <-c.done:
			if c.err != nil {
				found = append(found, grammarMsg{arrival: q.arrival, verdict: grammarFailed, message: c.err.Error()})
				continue
			}
			found = append(found, grammarMsg{arrival: q.arrival})
		default:
			if limit := s.cfg.GrammarTimeoutNanos; limit > 0 && now.Sub(c.started) >= limit {
				found = append(found, grammarMsg{arrival: q.arrival, verdict: grammarTimedOut})
			}
		}
	}
	// In order of arrival, whatever the order of the list.
	slices.SortFunc(found, func(a, b message) int { return cmp.Compare(a.(grammarMsg).arrival, b.(grammarMsg).arrival) })
	return found
}

// grammarDue is how long it takes until the oldest compilation is out of time; ok is false when none ever is.
func (s *Scheduler) grammarDue(now ledger.Instant) (due time.Duration, ok bool) {
	limit := s.cfg.GrammarTimeoutNanos
	if limit == 0 {
		return 0, false
	}
	for _, q := range s.in[stateCompiling] {
		left := time.Duration(limit - now.Sub(q.compilation.started))
		if !ok || left < due {
			due, ok = max(left, 0), true
		}
	}
	return due, ok
}

// takeVerdict moves a sequence on whose grammar is ready, and ends the others. Where this rank's own compilation is behind
// the leader's it compiles here and now: those that have a turn may be ones that the leader is about to give up.
func (s *Scheduler) takeVerdict(m grammarMsg) error {
	at := slices.IndexFunc(s.in[stateCompiling], func(q *sequence) bool { return q.arrival == m.arrival })
	if at < 0 {
		return nil // it ended in the meantime
	}
	q := s.in[stateCompiling][at]
	switch m.verdict {
	case grammarFailed:
		s.finish(q, aborted(request.OutcomeInvalid, m.message))
		return nil
	case grammarTimedOut:
		s.finish(q, aborted(request.OutcomeTimeout, fmt.Sprintf("the grammar was not compiled within %v: make it simpler",
			time.Duration(s.cfg.GrammarTimeoutNanos))))
		return nil
	case grammarReady:
	}
	c := q.compilation
	select {
	case <-c.done:
	default:
		c.cancel() // after it was seen that it is not done: it would be done by that
		c = &compilation{cancel: c.cancel}
		c.compile(s.flight.ctx, s, *q.req.Grammar)
	}
	c.cancel()
	if c.err != nil {
		return fmt.Errorf("compile the grammar of request %s as the leader did: %w", q.req.RID, c.err)
	}
	q.compilation = nil
	if q.req.LogMetrics {
		f := c.grammar.Facts()
		s.deps.Reporter.Grammar(report.Grammar{CompileNanos: c.nanos, CacheHit: f.CacheHit, Schemas: f.Schemas, Size: f.Size})
	}
	q.matcher, q.mask = c.matcher, c.mask
	q.masks.add(c.masked)
	s.join(q)
	return nil
}
