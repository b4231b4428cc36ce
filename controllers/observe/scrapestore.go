package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// PodReading is the newest knowledge about the metrics of one pod. It is a value: readers may keep it.
type PodReading struct {
	UID types.UID
	// Taken is when the request for the newest good answer was sent, by the operator's clock; zero when there is none.
	Taken      time.Time
	Exposition Exposition
	// Err is why the newest scrape failed, Failures how many did in a row, and FailedSince when the first of these was sent;
	// zero while none failed. TimedOut: there was no answer at all.
	Err         error
	Failures    int
	FailedSince time.Time
	TimedOut    bool
	// Frozen are the ranks that hold work and do none.
	Frozen []FrozenRank
}

// Proofs keeps what the Scraper read of the pods, and what Prometheus stored, and tells controllers when a reader would see
// a difference. It is safe for concurrent use.
type Proofs struct {
	clock    clock.PassiveClock
	interval time.Duration

	mu       sync.Mutex
	pods     map[types.NamespacedName]*scraped
	stored   map[types.NamespacedName]*Stored // by pool
	services map[types.NamespacedName]*kvLaw  // by service
	findings map[types.NamespacedName][]Finding

	poolListeners, serviceListeners listeners
}

// scraped is one pod.
type scraped struct {
	PodReading
	pool    types.NamespacedName
	service types.NamespacedName
	role    v1alpha1.Role
	watch   frozenWatch
	history []kvReading // of its hand-overs, oldest first, at most kvHistory
	verdict string      // what was last announced
}

// NewProofs makes an empty store for scrapes an interval apart.
func NewProofs(clk clock.PassiveClock, interval time.Duration) *Proofs {
	return &Proofs{
		clock: clk, interval: interval,
		pods: map[types.NamespacedName]*scraped{}, stored: map[types.NamespacedName]*Stored{},
		services: map[types.NamespacedName]*kvLaw{}, findings: map[types.NamespacedName][]Finding{},
	}
}

// Pool gives the newest readings of a pool's pods.
func (s *Proofs) Pool(pool types.NamespacedName) PoolProof {
	s.mu.Lock()
	defer s.mu.Unlock()
	proof := PoolProof{Pods: map[string]PodReading{}, Interval: s.interval, Stored: s.stored[pool]}
	for name, p := range s.pods {
		if p.pool == pool {
			proof.Pods[name.Name] = p.PodReading
		}
	}
	return proof
}

// KV says whether the hand-overs of a service add up over its engines.
func (s *Proofs) KV(service types.NamespacedName) KVVerdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	if law := s.services[service]; law != nil {
		return law.verdict
	}
	return KVVerdict{}
}

// Note takes what a controller found out about a pool, for the operator's own series; nil when the pool is gone.
func (s *Proofs) Note(pool types.NamespacedName, findings []Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(findings) == 0 {
		delete(s.findings, pool)
		return
	}
	s.findings[pool] = findings
}

// Source makes a controller reconcile an EnginePool when the readings of its pods, or what Prometheus has of them, changed.
func (s *Proofs) Source() source.Source { return s.poolListeners.source() }

// ServiceSource makes a controller reconcile an InferenceService when the verdict on its hand-overs changed.
func (s *Proofs) ServiceSource() source.Source { return s.serviceListeners.source() }

func (l *listeners) source() source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		context.AfterFunc(ctx, l.add(q))
		return nil
	})
}

func (l *listeners) tell(name types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.queues {
		q.Add(reconcile.Request{NamespacedName: name})
	}
}

// place says where a pod belongs; false when it is none of ours.
func place(pod *corev1.Pod) (pool, service types.NamespacedName, ok bool) {
	pool, ok = poolOf(pod)
	return pool, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelService]}, ok
}

// sync makes the store hold exactly these pods; one with a new UID starts anew.
func (s *Proofs) sync(targets []scrapeTarget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[types.NamespacedName]bool{}
	pools := map[types.NamespacedName]bool{}
	for _, t := range targets {
		seen[t.pod], pools[t.pool] = true, true
		if old := s.pods[t.pod]; old == nil || old.UID != t.uid {
			s.pods[t.pod] = &scraped{PodReading: PodReading{UID: t.uid}, pool: t.pool, service: t.service, role: t.role}
		}
	}
	maps.DeleteFunc(s.pods, func(name types.NamespacedName, _ *scraped) bool { return !seen[name] })
	maps.DeleteFunc(s.stored, func(pool types.NamespacedName, _ *Stored) bool { return !pools[pool] })
	used := map[types.NamespacedName]bool{}
	for _, p := range s.pods {
		used[p.service] = true
	}
	maps.DeleteFunc(s.services, func(service types.NamespacedName, _ *kvLaw) bool { return !used[service] })
}

