package runner

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

func TestExecuteRefusesRowsThatAreNotWhole(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Hidden: 16, Layers: 1, Heads: 2, VocabSize: 50, ContextLength: 40})
	r := newRunner(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 43})
	good := scheduler.Row{Tokens: []int32{1, 2}, Pages: []int32{9}}
	tests := []struct {
		name, reason string
		rows         []scheduler.Row
		want         *RowError // nil: accepted
	}{
		{"good", "two tokens in the last page of 10", []scheduler.Row{good}, nil},
		{"shared prefix", "full pages may be read by many rows", []scheduler.Row{
			{Tokens: []int32{1}, Start: 4, Pages: []int32{0, 1}}, {Tokens: []int32{1}, Start: 4, Pages: []int32{0, 2}},
		}, nil},
		{"rest of the table", "entries behind the tokens aren't looked at", []scheduler.Row{{Tokens: []int32{1}, Pages: []int32{0, -7, 999}}}, nil},
		{"no tokens", "", []scheduler.Row{good, {Pages: []int32{1}}}, &RowError{1, "Tokens", "is empty: want at least one"}},
		{"token", "outside the vocabulary", []scheduler.Row{{Tokens: []int32{1, 50}, Pages: []int32{1}}}, &RowError{0, "Tokens", "[1] is 50: want 0 to 49"}},
		{"negative start", "", []scheduler.Row{{Tokens: []int32{1}, Start: -1, Pages: []int32{1}}},
			&RowError{0, "Start", "is -1 with 1 tokens: want 0 or more, and at most the context of 40 in all"}},
		{"beyond the context", "", []scheduler.Row{{Tokens: []int32{1}, Start: 40, Pages: countUp(0, 10)}},
			&RowError{0, "Start", "is 40 with 1 tokens: want 0 or more, and at most the context of 40 in all"}},
		{"short table", "", []scheduler.Row{{Tokens: []int32{1, 1, 1}, Start: 2, Pages: []int32{1}}},
			&RowError{0, "Pages", "holds 1: want at least 2 for 5 tokens in pages of 4"}},
		{"page that isn't there", "43 tokens are 10 whole pages", []scheduler.Row{{Tokens: []int32{1}, Pages: []int32{10}}}, &RowError{0, "Pages", "[0] is 10: want 0 to 9"}},
		{"negative page", "", []scheduler.Row{{Tokens: []int32{1}, Pages: []int32{-1}}}, &RowError{0, "Pages", "[0] is -1: want 0 to 9"}},
		{"two writers", "", []scheduler.Row{good, {Tokens: []int32{1}, Pages: []int32{9}}},
			&RowError{1, "Pages", "[0] is page 9, which is used twice in this step while a row writes it"}},
		{"reader of a written page", "", []scheduler.Row{good, {Tokens: []int32{1}, Start: 4, Pages: []int32{9, 1}}},
			&RowError{1, "Pages", "[0] is page 9, which is used twice in this step while a row writes it"}},
		{"writer of a read page", "", []scheduler.Row{{Tokens: []int32{1}, Start: 4, Pages: []int32{9, 1}}, good},
			&RowError{1, "Pages", "[0] is page 9, which is used twice in this step while a row writes it"}},
		{"own page twice", "", []scheduler.Row{{Tokens: []int32{1}, Start: 4, Pages: []int32{1, 1}}},
			&RowError{0, "Pages", "[1] is page 1, which is used twice in this step while a row writes it"}},
		{"no params", "", []scheduler.Row{{Tokens: []int32{1}, Pages: []int32{1}, Sample: true}}, &RowError{0, "Params", "is nil: want it where Sample is set"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := r.Execute(context.Background(), test.rows, nil)
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

func TestExecuteLooksAtTheContextOnce(t *testing.T) {
	r := newRunner(t, Config{ModelDir: seededModel(t, model.SeededOptions{Hidden: 16, Layers: 2, Heads: 2, VocabSize: 50}), PageSize: 4, MaxTotalTokens: 40})
	row := scheduler.Row{Tokens: []int32{1}, Pages: []int32{0}, Sample: true, Params: greedy}
	ctx, cancel := context.WithCancel(context.Background())
	layers := 0
	if _, err := r.Execute(ctx, []scheduler.Row{row}, func(int) { layers++; cancel() }); err != nil || layers != 2 {
		t.Errorf("cancelled in a step: %d layers, error %v; want the step finished", layers, err)
	}
	if _, err := r.Execute(ctx, []scheduler.Row{row}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before a step: error %v", err)
	}
	if got, err := r.Execute(context.Background(), nil, nil); got != nil || err != nil {
		t.Errorf("no rows: %v, %v", got, err)
	}
}

func TestExecuteRefusesWindowsThatAreNotWhole(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Arch: "ministral", SlidingWindow: 5, Hidden: 16, Layers: 2, Heads: 2, VocabSize: 50, ContextLength: 60})
	r := newRunner(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 40}) // 10 pages, 8 of windows
	good := scheduler.Row{Tokens: []int32{1, 2}, Start: 8, Pages: []int32{0, 1, 2}, Window: []int32{-1, 1, 2}}
	with := func(change func(*scheduler.Row)) scheduler.Row {
		row := good
		change(&row)
		return row
	}
	tests := []struct {
		name, reason string
		rows         []scheduler.Row
		want         *RowError // nil: accepted
	}{
		{"good", "position 8 looks at 4 to 8: the first page is gone", []scheduler.Row{good}, nil},
		{"page not gone", "an entry that isn't looked at may be anything", []scheduler.Row{with(func(row *scheduler.Row) { row.Window = []int32{999, 1, 2} })}, nil},
		{"needed page gone", "position 7 looks at 3", []scheduler.Row{with(func(row *scheduler.Row) { row.Start = 7 })},
			&RowError{0, "Window", "[0] is -1: want 0 to 7"}},
		{"no window", "", []scheduler.Row{with(func(row *scheduler.Row) { row.Window = nil })},
			&RowError{0, "Window", "holds 0: want at least 3 for 10 tokens in pages of 4"}},
		{"beyond the pool", "the pool of windows is smaller", []scheduler.Row{with(func(row *scheduler.Row) { row.Window = []int32{-1, 1, 8} })},
			&RowError{0, "Window", "[2] is 8: want 0 to 7"}},
		{"two writers", "their full pages differ", []scheduler.Row{good, with(func(row *scheduler.Row) { row.Pages, row.Window = []int32{3, 4, 5}, []int32{-1, 3, 2} })},
			&RowError{1, "Window", "[2] is page 2, which is used twice in this step while a row writes it"}},
		{"shared prefix", "", []scheduler.Row{good, with(func(row *scheduler.Row) { row.Pages, row.Window = []int32{0, 1, 5}, []int32{-1, 1, 3} })}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := r.Execute(context.Background(), test.rows, nil)
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
