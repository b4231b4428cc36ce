package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// testGrammars compiles "MOD N": the i-th token of the answer is i modulo MOD, and there are N. "slow …" waits until it is
// cancelled, or until gate is closed and goes on with what follows; the masks of "late …" wait likewise behind the second token;
// anything else is refused. With an even MOD no mask is quick.
type testGrammars struct {
	gate <-chan struct{}
	work *work // nil, or what is done for its masks
}

// work counts the masks that are being made off the loop.
type work struct{ now atomic.Int64 }

func (g testGrammars) Compile(ctx context.Context, r request.Grammar) (Grammar, error) {
	source, slow := strings.CutPrefix(r.Source, "slow ")
	if slow {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-g.gate:
		}
	}
	var c counting
	if source, slow = strings.CutPrefix(source, "late "); slow {
		c.gate = g.gate
	}
	c.work = g.work
	if _, err := fmt.Sscanf(source, "%d %d", &c.mod, &c.n); err != nil || c.mod < 1 {
		return nil, fmt.Errorf("%q is not supported", source)
	}
	return c, nil
}

type counting struct {
	mod, n int
	gate   <-chan struct{} // nil: masks wait for nothing
	work   *work
}

func (c counting) Matcher() Matcher { return &countingMatcher{counting: c} }
func (c counting) Words() int       { return (testVocab + 63) / 64 }
func (c counting) Facts() GrammarFacts {
	return GrammarFacts{CacheHit: c.n == 4, Schemas: c.mod, Size: c.n}
}

type countingMatcher struct {
	counting
	at int
}

func (m *countingMatcher) allows(token int32) bool { return int(token)%m.mod == m.at%m.mod }

func (m *countingMatcher) Mask(dst []uint64) error {
	clear(dst)
	if m.n == 13 && m.at == 5 {
		return errors.New("too ambiguous")
	}
	for t := range int32(testVocab) {
		if m.allows(t) {
			dst[t/64] |= 1 << (t % 64)
		}
	}
	return nil
}

func (m *countingMatcher) Follow(ctx context.Context, token int32, dst []uint64) error {
	if m.work != nil {
		m.work.now.Add(1)
		defer m.work.now.Add(-1)
	}
	if m.gate != nil && m.at == 1 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.gate:
		}
	}
	return m.follow(token, dst)
}

func (m *countingMatcher) follow(token int32, dst []uint64) error {
	if !m.allows(token) {
		return fmt.Errorf("%w: token %d", ErrNotAllowed, token)
	}
	if m.at++; m.Done() {
		return nil
	}
	return m.Mask(dst)
}

func (m *countingMatcher) Try(token int32, dst []uint64) (ok bool, err error) {
	if m.mod%2 == 0 || m.gate != nil {
		return false, nil
	}
	return true, m.follow(token, dst)
}

func (m *countingMatcher) Done() bool { return m.at >= m.n }

// masked is the first token from token on that a mask allows.
func masked(token int32, mask []uint64) int32 {
	for mask != nil && mask[token/64]&(1<<(token%64)) == 0 {
		token = (token + 1) % testVocab
	}
	return token
}

