package observe

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/engine/loads"
)

// Rank names one DP rank by the pod that answers for it and its number in /v1/loads.
type Rank struct {
	Pod  string
	Rank int
}

// PodSample is the newest knowledge about one leader pod. It is a value: readers may keep it.
type PodSample struct {
	Name string
	UID  types.UID
	// Pool is the EnginePool that controls the pod.
	Pool types.NamespacedName
	// Labels of the pod; readers must not write to it.
	Labels labels.Set
	Role   v1alpha1.Role
	// Draining pods take no new requests: they carry the draining annotation or are being deleted.
	Draining bool
	// DataRanks is how many DP ranks the pod's engine answers for, by the layout that the pod was made with: during a roll-out
	// that changes parallelism.data, the pods of a pool differ in it.
	DataRanks int
	// ReadySince is when the pod became Ready, by the API server's clock; zero while it is not Ready.
	ReadySince time.Time

	// Taken is when the request for the newest good sample was sent, by the operator's clock; zero when there is none.
	// What the sample says was true at Taken or later.
	Taken time.Time
	// Ranks of the newest good sample, ascending by DP rank. A utilization that the engine left out is NaN.
	Ranks []loads.Load
	// Work is what each of Ranks did of prefill over the last minute of samples or, if it did nothing in it, the last time
	// that it did something. Readers must not write to it.
	Work []semantics.Work
	// Events are how many observations of a latency histogram, by the family's name, were made over the last minute. A
	// family that is missing had none; the map is nil while the histograms were not read twice of late. Readers must not write
	// to it.
	Events map[string]semantics.Distribution
	// Err is why the newest poll failed; nil when it gave the sample.
	Err error
}

// PoolSample is the newest knowledge about the leader pods of one EnginePool at one moment.
type PoolSample struct {
	Pool types.NamespacedName
	// Pods in the order of their names.
	Pods []PodSample
	// FreshFor is how long a sample counts: max(3 intervals, 10 s).
	FreshFor time.Duration
}

// Fresh says whether the pod's sample may be read as numbers at now, when samples count for freshFor.
func (p PodSample) Fresh(now time.Time, freshFor time.Duration) bool {
	return !p.Taken.IsZero() && now.Sub(p.Taken) <= freshFor
}

// Outstanding is how many requests the pod holds, in the batch and in every queue; false when its sample does not
// tell: it lacks a section that its role needs.
func (p PodSample) Outstanding() (requests int64, ok bool) {
	if len(p.Ranks) == 0 {
		return 0, false
	}
	for _, r := range p.Ranks {
		n, ok := rankOutstanding(p.Role, r)
		if !ok {
			return 0, false
		}
		requests += n
	}
	return requests, true
}

// rankOutstanding counts each request of a rank at least once. num_waiting_reqs holds the waiting, bootstrap, prealloc,
// transfer and retracted queues; the prefill inflight queue and the paused and grammar queues come on top. An idle
// rank, and no other, gives 0.
func rankOutstanding(role v1alpha1.Role, r loads.Load) (requests int64, ok bool) {
	if role != v1alpha1.RoleUnified && r.Disaggregation == nil {
		return 0, false
	}
	requests = int64(r.NumRunningReqs) + int64(max(r.NumWaitingReqs, queued(r)))
	if d := r.Disaggregation; d != nil {
		requests += int64(d.PrefillInflightQueueReqs)
	}
	if q := r.Queues; q != nil {
		requests += int64(q.Grammar + q.Paused)
	}
	return requests, true
}

// queued sums the queues that num_waiting_reqs is defined to hold.
func queued(r loads.Load) int {
	n := 0
	if q := r.Queues; q != nil {
		n += q.Waiting
	}
	if d := r.Disaggregation; d != nil {
		n += d.PrefillBootstrapQueueReqs + d.DecodePreallocQueueReqs + d.DecodeTransferQueueReqs + d.DecodeRetractedQueueReqs
	}
	return n
}

// waiting is the length of the scheduler's own waiting queue, without the PD queues.
func waiting(r loads.Load) int {
	if r.Queues != nil {
		return r.Queues.Waiting
	}
	return max(0, r.NumWaitingReqs-queued(r))
}

// Tokens sums what the ranks of all samples have computed of prompts and generated since their engines started.
func (s PoolSample) Tokens() (prompt, generated int64) {
	for _, pod := range s.Pods {
		for _, r := range pod.Ranks {
			prompt += max(0, r.TotalPrefillUncached)
			generated += max(0, r.TotalGenerated)
		}
	}
	return prompt, generated
}

func sortPods(pods []PodSample) {
	slices.SortFunc(pods, func(a, b PodSample) int { return cmp.Compare(a.Name, b.Name) })
}
