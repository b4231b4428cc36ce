package observe

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

// minFresh is the shortest time for which a sample counts.
const minFresh = 10 * time.Second

// Store keeps the newest sample of every leader pod. The Poller alone writes to it; everybody may read.
type Store struct {
	clock    clock.PassiveClock
	freshFor time.Duration

	mu    sync.RWMutex
	pools map[types.NamespacedName]map[string]*podState // by pool, then pod name; no pool is empty
	of    map[types.NamespacedName]types.NamespacedName // pod to pool; holds exactly the pods in pools

	listeners listeners
}

// podState is what the store knows of one pod.
type podState struct {
	PodSample

	// prefill remembers what the ranks had done of prefill at earlier samples, for Work.
	prefill prefillHistory
	// events remembers readings of the latency histograms, for Events.
	events eventHistory

	// run holds the newest polls since the last one that failed or found work, oldest first, at most idlePolls long:
	// when each was sent. Two of them after a time prove that the pod is drained since.
	run []time.Time
}

// idlePolls is how many consecutive idle samples prove that a pod is drained: a request that the first one missed,
// because it was between two queues, is in the second.
const idlePolls = 2

// NewStore makes an empty store for samples that are taken once an interval.
func NewStore(clk clock.PassiveClock, interval time.Duration) *Store {
	return &Store{
		clock:    clk,
		freshFor: max(3*interval, minFresh),
		pools:    map[types.NamespacedName]map[string]*podState{},
		of:       map[types.NamespacedName]types.NamespacedName{},
	}
}

// FreshFor is how long a sample counts.
func (s *Store) FreshFor() time.Duration { return s.freshFor }

// Pool gives the samples of the leader pods of an EnginePool; it has no pods when none is known.
func (s *Store) Pool(pool types.NamespacedName) PoolSample {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.poolLocked(pool)
}

func (s *Store) poolLocked(pool types.NamespacedName) PoolSample {
	sample := PoolSample{Pool: pool, FreshFor: s.freshFor}
	for _, p := range s.pools[pool] {
		sample.Pods = append(sample.Pods, p.PodSample)
	}
	sortPods(sample.Pods)
	return sample
}

// Pod gives the sample of one leader pod; false when the pod is not known.
func (s *Store) Pod(pod types.NamespacedName) (PodSample, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.podLocked(pod)
	if p == nil {
		return PodSample{}, false
	}
	return p.PodSample, true
}

// Select gives the known leader pods of a namespace that match the selector, in the order of their names.
func (s *Store) Select(namespace string, selector labels.Selector) []PodSample {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var pods []PodSample
	for pool, members := range s.pools {
		if pool.Namespace != namespace {
			continue
		}
		for _, p := range members {
			if selector.Matches(p.Labels) {
				pods = append(pods, p.PodSample)
			}
		}
	}
	sortPods(pods)
	return pods
}

// Drained says whether the pod has had no request since a time: two consecutive samples that were both taken after it
// show nothing running and nothing in any queue. It is not known while the newest poll after that time is outstanding
// or failed, or the pod is not known to the store. A pod that is known not to be drained may become so later.
//
// The time should be one at which the pod surely got no new requests any more.
func (s *Store) Drained(pod types.NamespacedName, since time.Time) (drained, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.podLocked(pod)
	if p == nil || p.Err != nil || !p.Taken.After(since) {
		return false, false
	}
	return len(p.run) == idlePolls && p.run[0].After(since), true
}

// Outstanding says how many requests the pod holds, running and in every queue, by its newest sample; false when no
// sample is fresh. The replica to remove is the one with the least.
func (s *Store) Outstanding(pod types.NamespacedName) (requests int64, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.podLocked(pod)
	if p == nil || !p.Fresh(s.clock.Now(), s.freshFor) {
		return 0, false
	}
	return p.PodSample.Outstanding()
}