// TestGrammarOutcomes: what becomes of requests whose grammar is not there, alone and in a world of two.
func TestGrammarOutcomes(t *testing.T) {
	tests := []struct {
		name, reason string
		source       string
		do           func(t *testing.T, s *Scheduler, clock *ledgertest.Clock, gate chan struct{}) // once it is compiling
		want         request.Finish
		tokens       int
		told         report.Grammar // on every rank
		masks        int            // requests of which the masks are told
	}{
		{name: "ready", reason: "a grammar that ends the answer stops it", source: "7 4", want: request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}, tokens: 4,
			told: report.Grammar{CacheHit: true, Schemas: 7, Size: 4}, masks: 1},
		{name: "longer than asked", reason: "the length ends it before", source: "7 400", want: request.Finish{Type: request.FinishLength, Outcome: request.OutcomeLength}, tokens: 9,
			told: report.Grammar{Schemas: 7, Size: 400}, masks: 1},
		{name: "slow", reason: "it waits for its grammar", source: "slow 7 3",
			do:   func(_ *testing.T, _ *Scheduler, _ *ledgertest.Clock, gate chan struct{}) { close(gate) },
			want: request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}, tokens: 3, told: report.Grammar{Schemas: 7, Size: 3}, masks: 1},
		{name: "late", reason: "it waits for its mask", source: "late 7 4",
			do:   func(_ *testing.T, _ *Scheduler, _ *ledgertest.Clock, gate chan struct{}) { close(gate) },
			want: request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}, tokens: 4,
			told: report.Grammar{CacheHit: true, Schemas: 7, Size: 4}, masks: 1},
		{name: "late, abort", reason: "a client that goes away waits for no mask", source: "late 7 4",
			do: func(_ *testing.T, s *Scheduler, _ *ledgertest.Clock, _ chan struct{}) {
				s.Abort("a", request.OutcomeAbortedClient)
			},
			want: request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeAbortedClient, Message: "the client went away"}, tokens: 2,
			told: report.Grammar{CacheHit: true, Schemas: 7, Size: 4}, masks: 1},
		{name: "never quick", reason: "every mask comes by a message", source: "6 5", want: request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}, tokens: 5,
			told: report.Grammar{Schemas: 6, Size: 5}, masks: 1},
		{name: "never quick, stuck", reason: "as one that is quick", source: "6 13",
			want: request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeInvalid, Message: "too ambiguous"}, tokens: 5,
			told: report.Grammar{Schemas: 6, Size: 13}, masks: 1},
		{name: "refused", reason: "the client hears what is wrong with it", source: "(?=x)",
			want: request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeInvalid, Message: `"(?=x)" is not supported`},
			told: report.Grammar{Outcome: report.GrammarAborted}},
		{name: "stuck", reason: "a mask that can't be made ends the answer", source: "7 13",
			want: request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeInvalid, Message: "too ambiguous"}, tokens: 5,
			told: report.Grammar{Schemas: 7, Size: 13}, masks: 1},
		{name: "time-out", reason: "nobody waits for ever", source: "slow 7 3",
			do: func(_ *testing.T, s *Scheduler, clock *ledgertest.Clock, _ chan struct{}) {
				clock.Advance(time.Minute)
				s.Wake()
			},
			want: request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeTimeout, Message: "the grammar was not compiled within 1m0s: make it simpler"},
			told: report.Grammar{Outcome: report.GrammarTimedOut}},
		{name: "abort", reason: "a client that goes away ends its compilation", source: "slow 7 3",
			do: func(_ *testing.T, s *Scheduler, _ *ledgertest.Clock, _ chan struct{}) {
				s.Abort("a", request.OutcomeAbortedClient)
			},
			want: request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeAbortedClient, Message: "the client went away"},
			told: report.Grammar{Outcome: report.GrammarAborted}},
	}
	for _, tt := range tests {
		for _, ranks := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, ranks %d", tt.name, ranks), func(t *testing.T) {
				clock, gate := ledgertest.New(), make(chan struct{})
				link := newMemoryWorld(ranks)
				cfg := testConfig(Unified, 4, 256)
				cfg.Overlap, cfg.GrammarTimeoutNanos = true, int64(time.Minute)
				ctx, stop := context.WithCancel(context.Background())
				ended := make(chan error, ranks)
				var leader *Scheduler
				said := make([]*recorder, ranks)
				for rank := range ranks {
					said[rank] = newRecorder()
					deps := Deps{
						Executor: newTape(4), Clock: clock, Reporter: said[rank], Decoder: letters{}, Log: quiet(), Grammars: testGrammars{gate: gate},
					}
					if ranks > 1 {
						deps.Peers = memoryPeers{link, rank}
					}
					s, err := New(cfg, deps)
					if err != nil {
						t.Fatal(err)
					}
					s.checked = true
					own := context.Background()
					if rank == 0 {
						leader, own = s, ctx
					}
					go func() { ended <- s.Run(own) }()
				}
				sink := newSink()
				if err := leader.Submit(&request.Request{
					RID: "a", PromptIDs: testPrompt(9, 1), Grammar: &request.Grammar{Kind: request.GrammarRegex, Source: tt.source}, LogMetrics: true,
					Sampling: request.Sampling{MaxNewTokens: 9, IgnoreEOS: true},
				}, sink); err != nil {
					t.Fatal(err)
				}
				if tt.do != nil {
					waits := func() bool { return leader.Load().Queues.Grammar == 1 }
					if strings.HasPrefix(tt.source, "late") {
						waits = func() bool { return sink.count() == 2 }
					}
					eventually(t, "the request never got to where it waits", waits, leader.Wake)
					tt.do(t, leader, clock, gate)
				}
				await(t, "the request never ended", sink.ended)
				stop()
				for range ranks {
					if err := await(t, "a rank does not end", ended); err != nil {
						t.Error(err)
					}
				}
				for rank, r := range said {
					if diff := cmp.Diff([]report.Grammar{tt.told}, r.grammars); diff != "" || len(r.masks) != tt.masks {
						t.Errorf("rank %d tells of the masks of %d requests, want %d; of grammars (-want +got):\n%s", rank, len(r.masks), tt.masks, diff)
					}
				}
				if diff := cmp.Diff(tt.want, apart(*sink.finish), cmp.FilterPath(func(p cmp.Path) bool {
					return strings.HasSuffix(p.String(), "Nanos")
				}, cmp.Ignore())); diff != "" || len(sink.tokens) != tt.tokens {
					t.Errorf("%s: %d tokens, want %d; finish (-want +got):\n%s", tt.reason, len(sink.tokens), tt.tokens, diff)
				}
			})
		}
	}
}

