package bench

import (
	"math/rand/v2"
	"slices"
)

// Ratio compares a statistic of the second server with that of the first: their quotient, with the bounds of its 95%
// confidence interval. The interval is that of a bootstrap over units (pairs of requests, or rounds): what is drawn again
// is a whole unit, so requests that disturbed each other stay together. Low and High are absent with fewer than two units.
type Ratio struct {
	Name   string   `json:"name"`
	First  float64  `json:"first"`
	Second float64  `json:"second"`
	Ratio  float64  `json:"ratio"`
	Low    *float64 `json:"low,omitempty"`
	High   *float64 `json:"high,omitempty"`
	Units  int      `json:"units"`
}

// Differs reports whether the interval leaves out 1.
func (r *Ratio) Differs() bool { return r.Low != nil && (*r.Low > 1 || *r.High < 1) }

// resamples is how often the units are drawn again.
const resamples = 1000

// unit is what both servers did with the same requests.
type unit [2]side

// side is what one server did.
type side struct {
	ttft, itl, tpot, e2e []float64 // milliseconds
	outputTokens         float64
	requests             float64
	seconds              float64 // from the first start to the last end
}

// statistic reduces the sides of the drawn units to a number; ok is false where it does not exist.
type statistic struct {
	name  string
	value func(sides []*side) (v float64, ok bool)
}

// pick gives one kind of values of a side.
type pick func(*side) []float64

func meanOf(values pick) func([]*side) (float64, bool) {
	return func(sides []*side) (float64, bool) {
		sum, count := 0.0, 0
		for _, s := range sides {
			for _, v := range values(s) {
				sum += v
			}
			count += len(values(s))
		}
		return sum / float64(max(1, count)), count > 0
	}
}

func medianOf(values pick) func([]*side) (float64, bool) {
	return func(sides []*side) (float64, bool) {
		var all []float64
		for _, s := range sides {
			all = append(all, values(s)...)
		}
		if len(all) == 0 {
			return 0, false
		}
		slices.Sort(all)
		return percentile(all, 50), true
	}
}

func perSecond(amount func(*side) float64) func([]*side) (float64, bool) {
	return func(sides []*side) (float64, bool) {
		sum, seconds := 0.0, 0.0
		for _, s := range sides {
			sum += amount(s)
			seconds += s.seconds
		}
		if seconds <= 0 {
			return 0, false
		}
		return sum / seconds, true
	}
}

// statistics are what is compared; rates only where a server had the time of a unit to itself.
func statistics(alternate Alternation) []statistic {
	ttft, tpot := func(s *side) []float64 { return s.ttft }, func(s *side) []float64 { return s.tpot }
	itl, e2e := func(s *side) []float64 { return s.itl }, func(s *side) []float64 { return s.e2e }
	list := []statistic{
		{"TTFT mean ms", meanOf(ttft)}, {"TTFT p50 ms", medianOf(ttft)},
		{"ITL mean ms", meanOf(itl)},
		{"TPOT mean ms", meanOf(tpot)}, {"TPOT p50 ms", medianOf(tpot)},
		{"E2E mean ms", meanOf(e2e)}, {"E2E p50 ms", medianOf(e2e)},
	}
	if alternate == ByRound {
		list = append(list,
			statistic{"requests/s", perSecond(func(s *side) float64 { return s.requests })},
			statistic{"output tokens/s", perSecond(func(s *side) float64 { return s.outputTokens })})
	}
	return list
}

// Ratios compares the two servers of a result. Only requests that both completed count.
func Ratios(result *Result, alternate Alternation, seed uint64) []Ratio {
	units := unitsOf(result.Records)
	var list []Ratio
	for _, s := range statistics(alternate) {
		if r, ok := compare(s, units, random(seed, streamBootstrap, 0)); ok {
			list = append(list, r)
		}
	}
	return list
}

func compare(s statistic, units []unit, rng *rand.Rand) (Ratio, bool) {
	var sides [2][]*side
	quotient := func(drawn func(i int) int) (first, second float64, ok bool) {
		for which := range sides {
			sides[which] = sides[which][:0]
			for i := range units {
				sides[which] = append(sides[which], &units[drawn(i)][which])
			}
		}
		first, firstOK := s.value(sides[0])
		second, secondOK := s.value(sides[1])
		return first, second, firstOK && secondOK && first > 0
	}
	first, second, ok := quotient(func(i int) int { return i })
	if !ok {
		return Ratio{}, false
	}
	r := Ratio{Name: s.name, First: first, Second: second, Ratio: second / first, Units: len(units)}
	if len(units) < 2 {
		return r, true
	}
	picks := make([]int, len(units))
	var quotients []float64
	for range resamples {
		for i := range picks {
			picks[i] = rng.IntN(len(units))
		}
		if a, b, ok := quotient(func(i int) int { return picks[i] }); ok {
			quotients = append(quotients, b/a)
		}
	}
	if len(quotients) == 0 {
		return r, true
	}
	slices.Sort(quotients)
	low, high := percentile(quotients, 2.5), percentile(quotients, 97.5)
	r.Low, r.High = &low, &high
	return r, true
}

// unitsOf groups the requests that both servers completed by round.
func unitsOf(records []Record) []unit {
	type key struct{ server, index int }
	completed := map[key]*Record{}
	for i := range records {
		if r := &records[i]; r.Outcome == Completed {
			completed[key{r.Server, r.Index}] = r
		}
	}
	var units []unit
	at := map[int]int{} // round → index of its unit
	type span struct{ from, to float64 }
	var spans [][2]span
	for i := range records { // in order of their start
		r := &records[i]
		if r.Outcome != Completed || completed[key{1 - r.Server, r.Index}] == nil {
			continue
		}
		u, known := at[r.Round]
		if !known {
			u = len(units)
			at[r.Round] = u
			units, spans = append(units, unit{}), append(spans, [2]span{{-1, -1}, {-1, -1}})
		}
		s, sp := &units[u][r.Server], &spans[u][r.Server]
		if v, ok := r.TTFT(); ok {
			s.ttft = append(s.ttft, millis(v))
		}
		if v, ok := r.TPOT(); ok {
			s.tpot = append(s.tpot, millis(v))
		}
		for _, v := range r.Gaps {
			s.itl = append(s.itl, millis(v))
		}
		s.e2e = append(s.e2e, millis(r.E2E()))
		s.requests++
		s.outputTokens += float64(r.OutputTokens)
		if sp.from < 0 {
			sp.from = r.Start.Seconds()
		}
		sp.to = max(sp.to, r.End.Seconds())
		s.seconds = sp.to - sp.from
	}
	return units
}
