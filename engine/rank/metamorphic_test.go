package rank

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sluice-dev/sluice/engine/request"
)

// got is what a request gets: the tokens, what is told about them and about its prompt, and how it ends.
type got struct {
	Tokens           []int32
	Logprobs, Prompt []request.TokenLogprobs
	Outcome          request.Outcome
}

func read(t *testing.T, s *Stream) (g got) {
	t.Helper()
	for {
		o, err := s.Recv(waiting(t))
		if err != nil {
			t.Fatal(err)
		}
		g.Tokens, g.Logprobs, g.Prompt = append(g.Tokens, o.TokenIDs...), append(g.Logprobs, o.Logprobs...), append(g.Prompt, o.PromptLogprobs...)
		if o.Finish != nil {
			g.Outcome = o.Finish.Outcome
			return g
		}
	}
}

// TestSameTokensUnderEveryConfiguration: with the real model, what a request gets does not depend on how it is scheduled.
func TestSameTokensUnderEveryConfiguration(t *testing.T) {
	dir := seededModel(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	requests := func() (reqs []*request.Request) {
		rng := rand.New(rand.NewPCG(seed, 0))
		for i := range 16 {
			r := newRequest(fmt.Sprint("r", i), prompt(1+rng.IntN(150)), 1+rng.IntN(40))
			if i%2 == 1 {
				r.Sampling.Temperature, r.Sampling.TopP, r.Sampling.Seed = 1, 0.9, new(int64(i))
			}
			switch n := len(r.PromptIDs); i % 5 {
			case 1:
				r.Sampling.FrequencyPenalty, r.Sampling.RepetitionPenalty = 0.5, 1.1
			case 2:
				r.Logprobs = &request.WantLogprobs{Top: 2, TokenIDs: []int32{7}}
				if n > 1 {
					r.Logprobs.PromptFrom = 1 + rng.IntN(n-1)
				}
			case 3:
				r.Grammar = &request.Grammar{Kind: request.GrammarRegex, Source: "[a-f]*(, [a-f]+)*"}
			}
			reqs = append(reqs, r)
		}
		return reqs
	}
	configs := []struct {
		name   string
		change func(*Config)
	}{
		{"alone", func(c *Config) { c.MaxRunningRequests = 1 }},
		{"page 1", func(c *Config) { c.PageSize = 1 }},
		{"page 64", func(c *Config) { c.PageSize = 64 }},
		{"no chunks", func(c *Config) { c.ChunkedPrefillSize = -1 }},
		{"chunks of 17", func(c *Config) { c.ChunkedPrefillSize = 17 }},
		{"three at a time", func(c *Config) { c.MaxRunningRequests = 3 }},
		{"tight memory", func(c *Config) { c.MaxTotalTokens = 208 }},
		{"forced retraction", func(c *Config) { c.TestRetractSteps = 2; c.ChunkedPrefillSize = 33 }},
		{"no overlap", func(c *Config) { c.DisableOverlapSchedule = true }},
		{"no overlap, retraction", func(c *Config) { c.DisableOverlapSchedule, c.TestRetractSteps = true, 3 }},
		{"mixed", func(c *Config) { c.EnableMixedChunk, c.ChunkedPrefillSize = true, 40 }},
		{"two threads", func(c *Config) { c.Threads = 2 }},
	}
	var want map[string]got
	for _, tt := range configs {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(dir)
			tt.change(&cfg)
			c := startClient(t, startKinds[0], cfg)
			streams := map[string]*Stream{}
			for _, r := range requests() {
				streams[r.RID] = submit(t, c, r)
			}
			answers := map[string]got{}
			for rid, s := range streams {
				answers[rid] = read(t, s)
			}
			if want == nil {
				want = answers
			}
			if diff := cmp.Diff(want, answers, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-alone +here):\n%s", diff)
			}
			l := loadOf(t, c)
			if l.NumUsedTokens != 0 {
				t.Errorf("%d tokens are used after the end", l.NumUsedTokens)
			}
		})
	}
}
