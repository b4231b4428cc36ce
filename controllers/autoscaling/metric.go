package autoscaling

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/semantics"
)

// ReadsLatency says whether somebody may scale a pool by the operator's signals that are made of histograms: its own
// autoscaler does, or others may ask, external, and it has objectives.
func ReadsLatency(pool *v1alpha1.EnginePool, external bool) bool {
	scaling := pool.Spec.Autoscaling
	if external && pool.Spec.Role != v1alpha1.RolePrefill && pool.Spec.SLO != nil {
		return true
	}
	if scaling == nil || UsesKEDA(pool) {
		return false
	}
	for _, m := range scaling.Metrics {
		if signal, ok := semantics.SignalOf(m.Type); ok && signal.Shared {
			return true
		}
	}
	return false
}

// reading is the value of one pod in thousandths.
type reading struct {
	pod   string
	pool  types.NamespacedName
	milli int64
	taken time.Time
}

// verdict says what a pod's sample is worth for one signal.
type verdict int

const (
	// verdictNumber: the pod has a number.
	verdictNumber verdict = iota
	// verdictLeftOut: the pod takes no requests (not Ready, or draining), or is Ready for so short a time that it was
	// not polled yet. It has no number and that is no fault.
	verdictLeftOut
	// verdictStale: the newest sample is too old.
	verdictStale
	// verdictNone: the pod was never polled with success although it is Ready for long.
	verdictNone
	// verdictFault: the sample is fresh, and the registry makes no number of it.
	verdictFault
)

// judge says whether a pod's sample may be read.
func judge(pod observe.PodSample, now time.Time, freshFor time.Duration) verdict {
	switch {
	case pod.Draining || pod.ReadySince.IsZero():
		return verdictLeftOut
	case pod.Fresh(now, freshFor):
		return verdictNumber
	case now.Sub(pod.ReadySince) <= freshFor && !pod.Taken.After(pod.ReadySince):
		return verdictLeftOut
	case pod.Taken.IsZero():
		return verdictNone
	default:
		return verdictStale
	}
}

// sampler reads signals at one moment.
type sampler struct {
	signal   semantics.Signal
	slo      func(pool types.NamespacedName) *v1alpha1.SLOSpec
	pool     func(pool types.NamespacedName) observe.PoolSample
	now      time.Time
	freshFor time.Duration
}

// read gives the number of every pod that has one. It fails when a pod that takes requests has none, or when no pod has
// one: the autoscaler must then do nothing, and say why.
func (s sampler) read(pods []observe.PodSample) ([]reading, *Unavailable) {
	var (
		readings []reading
		faults   = faults{metric: s.signal.Metric}
		pools    = map[types.NamespacedName]poolValue{}
	)
	for _, pod := range pods {
		v := judge(pod, s.now, s.freshFor)
		if v != verdictNumber {
			faults.add(v, semantics.NoFault, pod.Name)
			continue
		}
		known, ok := pools[pod.Pool]
		if !ok {
			known = s.ofPool(pod.Pool)
			pools[pod.Pool] = known
		}
		milli, fault := known.milli, known.fault
		if !s.signal.Shared {
			milli, fault = s.signal.Of(replicaOf(pod), known.work)
		} else if s.unread(pod) && (fault == semantics.NoFault || fault == semantics.FaultFewEvents) {
			fault = semantics.FaultNoHistogram
		}
		if fault != semantics.NoFault {
			faults.add(verdictFault, fault, pod.Name)
			continue
		}
		readings = append(readings, reading{pod: pod.Name, pool: pod.Pool, milli: milli, taken: pod.Taken})
	}
	if why := faults.worst(len(readings)); why != nil {
		return nil, why
	}
	return readings, nil
}

// unread says whether a pod takes requests for long enough and its histograms were not read of late: how long its requests
// take is not known, even while it has none.
func (s sampler) unread(pod observe.PodSample) bool {
	return pod.Events == nil && s.now.Sub(pod.ReadySince) > max(observe.EventsGrace, s.freshFor)
}

// poolValue is what the readings of one pool's pods have in common.
type poolValue struct {
	work  semantics.Work // of all ranks
	milli int64          // of shared signals
	fault semantics.Fault
}

