package scheduler

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestRefusals: what can't be computed ends before it holds anything, with the field and the remedy, and harms nobody.
func TestRefusals(t *testing.T) {
	nan := float32(math.NaN())
	tests := []struct {
		name, reason string
		role         Role
		window       bool
		change       func(*request.Request)
		want         *request.Finish // nil: it is served
	}{
		{name: "empty", reason: "there is nothing to begin from", change: func(r *request.Request) { r.PromptIDs = nil },
			want: &request.Finish{Outcome: request.OutcomeInvalid, Message: "the prompt has no tokens: send at least one"}},
		{name: "negative id", reason: "it would read outside the embedding", change: func(r *request.Request) { r.PromptIDs = []int32{1, -1} },
			want: &request.Finish{Outcome: request.OutcomeInvalid, Message: "input_ids[1] is -1: token ids of this model are 0 to 999"}},
		{name: "large id", reason: "so would this", change: func(r *request.Request) { r.PromptIDs = []int32{testVocab} },
			want: &request.Finish{Outcome: request.OutcomeInvalid, Message: "input_ids[0] is 1000: token ids of this model are 0 to 999"}},
		{name: "no number", reason: "no token would be right", change: func(r *request.Request) { r.Sampling.Temperature = nan },
			want: &request.Finish{Outcome: request.OutcomeInvalid, Message: "temperature is not a number: give 0 or more"}},
		{name: "too long", reason: "no pool would ever hold it with a token of its answer", change: func(r *request.Request) { r.PromptIDs = testPrompt(64, 1) },
			want: &request.Finish{Outcome: request.OutcomeTooLong, Message: "the prompt has 64 tokens, but this engine serves at most 63 " +
				"(context length 1048576, KV capacity 64, one token for the answer): shorten the prompt"}},
		{name: "no peer", reason: "a half can't be served alone", role: Decode, change: func(*request.Request) {},
			want: &request.Finish{Outcome: request.OutcomeBootstrapFailed, Message: "a decode engine serves requests with bootstrap_host, " +
				"bootstrap_port and bootstrap_room: send the request through the router"}},
		{name: "longest", reason: "the edge is served", change: func(r *request.Request) { r.PromptIDs = testPrompt(63, 1) }},
		{name: "endless", reason: "the pool ends it", change: func(r *request.Request) { r.Sampling.MaxNewTokens, r.Sampling.MinNewTokens = math.MaxInt, math.MaxInt }},
		{name: "endless in a window", reason: "so does the context", window: true, change: func(r *request.Request) { r.Sampling.MaxNewTokens = math.MaxInt }},
		{name: "nothing asked", reason: "at least one token comes", change: func(r *request.Request) { r.Sampling.MaxNewTokens = 0 }},
		{name: "seed", reason: "any 64 bits are a seed", change: func(r *request.Request) { r.Sampling.Seed = new(int64(math.MinInt64)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(tt.role, 4, 64)
			if tt.window {
				slidingWindow(&cfg, 9, 16)
			}
			s, err := New(cfg, Deps{
				Executor: newTapeOf(cfg), Clock: stillClock(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(),
				Sender: wireSender{newWire(4)}, Receiver: wireReceiver{newWire(4)},
			})
			if err != nil {
				t.Fatal(err)
			}
			s.checked = true
			begin(t, s)
			r := &request.Request{RID: "a", PromptIDs: testPrompt(3, 1), Sampling: request.Sampling{MaxNewTokens: 2, IgnoreEOS: true}}
			tt.change(r)
			sink := newSink()
			if err := s.Submit(r, sink); err != nil {
				t.Fatal(err)
			}
			for range 70 { // more steps than the pool has tokens
				if _, err := s.turn(); err != nil {
					t.Fatal(err)
				}
			}
			if sink.finish == nil {
				t.Fatalf("%s: it never ended", tt.reason)
			}
			if tt.want == nil {
				if sink.finish.Outcome != request.OutcomeLength || len(sink.tokens) == 0 || len(r.PromptIDs)+len(sink.tokens) > 64 {
					t.Errorf("%s: finish is %v after %d tokens", tt.reason, sink.finish, len(sink.tokens))
				}
				return
			}
			want := *tt.want
			want.Type = request.FinishAbort
			if diff := cmp.Diff(want, apart(*sink.finish)); diff != "" || len(sink.tokens) > 0 {
				t.Errorf("%s: %d tokens, finish (-want +got):\n%s", tt.reason, len(sink.tokens), diff)
			}
		})
	}
}
