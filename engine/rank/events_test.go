package rank

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-dev/sluice/engine/rank/rankpb"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestEvents: outputs of any length go out in events that are short enough, and joined again they are what they were.
func TestEvents(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	positions := func(n, wide int) []request.TokenLogprobs {
		list := make([]request.TokenLogprobs, n)
		for i := range list {
			list[i].Token, list[i].Logprob = random.Int32(), -random.Float32()
			for range random.IntN(wide + 1) {
				list[i].Top = append(list[i].Top, request.TokenLogprob{Token: random.Int32(), Logprob: -1})
				list[i].Asked = append(list[i].Asked, request.TokenLogprob{Token: random.Int32(), Logprob: -2})
			}
		}
		return list
	}
	const mostBytes, wide = 4000, 20
	// A position may be longer than what is left, never than all.
	if n := positionBytes(positions(1, 0)[0]) + 2*wide*logprobBytes + 2*restBytes; n > mostBytes {
		t.Fatalf("a position takes %d bytes", n)
	}
	for range 30 {
		var outputs []request.Output
		want := map[string]*request.Output{}
		for i := range 1 + random.IntN(5) {
			o := request.Output{RID: strings.Repeat("r", i+1), PromptTokens: 7, CachedTokens: 3, Retractions: 1}
			if random.IntN(2) == 0 {
				o.PromptLogprobs = positions(random.IntN(100), wide)
			}
			for range random.IntN(100) {
				o.TokenIDs = append(o.TokenIDs, random.Int32())
			}
			if random.IntN(2) == 0 {
				o.Logprobs = positions(len(o.TokenIDs), wide)
			}
			o.CompletionTokens = len(o.TokenIDs) + random.IntN(9)
			if random.IntN(2) == 0 {
				o.Finish = &request.Finish{Type: request.FinishStop, MatchedStop: "stop"}
			}
			outputs, want[o.RID] = append(outputs, o), &o
		}
		got, before := map[string]*request.Output{}, map[string]int{}
		for rid, o := range want {
			before[rid] = o.CompletionTokens - len(o.TokenIDs)
		}
		for _, list := range events(slices.Clone(outputs), mostBytes) {
			e := &rankpb.Event{Outputs: each(list, outputToWire)}
			if n := proto.Size(e); n > mostBytes {
				t.Errorf("an event of %d outputs takes %d bytes, more than %d", len(list), n, mostBytes)
			}
			for _, o := range list {
				if before[o.RID] += len(o.TokenIDs); o.CompletionTokens != before[o.RID] {
					t.Errorf("a piece has %d completion tokens, want %d", o.CompletionTokens, before[o.RID])
				}
				if got[o.RID] != nil && got[o.RID].Finish != nil {
					t.Error("a piece comes after the finish")
				}
				got[o.RID] = Join(got[o.RID], o)
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-outputs +joined pieces)\n%s", diff)
		}
	}
}

// TestLongOutputs: logprobs that together are longer than a message of the protocol reach the client.
func TestLongOutputs(t *testing.T) {
	cfg := testConfig(seededModel(t))
	cfg.ChunkedPrefillSize = -1
	c := startClient(t, startKinds[0], cfg)
	r := newRequest("a", prompt(300), 2)
	r.Logprobs = &request.WantLogprobs{TokenIDs: slices.Repeat([]int32{7}, maxMessageBytes/2000), PromptFrom: 1}
	if g := read(t, submit(t, c, r)); g.Outcome != request.OutcomeLength || len(g.Tokens) != 2 || len(g.Logprobs) != 2 || len(g.Prompt) != 299 {
		t.Errorf("%d tokens with %d logprobs and %d of the prompt, outcome %s", len(g.Tokens), len(g.Logprobs), len(g.Prompt), g.Outcome)
	}
}
