package runner

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

// TestPromptLogprobs: however the prompt is cut, and from wherever they are wanted, each position's are the same bits; and
// they are those of the token as an answer.
func TestPromptLogprobs(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newRunner(t, Config{ModelDir: seededModel(t, model.SeededOptions{Layers: 2, VocabSize: 300, Seed: 4}), PageSize: 4, MaxTotalTokens: 256})
	g := generation{prompt: countUp(3, 9), params: greedy}
	const n = 20
	g.alone(t, r, n)
	tokens := g.prompt
	for _, s := range g.sampled {
		tokens = append(tokens[:len(tokens):len(tokens)], s.Token)
	}
	score := func(want *request.WantLogprobs, cut func(left int) int) (list []request.TokenLogprobs) {
		for start := 0; start < len(tokens); {
			end := start + cut(len(tokens)-start)
			row := scheduler.Row{
				Tokens: tokens[start:end], Start: start, Pages: countUp(0, 20), Params: greedy, Sample: end == len(tokens), History: tokens, PromptTokens: len(tokens), Logprobs: want,
			}
			got := execute(t, r, row)[0]
			start = end
			if got.Logprobs == nil {
				if row.Sample || end > want.PromptFrom {
					t.Fatalf("nothing is told of [%d, %d)", row.Start, end)
				}
				continue
			}
			if (got.Logprobs.Sampled != nil) != row.Sample {
				t.Fatalf("a row that samples %t has %+v", row.Sample, got.Logprobs.Sampled)
			}
			list = append(list, got.Logprobs.Prompt...)
		}
		return list
	}
	whole := score(&request.WantLogprobs{Top: 3, TokenIDs: []int32{7}, PromptFrom: 1}, func(left int) int { return left })
	if len(whole) != len(tokens)-1 {
		t.Fatalf("%d positions, want %d", len(whole), len(tokens)-1)
	}
	for i, l := range whole {
		if l.Token != tokens[i+1] || len(l.Top) != 3 || l.Asked[0].Token != 7 {
			t.Errorf("position %d is %+v, want token %d", i+1, l, tokens[i+1])
		}
	}
	for i, s := range g.sampled {
		at := whole[len(g.prompt)-1+i]
		if at.Logprob != s.Logprob || at.Top[0] != at.TokenLogprob {
			t.Errorf("answer token %d: logprob %v as an answer, %+v as a prompt", i, s.Logprob, at)
		}
	}
	for range 20 {
		from := 1 + random.IntN(len(tokens)-1)
		got := score(&request.WantLogprobs{Top: 3, TokenIDs: []int32{7}, PromptFrom: from}, func(left int) int { return 1 + random.IntN(left) })
		if diff := cmp.Diff(whole[from-1:], got); diff != "" {
			t.Fatalf("from %d, in chunks (-whole +got)\n%s", from, diff)
		}
	}
}

// TestFuturePenalties: a token that the scheduler has not seen yet is penalised like one that it has.
func TestFuturePenalties(t *testing.T) {
	r := newRunner(t, Config{ModelDir: seededModel(t, model.SeededOptions{Layers: 2, VocabSize: 300, Seed: 4}), PageSize: 4, MaxTotalTokens: 256})
	params := &request.Sampling{TopP: 1, FrequencyPenalty: 1, RepetitionPenalty: 1.5}
	prompt := countUp(3, 7)
	answer := func(future bool) (tokens []int32) {
		history := prompt
		for i := range 12 {
			row := scheduler.Row{Tokens: history, Pages: countUp(0, 20), Sample: true, Params: params, Index: i, History: history, PromptTokens: len(prompt)}
			if i > 0 {
				row.Start = len(history) - 1
				row.Tokens = history[row.Start:]
			}
			if i > 0 && future {
				row.Tokens, row.Future, row.History = nil, true, history[:row.Start]
			}
			token := execute(t, r, row)[0].Token
			tokens, history = append(tokens, token), append(history[:len(history):len(history)], token)
		}
		return tokens
	}
	seen := answer(false)
	if diff := cmp.Diff(seen, answer(true)); diff != "" {
		t.Errorf("(-seen +future)\n%s", diff)
	}
	times := map[int32]int{}
	for _, token := range seen {
		if times[token]++; times[token] > 2 {
			t.Errorf("token %d comes again and again: %v", token, seen)
		}
	}
}
