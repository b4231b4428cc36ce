package bench

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// busyLoad uses everything that a plan can hold.
func busyLoad() Load {
	return Load{
		Requests: 400, Rate: 20, Arrivals: Poisson, Input: Dist{Kind: Uniform, A: 20, B: 60, Min: 1}, Output: Dist{Kind: Fixed, A: 8, Min: 1},
		PrefixRatio: 0.5, PrefixGroups: 4, Priorities: Priorities{{Value: 0, Weight: 3}, {Value: 10, Weight: 1}},
		CancelShare: 0.25, CancelMillis: Dist{Kind: Uniform, A: 10, B: 90}, Seed: 3,
	}
}

func TestPlanIsAFunctionOfTheLoad(t *testing.T) {
	load := busyLoad()
	whole := Plan(load, 0, load.Requests)
	if len(whole) != load.Requests {
		t.Fatalf("%d requests, want %d", len(whole), load.Requests)
	}
	if diff := cmp.Diff(whole, Plan(load, 0, load.Requests)); diff != "" {
		t.Errorf("the same load gives another plan:\n%s", diff)
	}
	var parts []Request
	for from := 0; from < load.Requests; from += 37 {
		parts = append(parts, Plan(load, from, from+37)...)
	}
	if diff := cmp.Diff(whole, parts); diff != "" {
		t.Errorf("planned in parts it is another plan:\n%s", diff)
	}
	other := load
	other.Seed++
	if cmp.Equal(whole, Plan(other, 0, load.Requests)) {
		t.Error("another seed gives the same plan")
	}
}

// TestPlanChangesWhereAsked changes one flag and looks whether the rest of the plan stays.
func TestPlanChangesWhereAsked(t *testing.T) {
	base := Plan(busyLoad(), 0, 400)
	load := busyLoad()
	load.Priorities, load.CancelShare, load.PrefixRatio, load.Rate = nil, 0, 0, 0
	plain := Plan(load, 0, 400)
	for i := range plain {
		want := base[i]
		want.Priority, want.Cancel, want.PrefixTokens, want.Group, want.At = nil, nil, 0, 0, 0
		if diff := cmp.Diff(want, plain[i]); diff != "" {
			t.Fatalf("request %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestPlanMix(t *testing.T) {
	load := busyLoad()
	load.Requests = 20_000
	groups, high, cancelled := make([]int, 4), 0, 0
	for _, r := range Plan(load, 0, load.Requests) {
		if r.InputTokens < 20 || r.InputTokens > 60 || r.OutputTokens != 8 {
			t.Fatalf("lengths %d and %d", r.InputTokens, r.OutputTokens)
		}
		if want := int(math.Round(float64(r.InputTokens) / 2)); r.PrefixTokens != want {
			t.Fatalf("prefix of %d tokens of %d, want %d", r.PrefixTokens, r.InputTokens, want)
		}
		groups[r.Group]++
		if *r.Priority == 10 {
			high++
		}
		if r.Cancel != nil {
			cancelled++
			if r.Cancel.After < 10*time.Millisecond || r.Cancel.After > 90*time.Millisecond {
				t.Fatalf("cancelled after %v", r.Cancel.After)
			}
		}
	}
	near := func(what string, got int, want float64) {
		if math.Abs(float64(got)-want*20_000) > 400 {
			t.Errorf("%s: %d of 20000, want a share of %.2f", what, got, want)
		}
	}
	near("priority 10", high, 0.25)
	near("cancelled", cancelled, 0.25)
	for _, count := range groups {
		near("a group", count, 0.25)
	}
}

func TestArrivals(t *testing.T) {
	tests := []struct {
		name, reason string
		arrivals     Arrivals
		burstiness   float64
		variation    float64 // deviation ÷ mean of the gaps
	}{
		{name: "constant", reason: "even gaps", arrivals: Constant},
		{name: "poisson", reason: "exponential gaps", arrivals: Poisson, variation: 1},
		{name: "regular", reason: "shape 4", arrivals: Gamma, burstiness: 4, variation: 0.5},
		{name: "as poisson", reason: "shape 1 is exponential", arrivals: Gamma, burstiness: 1, variation: 1},
		{name: "bursts", reason: "shape 1/4", arrivals: Gamma, burstiness: 0.25, variation: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const n = 50_000
			load := Load{Requests: n, Rate: 10, Arrivals: tt.arrivals, Burstiness: tt.burstiness, Seed: 5}
			plan := Plan(load, 0, n)
			var gaps []float64
			for i := 1; i < n; i++ {
				gaps = append(gaps, (plan[i].At - plan[i-1].At).Seconds())
			}
			d := describe(gaps)
			if math.Abs(d.Mean-0.1) > 0.004 {
				t.Errorf("%s: mean gap %.4f s, want 0.1", tt.reason, d.Mean)
			}
			if got := d.SD / d.Mean; math.Abs(got-tt.variation) > 0.05*tt.variation+1e-6 {
				t.Errorf("%s: variation %.3f, want %.3f", tt.reason, got, tt.variation)
			}
		})
	}
}

func TestPlanEndsWithTime(t *testing.T) {
	load := Load{Duration: time.Second, Rate: 100, Arrivals: Constant}
	if got := len(Plan(load, 0, 1<<30)); got != 100 {
		t.Errorf("%d requests in one second at 100 a second", got)
	}
	load.Requests = 30
	if got := len(Plan(load, 0, 1<<30)); got != 30 {
		t.Errorf("%d requests, want the 30 that were asked for", got)
	}
}

func TestPlanOfCorpus(t *testing.T) {
	load := Load{Requests: 5, Concurrency: 1, Output: Dist{Kind: Fixed, A: 9}, Corpus: []Prompt{{Text: "a"}, {Text: "b", OutputTokens: 3}}}
	type pair struct{ Corpus, OutputTokens int }
	var got []pair
	for _, r := range Plan(load, 0, 5) {
		got = append(got, pair{r.Corpus, r.OutputTokens})
	}
	if diff := cmp.Diff([]pair{{0, 9}, {1, 3}, {0, 9}, {1, 3}, {0, 9}}, got); diff != "" {
		t.Errorf("in order and over again (-want +got):\n%s", diff)
	}
}

func TestValidate(t *testing.T) {
	good := busyLoad()
	if err := good.Validate(); err != nil {
		t.Fatalf("the busy load: %v", err)
	}
	tests := []struct {
		name  string
		wrong func(*Load)
		err   string
	}{
		{"endless", func(l *Load) { l.Requests = 0 }, "--num-prompts and --duration are both 0"},
		{"no loop", func(l *Load) { l.Rate = 0 }, "neither --request-rate nor --max-concurrency"},
		{"negative", func(l *Load) { l.Requests = -1 }, "--num-prompts is -1"},
		{"rate", func(l *Load) { l.Rate = math.Inf(1) }, "--request-rate is +Inf"},
		{"arrivals", func(l *Load) { l.Arrivals = "weekly" }, `--arrivals is "weekly"`},
		{"burstiness", func(l *Load) { l.Arrivals = Gamma }, "--burstiness is 0"},
		{"prefix", func(l *Load) { l.PrefixRatio = 1.5 }, "--prefix-ratio is 1.5"},
		{"not a number", func(l *Load) { l.PrefixRatio = math.NaN() }, "--prefix-ratio is NaN"},
		{"groups", func(l *Load) { l.PrefixGroups = 0 }, "--prefix-groups is 0"},
		{"cancel", func(l *Load) { l.CancelShare = -0.1 }, "--cancel is -0.1"},
		{"corpus", func(l *Load) { l.Corpus = []Prompt{{Text: "a"}} }, "leave it or --prompts out"},
	}
	for _, tt := range tests {
		load := busyLoad()
		tt.wrong(&load)
		if err := load.Validate(); err == nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.err)
		}
	}
}

func TestParsePriorities(t *testing.T) {
	got, err := ParsePriorities("0:0.9, 10:0.1,-5")
	if diff := cmp.Diff(Priorities{{0, 0.9}, {10, 0.1}, {-5, 1}}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	for _, text := range []string{"", "a", "1:0", "1:-1", "1:NaN", "1:x", "1.5"} {
		if _, err := ParsePriorities(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
