package runner

import (
	"context"
	"slices"
	"testing"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

var greedy = &request.Sampling{TopP: 1}

// seededModel writes a small model and gives its folder.
func seededModel(t testing.TB, options model.SeededOptions) string {
	t.Helper()
	dir := t.TempDir()
	if err := model.WriteSeeded(dir, options); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newRunner(t testing.TB, cfg Config) *Runner {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func execute(t testing.TB, r *Runner, rows ...scheduler.Row) []scheduler.Sampled {
	t.Helper()
	got, err := r.Execute(context.Background(), rows, nil)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// countUp gives the page table [from, from+n).
func countUp(from, n int) []int32 {
	pages := make([]int32, n)
	for i := range pages {
		pages[i] = int32(from + i)
	}
	return pages
}

func TestGreedyOutputVaries(t *testing.T) {
	r := newRunner(t, Config{ModelDir: seededModel(t, model.SeededOptions{Seed: 1}), PageSize: 16, MaxTotalTokens: 1024})
	const n = 200
	outputs := map[int32][]int32{}
	for _, prompt := range [][]int32{{1, 2, 3}, {3, 2, 3}, {7}} {
		tokens := prompt
		var output []int32
		start := 0
		for range n {
			got := execute(t, r, scheduler.Row{Tokens: tokens, Start: start, Pages: countUp(0, 16), Sample: true, Params: greedy})
			start += len(tokens)
			tokens = []int32{got[0].Token}
			output = append(output, got[0].Token)
		}
		distinct := slices.Compact(slices.Sorted(slices.Values(output)))
		t.Logf("prompt %v: %d distinct of %d: %v", prompt, len(distinct), n, output[:20])
		if len(distinct) < n/3 {
			t.Errorf("prompt %v: only %d distinct tokens of %d: %v", prompt, len(distinct), n, output)
		}
		outputs[prompt[0]] = output
	}
	if slices.Equal(outputs[1], outputs[3]) {
		t.Error("prompts that differ in the first of three tokens give the same output")
	}
}
