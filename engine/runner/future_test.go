package runner

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

// TestFutureRows decodes two sequences of which only the prompts' tokens are ever passed, their rows changing places, and
// compares with what they give alone.
func TestFutureRows(t *testing.T) {
	const n = 9
	dir := seededModel(t, model.SeededOptions{Layers: 2, VocabSize: 300, Seed: 4})
	r := newRunner(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 256})
	generations := []*generation{{prompt: countUp(3, 7), params: greedy}, {prompt: countUp(100, 20), params: greedy}}
	for _, g := range generations {
		g.alone(t, r, n)
	}
	pages := [][]int32{countUp(0, 20), countUp(20, 20)}
	places := []int{0, 1} // the row of each sequence in the last step
	var got [2][]scheduler.Sampled
	for i := range n {
		next := []int{i % 2, 1 - i%2}
		rows := make([]scheduler.Row, 2)
		for s, g := range generations {
			row := scheduler.Row{Tokens: g.prompt, Pages: pages[s], Sample: true, Params: greedy, Index: i}
			if i > 0 {
				row.Tokens, row.Start, row.Future, row.PreviousRow = nil, len(g.prompt)+i-1, true, places[s]
			}
			rows[next[s]] = row
		}
		sampled := execute(t, r, rows...)
		for s := range generations {
			got[s] = append(got[s], sampled[next[s]])
		}
		places = next
	}
	for s, g := range generations {
		if diff := cmp.Diff(g.sampled, got[s]); diff != "" {
			t.Errorf("sequence %d (-alone +got):\n%s", s, diff)
		}
	}
}

func TestExecuteRefusesFuturesWithoutAPast(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Hidden: 16, Layers: 1, Heads: 2, VocabSize: 50, ContextLength: 40})
	prompt := scheduler.Row{Tokens: []int32{1, 2}, Pages: []int32{0}, Sample: true, Params: greedy}
	chunk := scheduler.Row{Tokens: []int32{1, 2}, Pages: []int32{1}}
	future := func(previous int) scheduler.Row {
		return scheduler.Row{Future: true, PreviousRow: previous, Start: 2, Pages: []int32{0}, Sample: true, Params: greedy}
	}
	tests := []struct {
		name, reason string
		before       []scheduler.Row
		row          scheduler.Row
		want         *RowError // nil: accepted
	}{
		{"good", "", []scheduler.Row{chunk, prompt}, future(1), nil},
		{"first step", "there is no step before", nil, future(0), &RowError{0, "PreviousRow", "is 0: the step before had 0 rows"}},
		{"too large", "", []scheduler.Row{prompt}, future(1), &RowError{0, "PreviousRow", "is 1: the step before had 1 rows"}},
		{"negative", "", []scheduler.Row{prompt}, future(-1), &RowError{0, "PreviousRow", "is -1: the step before had 1 rows"}},
		{"nothing sampled", "a chunk in the middle of a prompt", []scheduler.Row{chunk, prompt}, future(0),
			&RowError{0, "PreviousRow", "is 0, which sampled no token in the step before"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRunner(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 43})
			if test.before != nil {
				execute(t, r, test.before...)
			}
			_, err := r.Execute(context.Background(), []scheduler.Row{test.row}, nil)
			var got *RowError
			if err != nil && !errors.As(err, &got) {
				t.Fatalf("error %v: want a *RowError", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}