func (s *Store) podLocked(pod types.NamespacedName) *podState {
	pool, ok := s.of[pod]
	if !ok {
		return nil
	}
	return s.pools[pool][pod.Name]
}

// target is what the poller knows of a leader pod from the API server.
type target struct {
	pool       types.NamespacedName
	pod        types.NamespacedName
	uid        types.UID
	labels     labels.Set
	role       v1alpha1.Role
	dataRanks  int
	draining   bool
	readySince time.Time
	url        string // empty while the pod cannot be polled
	metricsURL string // of pools that scale on latency; empty for others
}

// sync makes the store hold exactly these pods. A pod with a new UID starts without a sample.
func (s *Store) sync(targets []target) {
	s.mu.Lock()
	defer s.mu.Unlock()

	seen := make(map[types.NamespacedName]bool, len(targets))
	for _, t := range targets {
		seen[t.pod] = true
		if old, ok := s.of[t.pod]; ok && (old != t.pool || s.pools[old][t.pod.Name].UID != t.uid) {
			s.dropLocked(t.pod)
		}
		p := s.podLocked(t.pod)
		if p == nil {
			p = &podState{PodSample: PodSample{Name: t.pod.Name, UID: t.uid, Pool: t.pool}}
			if s.pools[t.pool] == nil {
				s.pools[t.pool] = map[string]*podState{}
			}
			s.pools[t.pool][t.pod.Name] = p
			s.of[t.pod] = t.pool
		}
		p.Labels, p.Role, p.DataRanks, p.Draining, p.ReadySince = t.labels, t.role, t.dataRanks, t.draining, t.readySince
	}
	for pod := range s.of {
		if !seen[pod] {
			s.dropLocked(pod)
		}
	}
}

func (s *Store) dropLocked(pod types.NamespacedName) {
	pool := s.of[pod]
	delete(s.of, pod)
	delete(s.pools[pool], pod.Name)
	if len(s.pools[pool]) == 0 {
		delete(s.pools, pool)
	}
}

// put records the outcome of a poll that was sent at a time. It is ignored when the pod is gone or another by now.
// A failed poll keeps the older sample, which ages.
func (s *Store) put(pod types.NamespacedName, uid types.UID, sent time.Time, ranks []loads.Load, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.podLocked(pod)
	if p == nil || p.UID != uid {
		return
	}
	p.Err = err
	if err != nil {
		p.run = nil
		return
	}
	p.Taken, p.Ranks = sent, ranks
	if p.Role != v1alpha1.RoleDecode {
		p.Work = p.prefill.add(sent, ranks)
	}
	if n, ok := p.PodSample.Outstanding(); !ok || n != 0 {
		p.run = nil
		return
	}
	if len(p.run) == idlePolls {
		p.run = p.run[1:]
	}
	p.run = append(slices.Clone(p.run), sent)
}

// putEvents records a reading of a pod's latency histograms; nil when it failed. Events that nothing follows are dropped.
func (s *Store) putEvents(pod types.NamespacedName, uid types.UID, sent time.Time, now histograms) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.podLocked(pod)
	switch {
	case p == nil || p.UID != uid:
	case now != nil:
		p.Events = p.events.add(sent, now)
	case p.events.stale(sent):
		p.Events, p.events = nil, eventHistory{}
	}
}

// poolNames lists the pools with pods, in no order.
func (s *Store) poolNames() []types.NamespacedName {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Keys(s.pools))
}

// counts gives the number of samples by state and the age of the oldest fresh one, at now.
func (s *Store) counts(now time.Time) (fresh, stale, none int, oldest time.Duration) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, members := range s.pools {
		for _, p := range members {
			switch {
			case p.Taken.IsZero():
				none++
			case p.Fresh(now, s.freshFor):
				fresh++
				oldest = max(oldest, now.Sub(p.Taken))
			default:
				stale++
			}
		}
	}
	return fresh, stale, none, oldest
}

// readySince gives when the pod became Ready; zero when it is not.
func readySince(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
