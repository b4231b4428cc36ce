package observe

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "team-a", Name: name}
}

func podTarget(pool, pod, uid string) target {
	return target{pool: key(pool), pod: key(pod), uid: types.UID(uid), labels: labels.Set{"pool": pool}, role: v1alpha1.RoleUnified, readySince: epoch}
}

// poll is one poll's outcome at a second after the epoch.
type poll struct {
	second int
	load   loads.Load
	err    error
}

func TestDrained(t *testing.T) {
	busy := loads.Load{NumRunningReqs: 1}
	pd := func(d loads.Disaggregation) loads.Load { return loads.Load{Disaggregation: &d} }
	failed := errors.New("timeout")

	for _, tc := range []struct {
		name    string
		reason  string
		role    v1alpha1.Role
		since   int // second
		polls   []poll
		drained bool
		known   bool
	}{
		{name: "NoPoll", reason: "nothing is known"},
		{name: "OldSample", reason: "a sample from before says nothing about after", since: 5, polls: []poll{{second: 3}, {second: 5}}},
		{name: "OneIdle", reason: "one idle sample may have missed a request between two queues", polls: []poll{{second: 2}}, known: true},
		{name: "TwoIdle", reason: "two consecutive ones cannot", polls: []poll{{second: 2}, {second: 4}}, drained: true, known: true},
		{name: "OneBeforeOneAfter", reason: "both must be after", since: 3, polls: []poll{{second: 2}, {second: 4}}, known: true},
		{name: "LongIdle", reason: "the newest two are after", since: 3, polls: []poll{{second: 2}, {second: 4}, {second: 6}}, drained: true, known: true},
		{name: "BusyBetween", reason: "they must be consecutive", polls: []poll{{second: 2}, {second: 4, load: busy}, {second: 6}}, known: true},
		{name: "FailedBetween", reason: "a failed poll may hide work", polls: []poll{{second: 2}, {second: 4, err: failed}, {second: 6}}, known: true},
		{name: "FailedLast", reason: "the newest poll does not tell", polls: []poll{{second: 2}, {second: 4}, {second: 6, err: failed}}},
		{name: "Waiting", reason: "a queue is not empty", polls: []poll{{second: 2, load: loads.Load{NumWaitingReqs: 1}}, {second: 4, load: loads.Load{NumWaitingReqs: 1}}}, known: true},
		{name: "Grammar", reason: "a queue outside of num_waiting_reqs is not empty",
			polls: []poll{{second: 2, load: loads.Load{Queues: &loads.Queues{Grammar: 1}}}, {second: 4, load: loads.Load{Queues: &loads.Queues{Grammar: 1}}}}, known: true},
		{name: "PrefillInflight", reason: "KV is still on its way", role: v1alpha1.RolePrefill,
			polls: []poll{{second: 2, load: pd(loads.Disaggregation{PrefillInflightQueueReqs: 1})}, {second: 4, load: pd(loads.Disaggregation{PrefillInflightQueueReqs: 1})}}, known: true},
		{name: "DecodePrealloc", reason: "a hand-over has begun", role: v1alpha1.RoleDecode,
			polls: []poll{{second: 2, load: pd(loads.Disaggregation{DecodePreallocQueueReqs: 1})}, {second: 4, load: pd(loads.Disaggregation{DecodePreallocQueueReqs: 1})}}, known: true},
		{name: "DecodeIdle", reason: "every queue is empty", role: v1alpha1.RoleDecode,
			polls: []poll{{second: 2, load: pd(loads.Disaggregation{})}, {second: 4, load: pd(loads.Disaggregation{})}}, drained: true, known: true},
		{name: "DecodeWithoutSection", reason: "without its PD queues a decode engine is not known to be idle", role: v1alpha1.RoleDecode,
			polls: []poll{{second: 2}, {second: 4}}, known: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := NewStore(testingclock.NewFakePassiveClock(epoch), 2*time.Second)
			pod := podTarget("pool", "a-0-0", "uid")
			if tc.role != "" {
				pod.role = tc.role
			}
			store.sync([]target{pod})
			for _, p := range tc.polls {
				store.put(pod.pod, pod.uid, epoch.Add(time.Duration(p.second)*time.Second), []loads.Load{p.load}, p.err)
			}
			drained, known := store.Drained(pod.pod, epoch.Add(time.Duration(tc.since)*time.Second))
			if drained != tc.drained || known != tc.known {
				t.Errorf("got drained %t, known %t; want %t, %t: %s", drained, known, tc.drained, tc.known, tc.reason)
			}
		})
	}
}

