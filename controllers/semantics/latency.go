package semantics

import (
	"math"
	"slices"
	"strconv"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// MinEvents is how many events a window must hold for a quantile: with fewer, one slow event would be the quantile.
const MinEvents = 20

// Distribution is how many events fell into each bucket in a window.
type Distribution struct {
	// Bounds are the buckets' upper bounds, ascending, without +Inf.
	Bounds []float64
	// Counts of events by bucket, not cumulative, the last one above all bounds: len(Counts) = len(Bounds) + 1.
	Counts []float64
}

// Total is the number of events; NaN when a count is none.
func (d Distribution) Total() float64 {
	var total float64
	for _, c := range d.Counts {
		if !IsNumber(c) {
			return math.NaN()
		}
		total += c
	}
	return total
}

// Add gives the events of both; ok is false where the bounds differ. The zero value has none. A count that is none stays none.
func (d Distribution) Add(other Distribution) (sum Distribution, ok bool) {
	switch {
	case d.Counts == nil:
		return other, true
	case other.Counts == nil:
		return d, true
	case !slices.Equal(d.Bounds, other.Bounds):
		return d, false
	}
	sum = Distribution{Bounds: d.Bounds, Counts: slices.Clone(d.Counts)}
	for i, c := range other.Counts {
		if !IsNumber(c) || !IsNumber(sum.Counts[i]) {
			c = math.NaN()
		}
		sum.Counts[i] += c
	}
	return sum, true
}

// Since gives the events between two readings of a histogram of one process, each a Distribution of all events so far. A
// count that fell means that the process began anew: everything it has is new.
func (d Distribution) Since(earlier Distribution) Distribution {
	if !slices.Equal(d.Bounds, earlier.Bounds) || len(d.Counts) != len(earlier.Counts) {
		return d
	}
	since := Distribution{Bounds: d.Bounds, Counts: make([]float64, len(d.Counts))}
	for i, c := range d.Counts {
		if c < earlier.Counts[i] {
			return d
		}
		since.Counts[i] = c - earlier.Counts[i]
	}
	return since
}

// Quantile gives the value below which the share q of the events lies, 0 < q < 1, by straight lines within buckets, as
// Prometheus does. What lies above all bounds counts as the largest. ok is false without events or bounds.
func (d Distribution) Quantile(q float64) (value float64, ok bool) {
	total := d.Total()
	if !IsNumber(total) || total == 0 || len(d.Bounds) == 0 || len(d.Counts) != len(d.Bounds)+1 || !(q > 0 && q < 1) {
		return 0, false
	}
	rank, below := q*total, 0.0
	for i, c := range d.Counts[:len(d.Bounds)] {
		if below+c < rank || c == 0 {
			below += c
			continue
		}
		lower := 0.0
		if i > 0 {
			lower = d.Bounds[i-1]
		}
		return lower + (d.Bounds[i]-lower)*(rank-below)/c, true
	}
	return d.Bounds[len(d.Bounds)-1], true
}

// Objective gives the threshold in seconds and the quantile of a latency signal; ok is false when the service sets none.
func (s Signal) Objective(slo *v1alpha1.SLOSpec) (thresholdSeconds, quantile float64, ok bool) {
	if slo == nil {
		return 0, 0, false
	}
	objective := slo.TTFT
	if s.Type == v1alpha1.MetricITL {
		objective = slo.ITL
	}
	if objective == nil {
		return 0, 0, false
	}
	thresholdSeconds, quantile = objective.Threshold.Seconds(), 0.99
	if share := objective.Objective.DeepCopy(); !share.IsZero() {
		// By its decimal digits, which is exact; the zero value is an object from before the default.
		var err error
		if quantile, err = strconv.ParseFloat(share.AsDec().String(), 64); err != nil {
			return 0, 0, false
		}
	}
	return thresholdSeconds, quantile, thresholdSeconds > 0 && quantile > 0 && quantile < 1
}

// Family is the histogram that a shared signal reads.
func (s Signal) Family() string {
	for _, ref := range s.Reads {
		if ref.Source == FromMetrics {
			return ref.Name
		}
	}
	return ""
}

// Latency gives the value of a shared signal of a pool in thousandths: the quantile of the events of all its replicas over
// the threshold. busy says that requests run or wait: without any, and without events, the value is 0, since nobody waits.
func (s Signal) Latency(role v1alpha1.Role, events Distribution, busy bool, slo *v1alpha1.SLOSpec) (milli int64, fault Fault) {
	threshold, quantile, ok := s.Objective(slo)
	switch {
	case !s.Shared || !s.Defined(role):
		return 0, FaultUndefined
	case !ok:
		return 0, FaultNoObjective
	case events.Total() == 0 && !busy:
		return 0, NoFault
	case math.IsNaN(events.Total()) || events.Total() < MinEvents:
		return 0, FaultFewEvents
	}
	at, ok := events.Quantile(quantile)
	if !ok {
		return 0, FaultSentinel
	}
	milli, ok = Milli(at / threshold)
	if !ok {
		return 0, FaultSentinel
	}
	return milli, NoFault
}