// put records the outcome of a scrape, and tells who would see a difference.
func (s *Proofs) put(t scrapeTarget, sent time.Time, e Exposition, result outcome, err error) {
	s.mu.Lock()
	p := s.pods[t.pod]
	if p == nil || p.UID != t.uid {
		s.mu.Unlock()
		return
	}
	p.Err, p.TimedOut = err, result == outcomeTimeout
	if err != nil {
		if p.Failures++; p.Failures == 1 {
			p.FailedSince = sent
		}
	} else {
		p.Failures, p.FailedSince, p.Taken, p.Exposition = 0, time.Time{}, sent, e
		p.Frozen = p.watch.see(e, p.role, sent)
		p.history = append(p.history, kvReading{sent, e.Sent, e.Received})
		if len(p.history) > kvHistory {
			p.history = slices.Clone(p.history[1:])
		}
	}
	changed := false
	if verdict := p.say(); verdict != p.verdict {
		p.verdict, changed = verdict, true
	}
	judged := s.judgeLocked(p.service)
	s.mu.Unlock()
	if changed {
		s.poolListeners.tell(t.pool)
	}
	if judged {
		s.serviceListeners.tell(t.service)
	}
}

// judgeLocked looks at the hand-overs of a service anew, and says whether the verdict changed.
func (s *Proofs) judgeLocked(service types.NamespacedName) (changed bool) {
	law := s.services[service]
	if law == nil {
		law = &kvLaw{}
		s.services[service] = law
	}
	var pods []kvPod
	for name, p := range s.pods {
		if p.service == service && p.role != v1alpha1.RoleUnified {
			pods = append(pods, kvPod{name.Name, p.UID, p.role, p.history})
		}
	}
	slices.SortFunc(pods, func(a, b kvPod) int { return strings.Compare(a.name, b.name) })
	before := law.verdict
	law.judge(pods, s.clock.Now(), s.interval)
	return before.Broken != law.verdict.Broken || before.Judged != law.verdict.Judged
}

// putStored records what Prometheus has of a pool.
func (s *Proofs) putStored(pool types.NamespacedName, stored *Stored) {
	s.mu.Lock()
	before := s.stored[pool]
	stored.follow(before)
	s.stored[pool] = stored
	s.mu.Unlock()
	if before == nil || before.digest() != stored.digest() {
		s.poolListeners.tell(pool)
	}
}

// say is a text that changes when a reader of the pod would see a difference, ages apart.
func (p *scraped) say() string {
	var text strings.Builder
	fmt.Fprint(&text, p.Taken.IsZero(), p.Failures >= failuresInRow, p.Err)
	for _, rank := range slices.SortedFunc(maps.Keys(p.Exposition.Ranks), RankID.compare) {
		fmt.Fprint(&text, rank, p.Exposition.Ranks[rank].missing(p.role))
	}
	for _, law := range slices.Sorted(maps.Keys(p.Exposition.Violations)) {
		fmt.Fprint(&text, law, p.Exposition.Violations[law])
	}
	fmt.Fprint(&text, p.Frozen)
	return text.String()
}

// poolTotals is what the operator's series tell of a pool.
type poolTotals struct {
	service    string
	frozen     int
	violations map[string]float64 // by law
	missing    map[Cause]int
}

// totals gives those of every pool with pods.
func (s *Proofs) totals() map[types.NamespacedName]*poolTotals {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[types.NamespacedName]*poolTotals{}
	for _, p := range s.pods {
		t := all[p.pool]
		if t == nil {
			t = &poolTotals{service: p.service.Name, violations: map[string]float64{}, missing: map[Cause]int{}}
			for _, f := range s.findings[p.pool] {
				t.missing[f.Cause]++
			}
			all[p.pool] = t
		}
		t.frozen += len(p.Frozen)
		for law, n := range p.Exposition.Violations {
			t.violations[law] += n
		}
	}
	return all
}

// verdicts gives those of all services.
func (s *Proofs) verdicts() map[types.NamespacedName]KVVerdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	verdicts := make(map[types.NamespacedName]KVVerdict, len(s.services))
	for service, law := range s.services {
		verdicts[service] = law.verdict
	}
	return verdicts
}