func TestOutstanding(t *testing.T) {
	clk := testingclock.NewFakePassiveClock(epoch)
	store := NewStore(clk, 2*time.Second)
	pod := podTarget("pool", "d-0-0", "uid")
	pod.role = v1alpha1.RoleDecode
	store.sync([]target{pod})

	if n, known := store.Outstanding(pod.pod); known {
		t.Errorf("before the first sample: got %d, want unknown", n)
	}
	store.put(pod.pod, pod.uid, epoch, []loads.Load{
		{NumRunningReqs: 3, NumWaitingReqs: 6, Disaggregation: &loads.Disaggregation{DecodePreallocQueueReqs: 2, DecodeTransferQueueReqs: 1}, Queues: &loads.Queues{Waiting: 3}},
		{DPRank: 1, NumRunningReqs: 1, Disaggregation: &loads.Disaggregation{PrefillInflightQueueReqs: 4}},
	}, nil)
	if n, known := store.Outstanding(pod.pod); !known || n != 14 {
		t.Errorf("got %d, %t; want 14 over both ranks, each request once", n, known)
	}
	clk.SetTime(epoch.Add(11 * time.Second))
	if n, known := store.Outstanding(pod.pod); known {
		t.Errorf("once stale: got %d, want unknown", n)
	}
}

func TestSync(t *testing.T) {
	clk := testingclock.NewFakePassiveClock(epoch)
	store := NewStore(clk, 2*time.Second)
	names := func() map[string][]string {
		got := map[string][]string{}
		for _, pool := range store.poolNames() {
			for _, p := range store.Pool(pool).Pods {
				name := p.Name
				if !p.Taken.IsZero() {
					name += " sampled"
				}
				got[pool.Name] = append(got[pool.Name], name)
			}
		}
		return got
	}
	a, b := podTarget("x", "a", "1"), podTarget("x", "b", "2")

	store.sync([]target{b, a})
	store.put(a.pod, a.uid, epoch, []loads.Load{{}}, nil)
	if diff := cmp.Diff(map[string][]string{"x": {"a sampled", "b"}}, names()); diff != "" {
		t.Errorf("two pods (-want +got):\n%s", diff)
	}
	store.put(b.pod, "other", epoch, []loads.Load{{}}, nil)
	store.put(key("unknown"), "3", epoch, []loads.Load{{}}, nil)
	if diff := cmp.Diff(map[string][]string{"x": {"a sampled", "b"}}, names()); diff != "" {
		t.Errorf("answers of other pods are dropped (-want +got):\n%s", diff)
	}
	again := a
	again.uid = "4"
	store.sync([]target{again, b})
	if diff := cmp.Diff(map[string][]string{"x": {"a", "b"}}, names()); diff != "" {
		t.Errorf("a new pod of the same name starts without a sample (-want +got):\n%s", diff)
	}
	moved := b
	moved.pool = key("y")
	store.sync([]target{again, moved})
	if diff := cmp.Diff(map[string][]string{"x": {"a"}, "y": {"b"}}, names()); diff != "" {
		t.Errorf("a pod belongs to one pool (-want +got):\n%s", diff)
	}
	store.sync(nil)
	if diff := cmp.Diff(map[string][]string{}, names()); diff != "" {
		t.Errorf("gone pods are pruned (-want +got):\n%s", diff)
	}
	if len(store.of) != 0 {
		t.Errorf("the index holds %d pods, want none", len(store.of))
	}
}

func TestSelect(t *testing.T) {
	store := NewStore(testingclock.NewFakePassiveClock(epoch), 2*time.Second)
	other := podTarget("x", "c", "3")
	other.pod.Namespace, other.pool.Namespace = "team-b", "team-b"
	store.sync([]target{podTarget("x", "b", "2"), podTarget("x", "a", "1"), podTarget("y", "d", "4"), other})
	var got []string
	for _, p := range store.Select("team-a", labels.SelectorFromSet(labels.Set{"pool": "x"})) {
		got = append(got, p.Name)
	}
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFreshFor(t *testing.T) {
	for _, tc := range []struct{ interval, want time.Duration }{
		{time.Second, 10 * time.Second}, {2 * time.Second, 10 * time.Second}, {5 * time.Second, 15 * time.Second},
	} {
		if got := NewStore(testingclock.NewFakePassiveClock(epoch), tc.interval).FreshFor(); got != tc.want {
			t.Errorf("interval %s: got %s, want %s", tc.interval, got, tc.want)
		}
	}
}
