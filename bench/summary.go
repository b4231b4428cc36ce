package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Distribution describes values, in the unit that its field's name says. Percentiles interpolate between the two nearest
// values. It is absent where there are none.
type Distribution struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	SD    float64 `json:"sd"` // of the values, not of their mean
	Min   float64 `json:"min"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// describe sorts the values; nil for none.
func describe(values []float64) *Distribution {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	d := &Distribution{Count: len(values), Mean: mean(values), Min: values[0], Max: values[len(values)-1]}
	for _, v := range values {
		d.SD += (v - d.Mean) * (v - d.Mean)
	}
	d.SD = math.Sqrt(d.SD / float64(len(values)))
	d.P50, d.P90, d.P95, d.P99 = percentile(values, 50), percentile(values, 90), percentile(values, 95), percentile(values, 99)
	return d
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// percentile of sorted values, at least one; 0 <= p <= 100.
func percentile(sorted []float64, p float64) float64 {
	at := p / 100 * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Goal is what a request must meet to be good; a zero field asks for nothing.
type Goal struct {
	TTFT time.Duration `json:"ttft_ns,omitempty"`
	TPOT time.Duration `json:"tpot_ns,omitempty"`
	E2E  time.Duration `json:"e2e_ns,omitempty"`
}

// met reports whether a completed request meets the goal. A time that does not exist misses no bound.
func (g Goal) met(r *Record) bool {
	within := func(bound, v time.Duration, known bool) bool { return bound == 0 || !known || v <= bound }
	ttft, hasTTFT := r.TTFT()
	tpot, hasTPOT := r.TPOT()
	return within(g.TTFT, ttft, hasTTFT) && within(g.TPOT, tpot, hasTPOT) && within(g.E2E, r.E2E(), true)
}

// ErrorCount is how often a kind of failure came, with one example.
type ErrorCount struct {
	Kind    Failure `json:"kind"`
	Count   int     `json:"count"`
	Example string  `json:"example"`
}

// Latencies are those of completed requests.
type Latencies struct {
	TTFT *Distribution `json:"ttft_ms,omitempty"`
	ITL  *Distribution `json:"itl_ms,omitempty"`
	TPOT *Distribution `json:"tpot_ms,omitempty"`
	E2E  *Distribution `json:"e2e_ms,omitempty"`
}

// PriorityLatencies are those of one priority.
type PriorityLatencies struct {
	Priority  int `json:"priority"`
	Completed int `json:"completed"`
	Latencies
}

// Summary is the account of one server: Requests = Completed + Cancelled + Interrupted + Failed.
type Summary struct {
	URL         string       `json:"url"`
	Requests    int          `json:"requests"`
	Completed   int          `json:"completed"`
	Cancelled   int          `json:"cancelled"`
	Interrupted int          `json:"interrupted"`
	Failed      int          `json:"failed"`
	Errors      []ErrorCount `json:"errors"` // by falling count, then by kind

	// Seconds is the time over which the rates are taken: requests were sent to the server, or awaited.
	Seconds               float64 `json:"seconds"`
	RequestsPerSecond     float64 `json:"requests_per_second"` // completed ones
	InputTokensPerSecond  float64 `json:"input_tokens_per_second"`
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"`

	// Tokens of completed requests, and the output of those that were dropped: the server made that too.
	InputTokens  int  `json:"input_tokens"`
	OutputTokens int  `json:"output_tokens"`
	CachedTokens *int `json:"cached_tokens,omitempty"` // of the input; absent: no answer tells
	WithoutUsage int  `json:"requests_without_usage"`  // completed ones whose tokens are wanted tokens and chunks

	// TokensPerGap is 1 where each output token after the first came in a chunk of its own or the server told the tokens of
	// each chunk, and more where ITL is the gap between chunks of several tokens; 0 without gaps.
	TokensPerGap float64 `json:"tokens_per_gap"`

	ConcurrencyMean float64 `json:"concurrency_mean"` // requests in flight, over Seconds
	ConcurrencyPeak int     `json:"concurrency_peak"`

	Latencies
	// SendLag is by how much requests were sent later than due, because of --max-concurrency or a slow client; absent in a
	// closed loop.
	SendLag    *Distribution       `json:"send_lag_ms,omitempty"`
	ByPriority []PriorityLatencies `json:"by_priority,omitempty"` // by rising value, with two priorities or more

	Goodput *float64 `json:"goodput_per_second,omitempty"` // requests that meet the goal; absent without one
}

