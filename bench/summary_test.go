package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestPercentiles compares with a twin that looks at every rank.
func TestPercentiles(t *testing.T) {
	naive := func(values []float64, p float64) float64 {
		sorted := slices.Clone(values)
		slices.Sort(sorted)
		at := p / 100 * float64(len(sorted)-1)
		for i := range sorted {
			if float64(i) >= at {
				if i == 0 || float64(i) == at {
					return sorted[i]
				}
				return sorted[i-1]*(float64(i)-at) + sorted[i]*(at-float64(i-1))
			}
		}
		return sorted[len(sorted)-1]
	}
	const seed = 4
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		values := make([]float64, 1+rng.IntN(120))
		for i := range values {
			values[i] = rng.ExpFloat64() * 100
		}
		d := describe(slices.Clone(values))
		for p, got := range map[float64]float64{0: d.Min, 50: d.P50, 90: d.P90, 95: d.P95, 99: d.P99, 100: d.Max} {
			if want := naive(values, p); math.Abs(got-want) > 1e-9*want {
				t.Fatalf("seed %d: p%v of %v is %v, want %v", seed, p, values, got, want)
			}
		}
	}
	if describe(nil) != nil {
		t.Error("no values have a distribution")
	}
}

func TestSummarize(t *testing.T) {
	at := func(d time.Duration) *time.Duration { return &d }
	count := func(n int) *int { return &n }
	result := &Result{
		Busy: []time.Duration{2 * time.Second, time.Second},
		Records: []Record{
			{Start: 0, Sent: 0, First: at(100 * ms), End: 300 * ms, Gaps: []time.Duration{120 * ms, 80 * ms}, InputTokens: 10, OutputTokens: 5,
				Counted: true, CachedTokens: count(4), Priority: count(0), Outcome: Completed},
			{Start: 100 * ms, Sent: 120 * ms, First: at(400 * ms), End: 500 * ms, Gaps: []time.Duration{100 * ms}, InputTokens: 30, OutputTokens: 2,
				Priority: count(1), Outcome: Completed},
			{Start: 200 * ms, Sent: 200 * ms, First: at(250 * ms), End: 400 * ms, OutputTokens: 3, Priority: count(1), Outcome: Cancelled},
			{Start: 600 * ms, Sent: 600 * ms, End: 700 * ms, Outcome: Failed, Failure: "http 503", Message: "queue is full"},
			{Start: 700 * ms, Sent: 700 * ms, End: 800 * ms, Outcome: Failed, Failure: Refused, Message: "nobody"},
			{Start: 700 * ms, Sent: 700 * ms, End: 900 * ms, Outcome: Failed, Failure: Refused, Message: "nobody again"},
			{Start: 900 * ms, Sent: 900 * ms, End: 1000 * ms, Outcome: Interrupted},
			{Server: 1, Start: 0, Sent: 0, End: 500 * ms, Outcome: Completed},
		},
	}
	load := &Load{Rate: 5, Priorities: Priorities{{0, 1}, {1, 1}}}
	got := Summarize(result, 0, "http://a", load, Goal{TTFT: 200 * ms})

	one := func(v float64) *Distribution {
		return &Distribution{Count: 1, Mean: v, Min: v, P50: v, P90: v, P95: v, P99: v, Max: v}
	}
	two := func(a, b float64) *Distribution { return describe([]float64{a, b}) }
	goodput := 0.5
	want := Summary{
		URL: "http://a", Requests: 7, Completed: 2, Cancelled: 1, Interrupted: 1, Failed: 3,
		Errors:  []ErrorCount{{Kind: Refused, Count: 2, Example: "nobody"}, {Kind: "http 503", Count: 1, Example: "queue is full"}},
		Seconds: 2, RequestsPerSecond: 1, InputTokensPerSecond: 20, OutputTokensPerSecond: 5,
		InputTokens: 40, OutputTokens: 10, CachedTokens: count(4), WithoutUsage: 1, TokensPerGap: 5.0 / 3,
		ConcurrencyMean: (0.3 + 0.38 + 0.2 + 0.1 + 0.1 + 0.2 + 0.1) / 2, ConcurrencyPeak: 3,
		Latencies: Latencies{TTFT: two(100, 300), ITL: describe([]float64{80, 100, 120}), TPOT: two(50, 100), E2E: two(300, 400)},
		SendLag:   describe([]float64{0, 20, 0, 0, 0, 0, 0}),
		ByPriority: []PriorityLatencies{
			{Priority: 0, Completed: 1, Latencies: Latencies{TTFT: one(100), ITL: two(120, 80), TPOT: one(50), E2E: one(300)}},
			{Priority: 1, Completed: 1, Latencies: Latencies{TTFT: one(300), ITL: one(100), TPOT: one(100), E2E: one(400)}},
		},
		Goodput: &goodput,
	}
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(a)) })
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	closed := Summarize(result, 1, "http://b", &Load{Concurrency: 1}, Goal{})
	if closed.SendLag != nil || closed.Goodput != nil || closed.ByPriority != nil || closed.Requests != 1 {
		t.Errorf("a closed loop without a goal: %+v", closed)
	}
}

func TestGoal(t *testing.T) {
	first := 100 * ms
	r := Record{First: &first, End: 400 * ms, OutputTokens: 4} // TTFT 100, TPOT 100, E2E 400
	tests := []struct {
		name string
		goal Goal
		want bool
	}{
		{"none", Goal{}, true},
		{"exactly", Goal{TTFT: 100 * ms, TPOT: 100 * ms, E2E: 400 * ms}, true},
		{"TTFT", Goal{TTFT: 99 * ms}, false},
		{"TPOT", Goal{TPOT: 99 * ms}, false},
		{"E2E", Goal{TTFT: time.Second, E2E: 399 * ms}, false},
	}
	for _, tt := range tests {
		if got := tt.goal.met(&r); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if whole := (Record{End: 400 * ms}); !(Goal{TTFT: ms}).met(&whole) {
		t.Error("a time that does not exist misses its bound")
	}
}

// TestConcurrency compares the peak with a twin that looks at every instant.
func TestConcurrency(t *testing.T) {
	const seed = 6
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		var records []Record
		for range rng.IntN(30) {
			from := time.Duration(rng.IntN(50))
			records = append(records, Record{Sent: from, End: from + 1 + time.Duration(rng.IntN(20))})
		}
		want := 0
		for instant := range time.Duration(80) {
			now := 0
			for _, r := range records {
				if r.Sent <= instant && instant < r.End {
					now++
				}
			}
			want = max(want, now)
		}
		if _, got := concurrency(records, 0, 1); got != want {
			t.Fatalf("seed %d: peak %d, want %d of %+v", seed, got, want, records)
		}
	}
}
