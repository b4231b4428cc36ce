package bench

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// duel makes the result of a comparison in rounds whose second server takes factor times as long, with noise of its own.
func duel(rng *rand.Rand, rounds, perRound int, factor float64) *Result {
	result := &Result{}
	at := [2]time.Duration{}
	for round := range rounds {
		for i := range perRound {
			for server := range 2 {
				scale := 1 + 0.2*rng.NormFloat64()
				if server == 1 {
					scale *= factor
				}
				first := at[server] + time.Duration(scale*float64(100*ms))
				end := at[server] + time.Duration(scale*float64(300*ms))
				result.Records = append(result.Records, Record{
					Server: server, Round: round, Index: round*perRound + i, Start: at[server], Sent: at[server], First: &first, End: end,
					Gaps: []time.Duration{end - first}, OutputTokens: 2, Outcome: Completed,
				})
				at[server] = end
			}
		}
	}
	return result
}

func TestRatios(t *testing.T) {
	ratios := Ratios(duel(rand.New(rand.NewPCG(1, 2)), 40, 5, 1.3), ByRound, 1)
	names := map[string]float64{
		"TTFT mean ms": 1.3, "TTFT p50 ms": 1.3, "ITL mean ms": 1.3, "TPOT mean ms": 1.3, "TPOT p50 ms": 1.3,
		"E2E mean ms": 1.3, "E2E p50 ms": 1.3, "requests/s": 1 / 1.3, "output tokens/s": 1 / 1.3,
	}
	for _, r := range ratios {
		want := names[r.Name]
		delete(names, r.Name)
		if math.Abs(r.Ratio-want) > 0.1*want || !r.Differs() || *r.Low > r.Ratio || *r.High < r.Ratio || r.Units != 40 {
			t.Errorf("%+v [%v, %v], want about %.3f", r, *r.Low, *r.High, want)
		}
	}
	if len(names) > 0 {
		t.Errorf("missing: %v", names)
	}
	if diff := cmp.Diff(ratios, Ratios(duel(rand.New(rand.NewPCG(1, 2)), 40, 5, 1.3), ByRound, 1)); diff != "" {
		t.Errorf("the same records and seed have other intervals:\n%s", diff)
	}
	for _, r := range Ratios(duel(rand.New(rand.NewPCG(1, 2)), 40, 5, 1), ByRequest, 1) {
		if r.Name == "requests/s" {
			t.Error("rates are compared though the servers worked side by side")
		}
	}
}

// TestConfidence counts how often the interval of equal servers holds 1: about 38 of 40 times.
func TestConfidence(t *testing.T) {
	differs := 0
	rng := rand.New(rand.NewPCG(3, 9))
	const runs = 40
	for i := range runs {
		ratios := Ratios(duel(rng, 30, 2, 1), ByRequest, uint64(i))
		if r := ratios[0]; r.Differs() {
			differs++
		}
	}
	if differs > 7 {
		t.Errorf("equal servers differ in %d of %d runs", differs, runs)
	}
}

func TestRatiosOfFew(t *testing.T) {
	ratios := Ratios(duel(rand.New(rand.NewPCG(1, 2)), 1, 5, 2), ByRound, 1)
	if len(ratios) == 0 {
		t.Fatal("no ratios")
	}
	for _, r := range ratios {
		if r.Low != nil || r.High != nil || r.Differs() {
			t.Errorf("one round has an interval: %+v", r)
		}
	}
	if got := Ratios(&Result{}, ByRound, 1); got != nil {
		t.Errorf("no records have ratios: %+v", got)
	}
}

// TestUnits leaves out what only one server completed.
func TestUnits(t *testing.T) {
	result := duel(rand.New(rand.NewPCG(1, 2)), 2, 2, 1)
	for i := range result.Records {
		if r := &result.Records[i]; r.Server == 1 && r.Index == 3 {
			r.Outcome = Failed
		}
	}
	units := unitsOf(result.Records)
	if len(units) != 2 || len(units[0][0].e2e) != 2 || len(units[1][0].e2e) != 1 || len(units[1][1].e2e) != 1 {
		t.Errorf("%+v", units)
	}
}
