package enginepool

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// meter counts what a pool takes and gives, from the totals of its status on. deviceMillis, prompt and generated never
// fall while device stays the same.
type meter struct {
	device            string
	since             time.Time
	deviceMillis      int64
	prompt, generated int64

	// asOf is up to when the devices of held are counted; restored is the same of the status from which the meter goes on.
	asOf, restored time.Time
	held           map[types.UID]int64 // devices by pod, at asOf
	seen           map[engineRank]tokens
}

// engineRank is one DP rank of one engine process.
type engineRank struct {
	pod types.UID
	dp  int
}

// tokens are what a rank has counted since its start.
type tokens struct{ prompt, generated int64 }

// countCost goes on counting what a pool takes and gives.
func (r *Reconciler) countCost(step *step, now time.Time) *v1alpha1.PoolCost {
	key := client.ObjectKeyFromObject(step.pool)
	sample := r.Samples.Pool(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.meters[key]
	if m == nil {
		m = newMeter(step.pool.Status.Cost)
		r.meters[key] = m
	}
	m.count(step.pods, step.claims, sample, step.revision, now)
	return m.cost(step.pool.Spec.Role)
}

// newMeter goes on from what a status says, which may be nothing.
func newMeter(cost *v1alpha1.PoolCost) *meter {
	m := &meter{held: map[types.UID]int64{}, seen: map[engineRank]tokens{}}
	if cost != nil {
		m.device, m.since, m.deviceMillis = cost.Device, cost.Since.Time, cost.DeviceSeconds*1000
		m.prompt, m.generated = cost.PromptTokens, cost.GeneratedTokens
		m.asOf, m.restored = cost.AsOf.Time, cost.AsOf.Time
	}
	return m
}

// count takes the pool's pods and samples at now into the totals. newest is the revision whose pods say what is counted.
// claims are those of the pods that are known.
func (m *meter) count(pods []*corev1.Pod, claims map[string]plan.Claim, sample observe.PoolSample, newest string, now time.Time) {
	if device := deviceOf(pods, claims, newest, m.device); device != m.device {
		*m = *newMeter(nil)
		m.device = device
	}
	m.countDevices(pods, claims, now)
	m.countTokens(pods, sample)
}

// deviceOf is the kind of device of the newest revision's pods; before while there is none, or it is not known.
func deviceOf(pods []*corev1.Pod, claims map[string]plan.Claim, newest, before string) string {
	for _, pod := range pods {
		if pod.Labels[v1alpha1.LabelRevision] != newest && before != "" {
			continue
		}
		if kind, _ := plan.Devices(pod, claims); kind != "" {
			return kind
		}
	}
	return before
}

// countDevices counts what pods hold. A claim that several pods share counts with the first by name that holds it. A pod of which
// a claim is not known counts from when it is.
func (m *meter) countDevices(pods []*corev1.Pod, claims map[string]plan.Claim, now time.Time) {
	pods, claims = slices.Clone(pods), maps.Clone(claims)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	held := make(map[types.UID]int64, len(pods))
	there := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		there[pod.UID] = true
		from, to := plan.Held(pod)
		if from.IsZero() {
			continue
		}
		_, devices := plan.Devices(pod, claims)
		if !known(plan.ClaimNames(pod), claims) {
			continue
		}
		if to.IsZero() {
			for _, name := range plan.ClaimNames(pod) {
				claims[name] = plan.Claim{}
			}
		}
		if m.since.IsZero() || from.Before(m.since) && m.restored.IsZero() {
			m.since = from
		}
		if to.IsZero() {
			held[pod.UID] = devices
			to = now
		}
		if was, seen := m.held[pod.UID]; seen {
			devices = was // a shared claim that it takes over was another's until now
		}
		m.add(devices, from, to)
	}
	for uid, devices := range m.held {
		if !there[uid] { // it went since, and its end called for this count
			m.add(devices, m.asOf, now)
		}
	}
	m.held = held
	if !m.since.IsZero() {
		m.asOf = now
	}
}

// known says whether all of these claims are.
func known(names []string, claims map[string]plan.Claim) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		_, there := claims[name]
		return !there
	})
}

// add counts devices that were held from one time to another, as far as that is not counted yet.
func (m *meter) add(devices int64, from, to time.Time) {
	if from.Before(m.asOf) {
		from = m.asOf
	}
	if to.After(from) {
		m.deviceMillis += devices * to.Sub(from).Milliseconds()
	}
}

func (m *meter) countTokens(pods []*corev1.Pod, sample observe.PoolSample) {
	made := make(map[types.UID]time.Time, len(pods))
	for _, pod := range pods {
		made[pod.UID] = pod.CreationTimestamp.Time
	}
	for _, pod := range sample.Pods {
		at, known := made[pod.UID]
		if !known {
			continue
		}
		for _, r := range pod.Ranks {
			rank := engineRank{pod.UID, r.DPRank}
			is := tokens{max(0, r.TotalPrefillUncached), max(0, r.TotalGenerated)}
			was, seen := m.seen[rank]
			if !seen && !m.restored.IsZero() && !at.After(m.restored) {
				was = is // an earlier operator has counted it
			}
			m.prompt += grown(was.prompt, is.prompt)
			m.generated += grown(was.generated, is.generated)
			m.seen[rank] = is
		}
	}
	for rank := range m.seen {
		if _, known := made[rank.pod]; !known {
			delete(m.seen, rank)
		}
	}
}

// grown is how much a counter has grown; one that fell has begun anew.
func grown(was, is int64) int64 {
	if is < was {
		return is
	}
	return is - was
}

// cost gives the totals; nil while no pod held a device.
func (m *meter) cost(role v1alpha1.Role) *v1alpha1.PoolCost {
	if m.since.IsZero() {
		return nil
	}
	cost := &v1alpha1.PoolCost{
		Device: m.device, DeviceSeconds: m.deviceMillis / 1000, PromptTokens: m.prompt, GeneratedTokens: m.generated,
		Since: metav1.NewTime(m.since.Truncate(time.Second)), AsOf: metav1.NewTime(m.asOf.Truncate(time.Second)),
	}
	for _, devices := range m.held {
		cost.Devices += devices
	}
	cost.DeviceSecondsPer1kTokens = plan.PerThousand(m.deviceMillis, plan.CostTokens(role, m.prompt, m.generated))
	return cost
}

// sameCost says whether a cost tells nothing new but that time went by.
func sameCost(a, b *v1alpha1.PoolCost) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Device == b.Device && a.Devices == b.Devices && a.PromptTokens == b.PromptTokens && a.GeneratedTokens == b.GeneratedTokens
}
