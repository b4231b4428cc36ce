package metrics

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestOutcomesAreReadUnderOneCut: writers and scrapes at the same time, and the equation holds at every scrape.
func TestOutcomesAreReadUnderOneCut(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dir := t.TempDir()
	store := openStore(t, dir, "api")
	f := NewFront(store, FrontLabels{ModelName: "tiny", EngineType: "unified"}, Buckets{}, ledgertest.New())
	g := newGatherer(t, dir)
	g.Guard(store, f.Cut())

	var (
		writers  sync.WaitGroup
		order    sync.Mutex // of the calls
		inFlight int
	)
	for w := range 3 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 5000 {
				order.Lock()
				ended := 0
				if inFlight > 0 {
					ended = rng.IntN(inFlight + 1)
				}
				submitted := rng.IntN(3)
				inFlight += submitted - ended
				f.Requests(submitted, ended, request.Outcomes()[rng.IntN(len(request.Outcomes()))], inFlight)
				order.Unlock()
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		families, err := g.Gather()
		if err != nil {
			t.Fatal(err)
		}
		sums := map[string]float64{}
		for _, family := range families {
			for _, m := range family.Metric {
				sums[family.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		submitted, ended, open := sums[requestsSubmitted.Name], sums[requestOutcomes.Name], sums[requestsInFlight.Name]
		if submitted != ended+open {
			t.Fatalf("%v submitted, %v ended, %v in flight", submitted, ended, open)
		}
	}
}

// A key counts once however many requests have it, and what was never held changes nothing.
func TestRoutingKeysAreCountedOnce(t *testing.T) {
	r := &recorder{}
	f := NewFront(r, FrontLabels{EngineType: "unified"}, Buckets{}, ledgertest.New())
	r.take()
	f.RoutingKeyHeld("a")
	f.RoutingKeyHeld("a")
	f.RoutingKeyHeld("b")
	f.RoutingKeyFreed("a")
	f.RoutingKeyFreed("c")
	f.RoutingKeyFreed("b")
	f.RoutingKeyFreed("a")
	f.RoutingKeyFreed("a")
	want := []string{"routing_keys_active +1", "routing_keys_active +1", "routing_keys_active -1", "routing_keys_active -1"}
	if diff := cmp.Diff(want, r.take()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(f.routingKeys.held) != 0 {
		t.Errorf("%v are still held", f.routingKeys.held)
	}
}

// The label of a request without a priority is empty, never a word for none; without priority scheduling there is no label.
func TestPrioritiesOfRequests(t *testing.T) {
	for _, c := range []struct {
		name     string
		labels   FrontLabels
		priority *int
		want     string
	}{
		{"none", FrontLabels{Priority: true}, nil, "inter_token_latency_seconds{priority=} 1 / 1"},
		{"zero", FrontLabels{Priority: true}, new(0), "inter_token_latency_seconds{priority=0} 1 / 1"},
		{"negative", FrontLabels{Priority: true}, new(-3), "inter_token_latency_seconds{priority=-3} 1 / 1"},
		{"off", FrontLabels{}, new(5), "inter_token_latency_seconds 1 / 1"},
		{"an extra label of that name wins", FrontLabels{Priority: true, Extra: map[string]string{"priority": "x"}}, new(5), "inter_token_latency_seconds{priority=x} 1 / 1"},
		{"a custom label of that name does not", FrontLabels{Priority: true, Custom: []string{"priority"}}, new(5), "inter_token_latency_seconds{priority=5} 1 / 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &recorder{}
			c.labels.EngineType = "unified"
			f := NewFront(r, c.labels, Buckets{}, ledgertest.New())
			r.take()
			f.InterToken(Subject{Priority: c.priority}, 1e9, 1)
			if diff := cmp.Diff([]string{c.want}, r.take()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	r := &recorder{}
	f := NewFront(r, FrontLabels{EngineType: "unified", Priority: true, MaxValues: 5}, Buckets{}, ledgertest.New())
	for i := range 20 {
		f.InterToken(Subject{Priority: &i}, 1e9, 1)
	}
	got := r.take()
	if want := "inter_token_latency_seconds{priority=other} 1 / 1"; got[len(got)-1] != want {
		t.Errorf("beyond the cap: %s, not %s", got[len(got)-1], want)
	}
}

// Names that families have themselves can't be labels of clients or flags.
func TestReservedLabels(t *testing.T) {
	for name, want := range map[string]bool{
		"is_streaming": true, "cache_source": true, "outcome": true, "phase": true, "endpoint": true, "status_code": true, "stage": true,
		"team": false, "model_name": false, "context": false,
	} {
		if Reserved(name) != want {
			t.Errorf("%s is reserved: %t", name, !want)
		}
	}
}

// The longest of several steps of one name stays.
func TestStartup(t *testing.T) {
	r := &recorder{}
	f := NewFront(r, FrontLabels{EngineType: "unified"}, Buckets{}, ledgertest.New())
	r.take()
	for _, nanos := range []int64{2e9, 1e9, 3e9} {
		f.StartupStep("start_ranks", nanos)
	}
	f.StartupTime("load_weight", 4e9)
	want := []string{
		"startup_latency_breakdown_seconds_max{context=start_ranks} = 2", "startup_latency_breakdown_seconds_max{context=start_ranks} = 3",
		"startup_time_seconds{phase=load_weight} = 4",
	}
	if diff := cmp.Diff(want, r.take()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func BenchmarkRequests(b *testing.B) {
	f := NewFront(openStore(b, b.TempDir(), "bench"), FrontLabels{ModelName: "tiny", EngineType: "unified"}, Buckets{}, ledgertest.New())
	b.ReportAllocs()
	for b.Loop() {
		f.Requests(1, 0, "", 1)
		f.Requests(0, 1, request.OutcomeStop, 0)
	}
}
