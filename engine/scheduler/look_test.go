package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestTimelines: who asks hears the stage of each request that lives, for as long as it is stuck there, and what went over.
func TestTimelines(t *testing.T) {
	w := newWire(4)
	w.auto = false
	clock := ledgertest.New()
	scheds := map[Role]*Scheduler{}
	for _, role := range []Role{Prefill, Decode} {
		s, err := New(testConfig(role, 4, 100), Deps{
			Executor: newTape(4), Clock: clock, Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Sender: wireSender{w}, Receiver: wireReceiver{w},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.checked = true
		begin(t, s)
		scheds[role] = s
	}
	ask := func(s *Scheduler) map[string]*ledger.Record {
		t.Helper()
		found := make(chan map[string]*ledger.Record, 1)
		s.inbox.look(look{rids: []string{"a", "b"}, reply: found})
		if _, err := s.turn(); err != nil {
			t.Fatal(err)
		}
		for rid, r := range <-found {
			if err := r.Check(); err != nil {
				t.Errorf("%s: %v", rid, err)
			}
			return map[string]*ledger.Record{rid: r}
		}
		return nil
	}
	expect := func(role Role, what string, want ledger.Stage) {
		t.Helper()
		for range 2 { // it stays so while nothing happens
			clock.Advance(time.Second)
			for _, s := range scheds {
				if _, err := s.turn(); err != nil {
					t.Fatal(err)
				}
			}
		}
		got := ask(scheds[role])
		if r := got["a"]; r == nil || r.Stage != want || len(got) != 1 {
			t.Errorf("%s, %s: %+v, want %s", role, what, got, want)
		}
	}
	if got := ask(scheds[Decode]); len(got) != 0 {
		t.Errorf("before it came: %v", got)
	}
	sinks := map[Role]*inboxSink{}
	for role, s := range scheds {
		sinks[role] = newSink()
		if err := s.Submit(&request.Request{
			RID: "a", PromptIDs: testPrompt(9, 1), Sampling: request.Sampling{MaxNewTokens: 3, IgnoreEOS: true},
			Bootstrap: &request.Bootstrap{Host: "10.0.0.1", Port: 1, Room: 1},
		}, sinks[role]); err != nil {
			t.Fatal(err)
		}
	}
	room := func(action string) {
		(&harness{t: t, s: scheds[Prefill], wire: w}).command("room 1 " + action)
	}
	expect(Prefill, "nobody came", ledger.StagePrefillBootstrap)
	expect(Decode, "it met nobody", ledger.StageDecodeBootstrap)
	room("pages")
	expect(Decode, "it has pages", ledger.StageDecodeTransferred)
	room("ready")
	expect(Prefill, "the pages are under way", ledger.StagePrefillTransferKVCache)
	if got := ask(scheds[Prefill])["a"].Transfer; got == nil || got.OwnBytes == 0 {
		t.Errorf("what went over so far: %+v", got)
	}
	for role, s := range scheds {
		s.Abort("a", request.OutcomeAbortedClient)
		if _, err := s.turn(); err != nil {
			t.Fatal(err)
		}
		if got := ask(s); len(got) != 0 {
			t.Errorf("%s, after its end: %v", role, got)
		}
		s.endAll(request.OutcomeAbortedOperator, "the test is over")
		if _, err := s.Timelines(t.Context(), []string{"a"}); !errors.Is(err, ErrEnded) {
			t.Errorf("%s, after the end of all: %v", role, err)
		}
	}
}

// TestTimelinesTakenBack: while no step ends, a question whose caller has gone isn't kept, and those of others are.
func TestTimelinesTakenBack(t *testing.T) {
	s, err := New(testConfig(Unified, 4, 100), Deps{
		Executor: newTape(4), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s)
	found := make(chan map[string]*ledger.Record, 1)
	s.inbox.look(look{rids: []string{"a"}, reply: found})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if _, err := s.Timelines(gone, []string{"a", "b"}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if n := len(s.inbox.looks); n != 1 {
		t.Errorf("%d questions wait, want the one that somebody waits for", n)
	}
	if _, err := s.turn(); err != nil {
		t.Fatal(err)
	}
	if got := <-found; got == nil || len(got) != 0 {
		t.Errorf("the answer is %v", got)
	}
	s.endAll(request.OutcomeAbortedOperator, "the test is over")
}

// TestAwaitStep: who waits for steps, many at the same time, goes on as soon as the step is over and not before, and hears of the
// scheduler's end.
func TestAwaitStep(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newReplica(t, testConfig(Unified, 4, 64))
	s := r.scheds[0]
	if newest, err := s.AwaitStep(t.Context(), 0); newest != 0 || err != nil {
		t.Errorf("at the start: step %d, %v", newest, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.AwaitStep(gone, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody wants it any more: %v", err)
	}
	var waiting sync.WaitGroup
	for range 20 {
		n := rng.Int64N(40)
		waiting.Go(func() {
			newest, err := s.AwaitStep(context.Background(), n)
			if over := s.progress.over.Load(); err != nil || newest < n || over < newest {
				t.Errorf("seed %d: the wait for step %d ends with %d, %v; %d are over", seed, n, newest, err, over)
			}
		})
	}
	var endless sync.WaitGroup
	endless.Go(func() {
		if _, err := s.AwaitStep(context.Background(), 1<<40); !errors.Is(err, ErrEnded) {
			t.Errorf("a step that never comes: %v", err)
		}
	})
	for i := range 3 {
		r.wait(r.submit(&request.Request{
			RID: fmt.Sprint(i), PromptIDs: testPrompt(5, 1), Sampling: request.Sampling{MaxNewTokens: 20, IgnoreEOS: true},
		}, 1)[0])
	}
	waiting.Wait()
	r.end()
	endless.Wait()
	if newest, err := s.AwaitStep(t.Context(), 1); newest != s.flight.over || err != nil {
		t.Errorf("at the end: step %d, %v; %d are over", newest, err, s.flight.over)
	}
}
