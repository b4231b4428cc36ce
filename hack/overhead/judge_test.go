package main

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// made gives generations whose on engine needs 1/ratio of the time, with noise of cycles, rounds and processes, as shares.
func made(rng *rand.Rand, generations, cycles int, ratio, ofCycle, ofRound, ofProcess float64) []generation {
	noise := func(share float64) float64 { return math.Exp(share * rng.NormFloat64()) }
	all := make([]generation, generations)
	for i := range all {
		var process [engines]float64
		for e := range process {
			process[e] = noise(ofProcess)
		}
		for range cycles {
			var c cycle
			busy := noise(ofCycle)
			for e := range engine(engines) {
				for m := range measureOf(measures) {
					c[e][m] = 0.5 * busy * process[e] * noise(ofRound)
					if e == on {
						c[e][m] /= ratio
					}
				}
			}
			all[i] = append(all[i], c)
		}
	}
	return all
}

func TestJudge(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, tc := range []struct {
		name, reason string
		all          []generation
		want         verdict
	}{
		{"equal", "what happens to a whole cycle cancels out", made(rng, 16, 24, 1, 0.5, 0.02, 0.001), reached},
		{"a cost of 5 %", "", made(rng, 16, 24, 0.95, 0.5, 0.02, 0.001), below},
		{"at the bound", "nothing can decide it", made(rng, 8, 24, 0.99, 0.1, 0.05, 0.004), undecided},
		{"noise", "wider than the distance to the bound", made(rng, 8, 8, 1, 0.1, 0.3, 0.05), undecided},
		{"processes differ", "many rounds of few processes are few", made(rng, 4, 60, 1, 0.1, 0.01, 0.05), undecided},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := judge(tc.all, 0.99, 300, seed)
			// A bound of 99 % errs in 1 of 100 runs; what it must never be is the opposite.
			if got.verdict != tc.want && (got.verdict == below || tc.want == below) || tc.want == reached && got.verdict != reached {
				t.Errorf("%s: %s, want %s\n%s", tc.reason, got.verdict, tc.want, got)
			}
		})
	}
}

// TestVerdict: which measure may decide what.
func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		name string
		is   interval
		want verdict
	}{
		{"above", interval{1, 0.99, 1.01}, reached},
		{"below", interval{0.98, 0.97, 0.9899}, below},
		{"too wide, above", interval{1.2, 0.9, 1.4}, undecided},
		{"too wide, below", interval{0.9, 0.8, 0.99}, undecided},
		{"nothing", interval{math.NaN(), math.NaN(), math.NaN()}, undecided},
	} {
		if got := tc.is.verdict(0.99); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// TestBounds: both bounds together hold the truth in about 98 of 100 runs, also when processes differ.
func TestBounds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	held := 0
	const runs = 20
	for range runs {
		i := estimate(made(rng, 12, 12, 0.98, 0.2, 0.03, 0.01), throughput, false, 300, rng)
		if i.low <= 0.98 && 0.98 <= i.high {
			held++
		}
	}
	if held < runs*7/10 { // a bootstrap over 12 generations is a little narrow
		t.Errorf("the bounds hold the truth in %d of %d runs", held, runs)
	}
}

func TestMean(t *testing.T) {
	for _, tc := range []struct {
		name string
		logs []float64
		want float64
	}{
		{"few", []float64{1, 2, 6}, 3},
		{"outermost", []float64{1000, 1, 1, 1, 1, 2, 2, 2, 2, -1000}, 1.5},
	} {
		if got := mean(tc.logs); math.Abs(got-tc.want) > 1e-12 {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestLooks(t *testing.T) {
	for _, tc := range []struct {
		first, most int
		want        []int
	}{
		{8, 32, []int{8, 12, 18, 27, 32}},
		{2, 2, []int{2}},
		{2, 3, []int{2, 3}},
		{4, 1000, []int{4, 6, 9, 13, 1000}},
	} {
		if diff := cmp.Diff(tc.want, looksOf(tc.first, tc.most)); diff != "" {
			t.Errorf("%d to %d (-want +got)\n%s", tc.first, tc.most, diff)
		}
	}
}