// Summarize gives the account of a server.
func Summarize(result *Result, server int, url string, load *Load, goal Goal) Summary {
	s := Summary{URL: url, Seconds: result.Busy[server].Seconds(), Errors: []ErrorCount{}}
	var completed []Record
	var lag []float64
	good, gaps, later := 0, 0, 0 // later: output tokens after the first
	for i := range result.Records {
		r := &result.Records[i]
		if r.Server != server {
			continue
		}
		s.Requests++
		lag = append(lag, millis(r.Sent-r.Start))
		switch r.Outcome {
		case Completed:
			completed = append(completed, *r)
			s.Completed++
			s.InputTokens += r.InputTokens
			if !r.Counted {
				s.WithoutUsage++
			}
			if r.CachedTokens != nil {
				if s.CachedTokens == nil {
					s.CachedTokens = new(int)
				}
				*s.CachedTokens += *r.CachedTokens
			}
			gaps, later = gaps+len(r.Gaps), later+max(0, r.OutputTokens-1)
			if goal.met(r) {
				good++
			}
		case Cancelled:
			s.Cancelled++
		case Interrupted:
			s.Interrupted++
		case Failed:
			s.Failed++
			s.Errors = countError(s.Errors, r)
		}
		s.OutputTokens += r.OutputTokens
	}
	slices.SortFunc(s.Errors, func(a, b ErrorCount) int { return cmp.Or(b.Count-a.Count, cmp.Compare(a.Kind, b.Kind)) })
	s.ConcurrencyMean, s.ConcurrencyPeak = concurrency(result.Records, server, s.Seconds)
	if s.Seconds > 0 {
		s.RequestsPerSecond = float64(s.Completed) / s.Seconds
		s.InputTokensPerSecond = float64(s.InputTokens) / s.Seconds
		s.OutputTokensPerSecond = float64(s.OutputTokens) / s.Seconds
	}
	if gaps > 0 {
		s.TokensPerGap = float64(later) / float64(gaps)
	}
	s.Latencies = latencies(completed)
	if load.Open() {
		s.SendLag = describe(lag)
	}
	if len(load.Priorities) > 1 {
		s.ByPriority = byPriority(completed)
	}
	if goal != (Goal{}) && s.Seconds > 0 {
		perSecond := float64(good) / s.Seconds
		s.Goodput = &perSecond
	}
	return s
}

func countError(list []ErrorCount, r *Record) []ErrorCount {
	for i := range list {
		if list[i].Kind == r.Failure {
			list[i].Count++
			return list
		}
	}
	return append(list, ErrorCount{Kind: r.Failure, Count: 1, Example: r.Message})
}

func latencies(records []Record) Latencies {
	var ttft, itl, tpot, e2e []float64
	for i := range records {
		r := &records[i]
		if v, ok := r.TTFT(); ok {
			ttft = append(ttft, millis(v))
		}
		if v, ok := r.TPOT(); ok {
			tpot = append(tpot, millis(v))
		}
		for _, v := range r.Gaps {
			itl = append(itl, millis(v))
		}
		e2e = append(e2e, millis(r.E2E()))
	}
	return Latencies{TTFT: describe(ttft), ITL: describe(itl), TPOT: describe(tpot), E2E: describe(e2e)}
}

func byPriority(records []Record) []PriorityLatencies {
	groups := map[int][]Record{}
	for _, r := range records {
		if r.Priority != nil {
			groups[*r.Priority] = append(groups[*r.Priority], r)
		}
	}
	var list []PriorityLatencies
	for priority, group := range groups {
		list = append(list, PriorityLatencies{Priority: priority, Completed: len(group), Latencies: latencies(group)})
	}
	slices.SortFunc(list, func(a, b PriorityLatencies) int { return cmp.Compare(a.Priority, b.Priority) })
	return list
}

// concurrency gives the mean, over so many seconds, and the peak of the requests that were in flight at a server.
func concurrency(records []Record, server int, seconds float64) (average float64, peak int) {
	type edge struct {
		at    time.Duration
		delta int
	}
	var edges []edge
	for i := range records {
		if r := &records[i]; r.Server == server {
			edges = append(edges, edge{r.Sent, 1}, edge{r.End, -1})
			average += (r.End - r.Sent).Seconds()
		}
	}
	// At one instant ends count before starts.
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), a.delta-b.delta) })
	now := 0
	for _, e := range edges {
		now += e.delta
		peak = max(peak, now)
	}
	if seconds > 0 {
		average /= seconds
	}
	return average, peak
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }
