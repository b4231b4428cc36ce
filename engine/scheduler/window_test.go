package scheduler

import (
	"testing"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestReceivedPagesAreNobodyElses: a request that is aborted while a step computes its next token leaves a page that the step
// still writes. A peer must not get it before.
func TestReceivedPagesAreNobodyElses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		window int
	}{{"all layers see everything", 0}, {"a layer has a window", 4}} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(Decode, 2, 64)
			cfg.Overlap = true
			if tt.window > 0 {
				slidingWindow(&cfg, tt.window, 32)
			}
			w, here := newWire(cfg.PageSize), newTapeOf(cfg)
			w.sender, w.receiver = newTapeOf(cfg), here
			s, err := New(cfg, Deps{
				Executor: here, Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Receiver: wireReceiver{w},
			})
			if err != nil {
				t.Fatal(err)
			}
			begin(t, s)
			s.checked = true
			step := func() {
				t.Helper()
				if _, err := s.turn(); err != nil {
					t.Fatal(err)
				}
			}
			receive := func(rid string, room int64, prompt int) Sending {
				t.Helper()
				peer, err := wireSender{w}.Open(room, prompt)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Submit(&request.Request{
					RID: rid, PromptIDs: testPrompt(prompt, 1), Bootstrap: &request.Bootstrap{Host: "10.0.0.1", Port: 1, Room: room},
					Sampling: request.Sampling{MaxNewTokens: 30, IgnoreEOS: true},
				}, newSink()); err != nil {
					t.Fatal(err)
				}
				step()
				return peer
			}
			peer := receive("a", 1, 4)
			for layer := range testLayers {
				for ordinal := range 2 {
					peer.Send(layer, ordinal, int32(ordinal))
				}
			}
			peer.Finish(disagg.First{Token: 5})
			step()
			step()
			if len(s.flight.steps) == 0 {
				t.Fatal("no step is in flight")
			}
			s.Abort("a", request.OutcomeAbortedClient)
			receive("b", 2, 9) // takes the lowest pages that are free
			if n := len(s.in[stateTransferring]); n != 1 {
				t.Errorf("%d requests receive their KV, want 1", n)
			}
		})
	}
}

// What a decode rank claims for a request that is to receive its KV suffices when the first token has come with it, also when
// that is the last one.
func TestClaimDoesNotGrowAtArrival(t *testing.T) {
	cfg := testConfig(Decode, 2, 400)
	slidingWindow(&cfg, 6, 52)
	s, err := New(cfg, Deps{
		Executor: newTapeOf(cfg), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Receiver: wireReceiver{newWire(2)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for prompt := 1; prompt < 20; prompt++ {
		for maxNew := range 5 {
			q := &sequence{
				req: &request.Request{Sampling: request.Sampling{MaxNewTokens: maxNew}}, prompt: prompt, tokens: testPrompt(prompt, 0), state: stateTransferring,
			}
			before := s.claim(q)
			q.tokens, q.computed, q.state = append(q.tokens, 1), prompt, stateWaiting
			if after := s.claim(q); after > before {
				t.Errorf("a prompt of %d tokens and %d new ones: %d pages are claimed before, %d after", prompt, maxNew, before, after)
			}
		}
	}
}

// A sequence whose answer is whole claims no more while its grammar has yet to say whether it is complete.
func TestClaimDoesNotGrowWithTheAnswer(t *testing.T) {
	cfg := testConfig(Unified, 1, 400)
	slidingWindow(&cfg, 8, 41)
	s, err := New(cfg, Deps{Executor: newTapeOf(cfg), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	const prompt, maxNew = 3, 3
	q := &sequence{
		req: &request.Request{Sampling: request.Sampling{MaxNewTokens: maxNew}}, prompt: prompt, tokens: testPrompt(prompt, 0), state: statePrefilling,
	}
	before := s.claim(q)
	for range maxNew {
		q.computed, q.state = len(q.tokens), stateRunning
		q.tokens = append(q.tokens, 1)
		if after := s.claim(q); after > before {
			t.Errorf("with %d of %d new tokens %d pages are claimed, %d before", len(q.tokens)-prompt, maxNew, after, before)
		}
	}
}
