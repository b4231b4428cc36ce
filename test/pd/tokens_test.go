package pd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestSameTokens compares prefill + decode behind a router with a unified engine, token for token, over page sizes, chunk
// sizes and prompt lengths around the page boundaries, many requests at once.
func TestSameTokens(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const newTokens = 12
	unified := startEngine(t, "", engineOptions{model: tiny, pageSize: 16, chunk: 2048})
	for _, o := range []engineOptions{
		{pageSize: 1, chunk: 2048},
		{pageSize: 4, chunk: 16},
		{pageSize: 16, chunk: 2048},
		{pageSize: 16, chunk: 24}, // a chunk ends in the middle of a page
		{pageSize: 32, chunk: 32},
		{pageSize: 64, chunk: -1},
	} {
		t.Run(fmt.Sprintf("page=%d,chunk=%d", o.pageSize, o.chunk), func(t *testing.T) {
			o.model = tiny
			prefill, decode := startEngine(t, "prefill", o), startEngine(t, "decode", o)
			router := startRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode})
			rng := rand.New(rand.NewPCG(seed, uint64(o.pageSize)))
			var lengths []int
			for _, pages := range []int{1, 2, 3, 5} {
				n := pages * o.pageSize
				lengths = append(lengths, n-1, n, n+1)
			}
			lengths = append(lengths, 1, 2, 100, 333)
			lengths = slices.DeleteFunc(lengths, func(n int) bool { return n < 1 })
			var wg sync.WaitGroup
			free := make(chan struct{}, 8)
			for i, n := range lengths {
				prompt := make([]int32, n)
				for j := range prompt {
					prompt[j] = int32(10 + rng.IntN(480))
				}
				if i%3 == 2 { // a common beginning, which the radix cache may share
					copy(prompt, slices.Repeat([]int32{77, 78, 79}, 40))
				}
				wg.Go(func() {
					free <- struct{}{}
					defer func() { <-free }()
					want, err := generate(t.Context(), unified.URL, prompt, newTokens)
					if err != nil {
						t.Errorf("unified, %d tokens: %v", n, err)
						return
					}
					got, err := generate(t.Context(), router, prompt, newTokens)
					if err != nil {
						t.Errorf("prefill and decode, %d tokens: %v", n, err)
						return
					}
					if !slices.Equal(got.OutputIDs, want.OutputIDs) || len(got.OutputIDs) != newTokens || got.Text != want.Text {
						t.Errorf("prompt of %d tokens: prefill and decode give %v, unified gives %v", n, got.OutputIDs, want.OutputIDs)
					}
				})
			}
			wg.Wait()
			prefill.Idle(t)
			decode.Idle(t)
		})
	}
}