// TestGrammarQueueIsBounded: a request has its place in the queue from its receipt on, also while its grammar is compiled.
func TestGrammarQueueIsBounded(t *testing.T) {
	cfg := testConfig(Unified, 4, 256)
	cfg.MaxQueued = 1
	gate := make(chan struct{})
	s, err := New(cfg, Deps{
		Executor: newTape(4), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Grammars: testGrammars{gate: gate},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.checked = true
	begin(t, s)
	var sinks []*inboxSink
	for i := range 2 {
		sink := newSink()
		if err := s.Submit(&request.Request{
			RID: fmt.Sprint(i), PromptIDs: []int32{1}, Grammar: &request.Grammar{Source: "slow 1 1"}, Sampling: request.Sampling{MaxNewTokens: 1},
		}, sink); err != nil {
			t.Fatal(err)
		}
		sinks = append(sinks, sink)
	}
	if _, err := s.turn(); err != nil {
		t.Fatal(err)
	}
	if f := sinks[1].finish; f == nil || f.Outcome != request.OutcomeRefused {
		t.Errorf("the second request ends with %v, want that the queue is full", f)
	}
	compiling := s.in[stateCompiling][0].compilation.done
	close(gate)
	<-compiling
	for range 3 {
		if _, err := s.turn(); err != nil {
			t.Fatal(err)
		}
	}
	if f := sinks[0].finish; f == nil || f.Outcome != request.OutcomeStop {
		t.Errorf("the first request ends with %v, want that its grammar stops it", f)
	}
}

// TestShutdownWhileCompiling: Run waits for no compilation that nobody wants.
func TestShutdownWhileCompiling(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	s, err := New(testConfig(Unified, 4, 256), Deps{
		Executor: newTape(4), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Grammars: testGrammars{},
	})
	if err != nil {
		t.Fatal(err)
	}
	var sinks []*inboxSink
	for i := range 2 * maxCompilations {
		sink := newSink()
		if err := s.Submit(&request.Request{
			RID: fmt.Sprint(i), PromptIDs: []int32{1}, Grammar: &request.Grammar{Source: "slow 1 1"}, Sampling: request.Sampling{MaxNewTokens: 1},
		}, sink); err != nil {
			t.Fatal(err)
		}
		sinks = append(sinks, sink)
	}
	stop()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for i, sink := range sinks {
		if sink.finish == nil || sink.finish.Outcome != request.OutcomeAbortedOperator {
			t.Errorf("request %d ends with %v", i, sink.finish)
		}
	}
}

// TestMasksOfNobody: masks that take long are given up when their requests end, those that wait for their turn too, and Run waits
// until nobody is at one any more.
func TestMasksOfNobody(t *testing.T) {
	for _, end := range []string{"abort", "shutdown"} {
		t.Run(end, func(t *testing.T) {
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			made := &work{}
			s, err := New(testConfig(Unified, 4, 256), Deps{
				Executor: newTape(4), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Grammars: testGrammars{work: made, gate: make(chan struct{})},
			})
			if err != nil {
				t.Fatal(err)
			}
			s.checked = true
			var sinks []*inboxSink
			for i := range 2 * maxMasks {
				sink := newSink()
				if err := s.Submit(&request.Request{
					RID: fmt.Sprint(i), PromptIDs: testPrompt(5, i), Grammar: &request.Grammar{Source: "late 7 9"}, Sampling: request.Sampling{MaxNewTokens: 9, IgnoreEOS: true},
				}, sink); err != nil {
					t.Fatal(err)
				}
				sinks = append(sinks, sink)
			}
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			eventually(t, "the masks are not made", func() bool {
				second := 0
				for _, x := range sinks {
					second += max(0, x.count()-1)
				}
				return made.now.Load() == maxMasks && second >= maxMasks // the others wait for a turn
			}, func() {})
			want := request.OutcomeAbortedOperator
			if end == "abort" {
				for i := range sinks {
					s.Abort(fmt.Sprint(i), request.OutcomeAbortedClient)
				}
				want = request.OutcomeAbortedClient
				for _, sink := range sinks {
					await(t, "a request does not end", sink.ended)
				}
				eventually(t, "somebody is still at a mask", func() bool { return made.now.Load() == 0 }, func() {})
			}
			stop()
			if err := await(t, "the scheduler does not end", ended); err != nil {
				t.Fatal(err)
			}
			if n := made.now.Load(); n != 0 {
				t.Errorf("%d masks are being made after the end", n)
			}
			for i, sink := range sinks {
				if f := sink.finish; f == nil || f.Outcome != want {
					t.Errorf("request %d ends with %v, want %s", i, f, want)
				}
			}
		})
	}
}

// TestNoGrammars: an engine without grammars says so.
func TestNoGrammars(t *testing.T) {
	s, err := New(testConfig(Unified, 4, 256), Deps{Executor: newTape(4), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s)
	sink := newSink()
	if err := s.Submit(&request.Request{RID: "a", PromptIDs: []int32{1}, Grammar: &request.Grammar{Source: "a"}}, sink); err != nil {
		t.Fatal(err)
	}
	if _, err := s.turn(); err != nil {
		t.Fatal(err)
	}
	if want := "this engine has no grammars: send the request without one"; sink.finish == nil || sink.finish.Message != want {
		t.Errorf("finish is %v, want %q", sink.finish, want)
	}
}

// TestSlowMaskHoldsUpNobody: while a mask takes its time, others get all their tokens, and then the answer goes on as if
// nothing had been.
func TestSlowMaskHoldsUpNobody(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		cfg := testConfig(Unified, 4, 256)
		cfg.Overlap = overlap
		gate := make(chan struct{})
		s, err := New(cfg, Deps{
			Executor: newTape(4), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Grammars: testGrammars{gate: gate},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.checked = true
		begin(t, s)
		reqs := []*request.Request{
			{RID: "slow", PromptIDs: testPrompt(9, 1), Grammar: &request.Grammar{Kind: request.GrammarRegex, Source: "late 7 6"}},
			{RID: "other", PromptIDs: testPrompt(5, 2)},
			{RID: "third", PromptIDs: testPrompt(5, 3), Grammar: &request.Grammar{Kind: request.GrammarRegex, Source: "5 400"}},
		}
		sinks := make([]*inboxSink, len(reqs))
		for i, r := range reqs {
			r.Sampling = request.Sampling{MaxNewTokens: 40, IgnoreEOS: true, Seed: new(int64(i))}
			sinks[i] = newSink()
			if err := s.Submit(r, sinks[i]); err != nil {
				t.Fatal(err)
			}
		}
		s.turnUntil(t, "the others do not end", func() bool { return sinks[1].over() && sinks[2].over() && sinks[0].count() >= 2 })
		if n := len(sinks[0].tokens); n != 2 {
			t.Errorf("overlap %t: the slow one has %d tokens while its third is not allowed yet", overlap, n)
		}
		close(gate)
		s.turnUntil(t, "the slow one does not end", sinks[0].over)
		reqs[0].Grammar.Source = "7 6"
		for i, r := range reqs {
			if diff := cmp.Diff(expected(r, s.limit), sinks[i].tokens); diff != "" {
				t.Errorf("overlap %t: %s (-alone +got)\n%s", overlap, r.RID, diff)
			}
		}
	}
}
