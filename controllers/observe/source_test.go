package observe

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/sluice-dev/sluice/engine/loads"
)

// drain takes everything from the queue, sorted.
func drain(q queue) []string {
	var names []string
	for q.Len() > 0 {
		request, _ := q.Get()
		q.Done(request)
		names = append(names, request.Name)
	}
	slices.Sort(names)
	return names
}

func TestSourceAnnouncesChanges(t *testing.T) {
	clk := testingclock.NewFakePassiveClock(epoch)
	store := NewStore(clk, 2*time.Second)
	a, b := podTarget("x", "a", "1"), podTarget("y", "b", "2")
	store.sync([]target{a, b})

	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	if err := store.Source().Start(ctx, q); err != nil {
		t.Fatal(err)
	}
	all := store.poolNames()
	step := func(reason string, want ...string) {
		t.Helper()
		store.announce(all)
		if diff := cmp.Diff(want, drain(q)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
	put := func(second int, load loads.Load) {
		store.put(a.pod, a.uid, epoch.Add(time.Duration(second)*time.Second), []loads.Load{load}, nil)
	}

	if diff := cmp.Diff([]string{"x", "y"}, drain(q)); diff != "" {
		t.Errorf("a new queue gets every pool (-want +got):\n%s", diff)
	}
	step("the first announcement is a change", "x", "y")
	step("nothing happened")
	put(0, loads.Load{NumRunningReqs: 1, Utilization: 0.5})
	step("the first sample", "x")
	put(2, loads.Load{NumRunningReqs: 1, Utilization: 0.5, Timestamp: 7, TotalPrefillBusyMicro: 3})
	step("a sample with the same load")
	put(2, loads.Load{NumRunningReqs: 1, Utilization: 0.5049})
	step("a change below the rounding")
	put(3, loads.Load{NumRunningReqs: 1, Utilization: 0.5, TotalGenerated: 1})
	step("a token, which costs something", "x")
	put(4, loads.Load{NumRunningReqs: 2, Utilization: 0.5})
	put(6, loads.Load{NumRunningReqs: 3, Utilization: 0.5})
	step("two changes are one announcement", "x")
	clk.SetTime(epoch.Add(17 * time.Second))
	step("the sample became stale", "x")

	draining := a
	draining.draining = true
	store.sync([]target{draining, b})
	put(18, loads.Load{})
	step("a draining pod is idle once", "x")
	put(20, loads.Load{})
	step("and twice, which proves it", "x")
	put(22, loads.Load{})
	step("and stays so")

	store.sync(nil)
	step("the pools lost their pods", "x", "y")
	if got := store.announced(); len(got) != 0 {
		t.Errorf("%d pools are remembered, want none", len(got))
	}

	cancel()
	deadline := time.After(10 * time.Second)
	for listening := true; listening; {
		store.listeners.mu.Lock()
		listening = len(store.listeners.queues) > 0
		store.listeners.mu.Unlock()
		select {
		case <-deadline:
			t.Fatal("a queue whose controller ended is still told")
		default:
		}
	}
}

func TestMetrics(t *testing.T) {
	clk := testingclock.NewFakePassiveClock(epoch.Add(11 * time.Second))
	store := NewStore(clk, 2*time.Second)
	var targets []target
	for _, name := range []string{"fresh-1", "fresh-2", "fresh-3", "stale-1", "stale-2", "none-1"} {
		targets = append(targets, podTarget("x", name, name))
	}
	store.sync(targets)
	for i, second := range []int{10, 9, 4, 0, 0} {
		store.put(targets[i].pod, targets[i].uid, epoch.Add(time.Duration(second)*time.Second), []loads.Load{{}}, nil)
	}
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry, store, clk)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range outcomes() {
		for range i + 1 {
			m.polled(o, time.Duration(i+1)*250*time.Millisecond) // exact in binary
		}
	}
	want := `
# HELP sluice_operator_poll_seconds Duration of polls of engines for their load.
# TYPE sluice_operator_poll_seconds histogram
sluice_operator_poll_seconds_bucket{le="0.001"} 0
sluice_operator_poll_seconds_bucket{le="0.0025"} 0
sluice_operator_poll_seconds_bucket{le="0.005"} 0
sluice_operator_poll_seconds_bucket{le="0.01"} 0
sluice_operator_poll_seconds_bucket{le="0.025"} 0
sluice_operator_poll_seconds_bucket{le="0.05"} 0
sluice_operator_poll_seconds_bucket{le="0.1"} 0
sluice_operator_poll_seconds_bucket{le="0.25"} 1
sluice_operator_poll_seconds_bucket{le="0.5"} 3
sluice_operator_poll_seconds_bucket{le="1"} 10
sluice_operator_poll_seconds_bucket{le="2.5"} 21
sluice_operator_poll_seconds_bucket{le="+Inf"} 21
sluice_operator_poll_seconds_sum 22.75
sluice_operator_poll_seconds_count 21
# HELP sluice_operator_polls_total Polls of engines for their load, by result.
# TYPE sluice_operator_polls_total counter
sluice_operator_polls_total{result="connect"} 3
sluice_operator_polls_total{result="malformed"} 6
sluice_operator_polls_total{result="ok"} 1
sluice_operator_polls_total{result="status"} 4
sluice_operator_polls_total{result="timeout"} 2
sluice_operator_polls_total{result="too_large"} 5
# HELP sluice_operator_sample_age_seconds Age of the oldest sample that is fresh.
# TYPE sluice_operator_sample_age_seconds gauge
sluice_operator_sample_age_seconds 7
# HELP sluice_operator_samples Leader pods by the state of their newest sample.
# TYPE sluice_operator_samples gauge
sluice_operator_samples{state="fresh"} 3
sluice_operator_samples{state="none"} 1
sluice_operator_samples{state="stale"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if _, err := NewMetrics(registry, store, clk); err == nil {
		t.Error("registering twice succeeded")
	}
}