// ofPool reads what all pods of a pool tell together, draining ones left out.
func (s sampler) ofPool(pool types.NamespacedName) poolValue {
	var (
		value  poolValue
		events semantics.Distribution
		role   v1alpha1.Role
		busy   bool
	)
	for _, pod := range s.pool(pool).Pods {
		if judge(pod, s.now, s.freshFor) != verdictNumber {
			continue
		}
		role = pod.Role
		for _, w := range pod.Work {
			if w.Known() {
				value.work = value.work.Add(w)
			}
		}
		if !s.signal.Shared {
			continue
		}
		if len(pod.Ranks) < max(1, pod.DataRanks) {
			value.fault = semantics.FaultPartial // the rank that is missing may be the one that is busy
		}
		if n, ok := pod.Outstanding(); !ok || n > 0 {
			busy = true
		}
		window, ok := pod.Events[s.signal.Family()]
		if !ok {
			continue
		}
		if events, ok = events.Add(window); !ok {
			value.fault = semantics.FaultPartial
		}
	}
	if s.signal.Shared && value.fault == semantics.NoFault {
		value.milli, value.fault = s.signal.Latency(role, events, busy, s.slo(pool))
	}
	return value
}

// replicaOf gives what a pod's sample holds for signals. How many ranks it must hold is the pod's own: pods of two revisions
// may differ in it.
func replicaOf(pod observe.PodSample) semantics.Replica {
	return semantics.Replica{Role: pod.Role, Want: pod.DataRanks, Ranks: pod.Ranks, Work: pod.Work}
}

// faults collects why pods have no number.
type faults struct {
	metric string
	stale  []string
	none   []string
	values map[semantics.Fault][]string
}

func (f *faults) add(v verdict, fault semantics.Fault, pod string) {
	switch v {
	case verdictStale:
		f.stale = append(f.stale, pod)
	case verdictNone:
		f.none = append(f.none, pod)
	case verdictFault:
		if f.values == nil {
			f.values = map[semantics.Fault][]string{}
		}
		f.values[fault] = append(f.values[fault], pod)
	}
}

// worst gives the fault that counts; nil when nothing is wrong and some pods have a number.
func (f *faults) worst(numbers int) *Unavailable {
	for _, row := range faultRows() {
		if pods := f.values[row.fault]; len(pods) > 0 {
			return unavailable(row.reason, f.metric, row.format, pods)
		}
	}
	old := append(f.stale, f.none...)
	switch {
	case len(old) > 0 && numbers > 0:
		return unavailable(ReasonPartialSamples, f.metric, "%s are ready and have no fresh sample, other pods have one", old)
	case len(f.stale) > 0:
		return unavailable(ReasonStaleSample, f.metric, "the samples of %s are too old", old)
	case len(f.none) > 0:
		return unavailable(ReasonNoSamples, f.metric, "%s are ready and gave no sample yet", f.none)
	case numbers == 0:
		return unavailable(ReasonNoSamples, f.metric, "no selected pod is ready and polled", nil)
	}
	return nil
}

// faultRow says what a fault of the registry is called; format has one %s for the pods.
type faultRow struct {
	fault  semantics.Fault
	reason Reason
	format string
}

// faultRows are in the order in which they count.
func faultRows() []faultRow {
	return []faultRow{
		{semantics.FaultUndefined, ReasonUndefinedSignal, "the role of %s does not have it"},
		{semantics.FaultNoObjective, ReasonUndefinedSignal, "the service of %s sets no objective for it in spec.slo"},
		{semantics.FaultSentinel, ReasonSentinelValue, "%s report a value that is not a number (-1 on a prefill engine)"},
		{semantics.FaultPartial, ReasonPartialSamples, "the samples of %s lack ranks"},
		{semantics.FaultNoRate, ReasonRateUnknown, "prompts wait at %s and no engine of the pool has computed one yet"},
		{semantics.FaultNoHistogram, ReasonNoSamples, "the latency histograms of %s were not read of late"},
		{semantics.FaultFewEvents, ReasonFewEvents, "requests are under way at %s and too few have answered in the last minute for a quantile"},
	}
}
