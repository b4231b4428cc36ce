package autoscaling

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/engine/loads"
)

// Names of the custom metrics.
const (
	// MetricUtilization is the utilization of a replica, the mean over its DP ranks; of a pool the mean over its replicas.
	MetricUtilization = "sluice_utilization"
	// MetricTokenUsage is the share of KV tokens in use, by the same means.
	MetricTokenUsage = "sluice_token_usage"
	// MetricQueuedRequests is num_waiting_reqs summed over the DP ranks of a replica: the scheduler's waiting queue and
	// the PD queues before it; of a pool the sum over its replicas.
	MetricQueuedRequests = "sluice_queued_requests"
	// MetricRunningRequests is num_running_reqs, summed in the same way.
	MetricRunningRequests = "sluice_running_requests"
)

// metric is one row of the table of custom metrics.
type metric struct {
	name string
	// value of one DP rank in thousandths; false for what is never a number.
	value func(loads.Load) (milli int64, ok bool)
	// mean says that ranks and replicas are averaged, not summed.
	mean bool
}

func metrics() []metric {
	return []metric{
		{name: MetricUtilization, mean: true, value: func(l loads.Load) (int64, bool) { return observe.Milli(l.Utilization) }},
		{name: MetricTokenUsage, mean: true, value: func(l loads.Load) (int64, bool) { return observe.Milli(l.TokenUsage) }},
		{name: MetricQueuedRequests, value: func(l loads.Load) (int64, bool) { return observe.Milli(float64(l.NumWaitingReqs)) }},
		{name: MetricRunningRequests, value: func(l loads.Load) (int64, bool) { return observe.Milli(float64(l.NumRunningReqs)) }},
	}
}

// metricNamed finds a row of the table.
func metricNamed(name string) (metric, bool) {
	for _, m := range metrics() {
		if m.name == name {
			return m, true
		}
	}
	return metric{}, false
}

// scalingMetricName gives the custom metric of a scaling metric's type.
func scalingMetricName(t v1alpha1.ScalingMetricType) string {
	switch t {
	case v1alpha1.MetricQueuedRequests:
		return MetricQueuedRequests
	case v1alpha1.MetricRunningRequests:
		return MetricRunningRequests
	default:
		return MetricUtilization
	}
}

// combine averages or sums values in thousandths, a mean rounded half up; there is at least one.
func (m metric) combine(values []int64) int64 {
	var sum int64
	for _, v := range values {
		sum += v
	}
	if !m.mean {
		return sum
	}
	n := int64(len(values))
	return (sum + n/2) / n
}

// reading is the value of one pod.
type reading struct {
	pod   string
	milli int64
	taken time.Time
}

// verdict says what a pod's sample is worth for one metric.
type verdict int

const (
	// verdictNumber: the pod has a number.
	verdictNumber verdict = iota
	// verdictLeftOut: the pod takes no requests (not Ready, or draining), or is Ready for so short a time that it was
	// not polled yet. It has no number and that is no fault.
	verdictLeftOut
	// verdictSentinel: a rank reports -1 or another value that is never a number.
	verdictSentinel
	// verdictStale: the newest sample is too old.
	verdictStale
	// verdictPartial: a DP rank is missing from the sample.
	verdictPartial
	// verdictNone: the pod was never polled with success although it is Ready for long.
	verdictNone
)

// judge reads one pod. ranks is how many DP ranks the pod answers for.
func judge(pod observe.PodSample, m metric, ranks int, now time.Time, freshFor time.Duration) (reading, verdict) {
	if pod.Draining || pod.ReadySince.IsZero() {
		return reading{}, verdictLeftOut
	}
	if !pod.Fresh(now, freshFor) {
		switch {
		case now.Sub(pod.ReadySince) <= freshFor && !pod.Taken.After(pod.ReadySince):
			return reading{}, verdictLeftOut
		case pod.Taken.IsZero():
			return reading{}, verdictNone
		}
		return reading{}, verdictStale
	}
	values := make([]int64, 0, len(pod.Ranks))
	for _, rank := range pod.Ranks {
		milli, ok := m.value(rank)
		if !ok {
			return reading{}, verdictSentinel
		}
		values = append(values, milli)
	}
	if len(values) < ranks {
		return reading{}, verdictPartial
	}
	return reading{pod: pod.Name, milli: m.combine(values), taken: pod.Taken}, verdictNumber
}

// read gives the number of every pod that has one. It fails when a pod that takes requests has none, or when no pod has
// one: the autoscaler must then do nothing, and say why.
func read(pods []observe.PodSample, m metric, ranksOf func(pool types.NamespacedName) int, now time.Time, freshFor time.Duration) ([]reading, *Unavailable) {
	var readings []reading
	faults := map[verdict][]string{}
	for _, pod := range pods {
		r, v := judge(pod, m, ranksOf(pod.Pool), now, freshFor)
		switch v {
		case verdictNumber:
			readings = append(readings, r)
		case verdictLeftOut:
		default:
			faults[v] = append(faults[v], pod.Name)
		}
	}
	switch {
	case len(faults[verdictSentinel]) > 0:
		return nil, unavailable(ReasonSentinelValue, m.name, "%s report a value that is not a number (-1 on a prefill engine)", faults[verdictSentinel])
	case len(faults[verdictPartial]) > 0:
		return nil, unavailable(ReasonPartialSamples, m.name, "the samples of %s lack ranks", faults[verdictPartial])
	case len(faults) > 0 && len(readings) > 0:
		return nil, unavailable(ReasonPartialSamples, m.name, "%s are ready and have no fresh sample, other pods have one",
			append(faults[verdictStale], faults[verdictNone]...))
	case len(faults[verdictStale]) > 0:
		return nil, unavailable(ReasonStaleSample, m.name, "the samples of %s are too old",
			append(faults[verdictStale], faults[verdictNone]...))
	case len(faults[verdictNone]) > 0:
		return nil, unavailable(ReasonNoSamples, m.name, "%s are ready and gave no sample yet", faults[verdictNone])
	case len(readings) == 0:
		return nil, unavailable(ReasonNoSamples, m.name, "no selected pod is ready and polled", nil)
	}
	return readings, nil
}
