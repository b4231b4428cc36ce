package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// engine is one of the three.
type engine int

const (
	off   engine = iota // neither metrics nor traces
	again               // the same once more: the control
	on                  // everything

	engines = 3
)

// measureOf is what a round is measured by.
type measureOf int

const (
	throughput    measureOf = iota // by the wall
	processorTime                  // of the engine and its ranks

	measures = 2
)

func (m measureOf) String() string { return [...]string{"throughput", "processor time"}[m] }

// round is what one engine needed for its requests, in seconds; by measure, all > 0.
type round [measures]float64

// cycle is a round of each engine, with the same requests.
type cycle [engines]round

// generation is the cycles of the same three processes.
type generation []cycle

// log gives the logarithm of off ÷ on of a cycle, or of the two off ones.
func (c cycle) log(m measureOf, control bool) float64 {
	if control {
		return math.Log(c[off][m]) - math.Log(c[again][m])
	}
	return (math.Log(c[off][m])+math.Log(c[again][m]))/2 - math.Log(c[on][m])
}

// trimmed is the part of the cycles of a generation that is left out at each end.
const trimmed = 0.1

// mean is that of the logarithms, without the outermost.
func mean(logs []float64) float64 {
	sorted := slices.Sorted(slices.Values(logs))
	cut := int(trimmed * float64(len(sorted)))
	sorted = sorted[cut : len(sorted)-cut]
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	return sum / float64(len(sorted))
}

func (g generation) logs(m measureOf, control bool) []float64 {
	logs := make([]float64, len(g))
	for i, c := range g {
		logs[i] = c.log(m, control)
	}
	return logs
}

func (g generation) String() string {
	var parts []string
	for m := range measureOf(measures) {
		parts = append(parts, fmt.Sprintf("%s %.4f (control %.4f)", m, math.Exp(mean(g.logs(m, false))), math.Exp(mean(g.logs(m, true)))))
	}
	seconds := 0.0
	for _, c := range g {
		for _, r := range c {
			seconds += r[throughput]
		}
	}
	return fmt.Sprintf("%s, rounds of %.2f s", strings.Join(parts, ", "), seconds/float64(engines*len(g)))
}

// interval is a ratio with its bounds, low <= ratio <= high but for the chance of the draw.
type interval struct{ ratio, low, high float64 }

func (i interval) String() string {
	return fmt.Sprintf("%.4f, from %.4f to %.4f", i.ratio, i.low, i.high)
}

const (
	// resamples of a bootstrap, enough for its 20 outermost to be steady.
	resamples = 4000
	// tail is what each bound of a measure leaves outside: half of 0.01, since either of two measures may decide.
	tail = 0.005
)

// estimate gives the ratio of a measure over all generations, with bounds from so many draws.
func estimate(all []generation, m measureOf, control bool, draws int, rng *rand.Rand) interval {
	logs := make([][]float64, len(all))
	point := 0.0
	for i, g := range all {
		logs[i] = g.logs(m, control)
		point += mean(logs[i]) / float64(len(all))
	}
	drawn := make([]float64, draws)
	for i := range drawn {
		for range all {
			from := logs[rng.IntN(len(logs))]
			sample := make([]float64, len(from))
			for k := range sample {
				sample[k] = from[rng.IntN(len(from))]
			}
			drawn[i] += mean(sample) / float64(len(all))
		}
	}
	slices.Sort(drawn)
	at := int(tail * float64(draws))
	return interval{math.Exp(point), math.Exp(drawn[at]), math.Exp(drawn[draws-1-at])}
}

// verdict is what the bounds say of the bound to reach.
type verdict int

const (
	undecided verdict = iota // it lies between them
	reached                  // they are at or above it
	below                    // they are below it
)

func (v verdict) String() string {
	return [...]string{"undecided", "reached", "not reached"}[v]
}

func (i interval) verdict(bound float64) verdict {
	switch {
	case i.low >= bound:
		return reached
	case i.high < bound:
		return below
	}
	return undecided
}

// finding is what all generations so far say.
type finding struct {
	found, control [measures]interval
	verdict        verdict
	bound          float64
	generations    int
}

// judge looks at the generations so far. An engine whose processor is busy all the time gives its throughput by the processor
// time that an answer takes, so the steadier of the two measures may decide that the bound is reached, unless the other
// denies it; either may decide that it is not. The bounds are of so many draws.
func judge(all []generation, bound float64, draws int, seed uint64) finding {
	f := finding{bound: bound, generations: len(all)}
	rng := rand.New(rand.NewPCG(seed, uint64(len(all))))
	for m := range measureOf(measures) {
		f.found[m], f.control[m] = estimate(all, m, false, draws, rng), estimate(all, m, true, draws, rng)
	}
	f.verdict = together(f.found, bound)
	return f
}

// together is what both measures say of the bound.
func together(found [measures]interval, bound float64) verdict {
	said := map[verdict]bool{}
	for _, i := range found {
		said[i.verdict(bound)] = true
	}
	switch {
	case said[below]:
		return below
	case said[reached]:
		return reached
	}
	return undecided
}

func (f finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "after %d generations, off ÷ on with one-sided bounds of %.4g %% each:\n", f.generations, 100*(1-tail))
	for m := range measureOf(measures) {
		fmt.Fprintf(&b, "  %-15s %s: %v %s\n", m.String()+":", f.found[m], f.bound, f.found[m].verdict(f.bound))
		fmt.Fprintf(&b, "  %-15s %s\n", "  off ÷ off:", f.control[m])
	}
	fmt.Fprintf(&b, "  all together: %s\n", f.verdict)
	return b.String()
}

// looksOf gives after how many generations the bounds are looked at: five times at most, each time after half as many more,
// the last time after most.
func looksOf(first, most int) []int {
	const most5 = 5
	looks := []int{}
	for n := first; n < most && len(looks) < most5-1; n += max(1, n/2) {
		looks = append(looks, n)
	}
	return append(looks, most)
}
