package main

import (
	"math"
	"math/rand/v2"
	"testing"

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

// TestJudge: clear cases from the rounds to the verdict. A bound errs in some runs, so the draws are always the same ones.
func TestJudge(t *testing.T) {
	const seed = 1
	for _, tc := range []struct {
		name, reason string
		ratio        float64
		want         verdict
	}{
		{"equal", "what happens to a whole cycle cancels out", 1, reached},
		{"a cost of 5 %", "far more than the noise", 0.95, below},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := made(rand.New(rand.NewPCG(seed, 0)), 16, 24, tc.ratio, 0.5, 0.02, 0.001)
			if got := judge(all, 0.99, 300, seed); got.verdict != tc.want {
				t.Errorf("%s: %s, want %s\n%s", tc.reason, got.verdict, tc.want, got)
			}
		})
	}
}

// TestTogether: which measure may decide what.
func TestTogether(t *testing.T) {
	above, under, wide := interval{1, 0.995, 1.01}, interval{0.97, 0.96, 0.98}, interval{1, 0.9, 1.1}
	for _, tc := range []struct {
		name, reason string
		found        [measures]interval
		want         verdict
	}{
		{"both above", "", [measures]interval{above, above}, reached},
		{"both below", "", [measures]interval{under, under}, below},
		{"one above, one wide", "the steadier measure decides", [measures]interval{wide, above}, reached},
		{"one below, one wide", "either may deny", [measures]interval{under, wide}, below},
		{"one above, one below", "either may deny", [measures]interval{above, under}, below},
		{"both wide", "noise decides nothing", [measures]interval{wide, wide}, undecided},
	} {
		if got := together(tc.found, 0.99); got != tc.want {
			t.Errorf("%s: %s, want %s: %s", tc.name, got, tc.want, tc.reason)
		}
	}
}

// TestVerdict: what one measure says.
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

// TestBounds: both bounds together mostly hold the truth, also when processes differ. The draws are always the same ones.
func TestBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
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
		{16, 32, []int{16, 24, 32}},
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
