package rank

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/request"
)

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
		{"two threads", func(c *Config) { c.Threads = 2 }},
	}
	var want map[string][]int32
	for _, tt := range configs {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(dir)
			tt.change(&cfg)
			c := startClient(t, startKinds[0], cfg)
			streams := map[string]*Stream{}
			for _, r := range requests() {
				streams[r.RID] = submit(t, c, r)
			}
			got := map[string][]int32{}
			for rid, s := range streams {
				tokens, f := answer(t, s)
				if f.Outcome != request.OutcomeLength {
					t.Errorf("%s ends with %v", rid, f)
				}
				got[rid] = tokens
			}
			if want == nil {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-alone +here):\n%s", diff)
			}
			l := loadOf(t, c)
			if l.NumUsedTokens != 0 {
				t.Errorf("%d tokens are used after the end", l.NumUsedTokens)
			}
		})
	}
}
