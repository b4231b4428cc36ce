package autoscaling

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/router/demand"
)

func zeroPool(name string, role v1alpha1.Role, demand int32, change ...func(*ZeroPool)) ZeroPool {
	p := ZeroPool{Name: name, Role: role, Demand: demand, MayBeZero: true, IdleAfter: time.Minute, Known: true}
	for _, c := range change {
		c(&p)
	}
	return p
}

// said is what a router says: its requests so far, those open, and those that wait for decode and prefill.
func said(begun uint64, open int64, decode, prefill int) RouterDemand {
	return RouterDemand{Router: "r", Answered: true, Report: demand.Report{Begun: begun, Open: open, Waiting: map[string]int{"decode": decode, "prefill": prefill}}}
}

func TestDecideZero(t *testing.T) {
	decode := func(demand int32, change ...func(*ZeroPool)) ZeroPool {
		return zeroPool("chat-decode", v1alpha1.RoleDecode, demand, change...)
	}
	prefill := func(demand int32) ZeroPool { return zeroPool("chat-prefill", v1alpha1.RolePrefill, demand) }
	silent := RouterDemand{Router: "r"}
	type moment struct {
		second  int
		pools   []ZeroPool
		routers []RouterDemand
		want    []string
	}
	for _, tc := range []struct {
		name    string
		reason  string
		moments []moment
	}{
		{"Wakes", "somebody waits for an engine of its role", []moment{
			{0, []ZeroPool{decode(0)}, []RouterDemand{said(0, 0, 0, 0)}, nil},
			{1, []ZeroPool{decode(0)}, []RouterDemand{said(3, 3, 3, 3)}, []string{"chat-decode 0 -> 1 WakeUp: 3 requests wait in a router for a decode engine: demand 0 becomes 1"}},
		}},
		{"WakesTheRoleThatLacks", "the other pool has a replica", []moment{
			{0, []ZeroPool{decode(0), prefill(1)}, []RouterDemand{said(1, 1, 1, 0)}, []string{"chat-decode 0 -> 1 WakeUp: 1 request waits in a router for a decode engine: demand 0 becomes 1"}},
		}},
		{"OnTheWay", "a replica starts already", []moment{{0, []ZeroPool{decode(1)}, []RouterDemand{said(1, 1, 1, 0)}, nil}}},
		{"AnotherPoolOfTheRole", "one is enough to serve", []moment{
			{0, []ZeroPool{decode(0), zeroPool("chat-more", v1alpha1.RoleDecode, 2, func(p *ZeroPool) { p.MayBeZero = false })}, []RouterDemand{said(1, 1, 1, 0)}, nil},
		}},
		{"FirstOfTwo", "one is enough to serve", []moment{
			{0, []ZeroPool{zeroPool("chat-more", v1alpha1.RoleDecode, 0), decode(0)}, []RouterDemand{said(1, 1, 1, 0)},
				[]string{"chat-decode 0 -> 1 WakeUp: 1 request waits in a router for a decode engine: demand 0 becomes 1"}},
		}},
		{"PutToZeroByHand", "a pool that may not be empty stays as a person wants it", []moment{
			{0, []ZeroPool{decode(0, func(p *ZeroPool) { p.MayBeZero = false })}, []RouterDemand{said(1, 1, 1, 0)}, nil},
		}},
		{"OneRouterIsEnoughToWake", "the other does not answer", []moment{
			{0, []ZeroPool{decode(0)}, []RouterDemand{{Router: "other"}, said(1, 1, 1, 0)}, []string{"chat-decode 0 -> 1 WakeUp: 1 request waits in a router for a decode engine: demand 0 becomes 1"}},
		}},
		{"Sleeps", "idle for a minute", []moment{
			{0, []ZeroPool{decode(2)}, []RouterDemand{said(0, 0, 0, 0)}, nil},
			{59, []ZeroPool{decode(2)}, []RouterDemand{said(0, 0, 0, 0)}, nil},
			{60, []ZeroPool{decode(2)}, []RouterDemand{said(0, 0, 0, 0)},
				[]string{"chat-decode 2 -> 0 Idle: no request at any router or engine for 1m0s, scaleToZeroAfterSeconds is 60: demand 2 becomes 0"}},
		}},
		{"ShortRequestsCount", "one that began and ended between two looks", []moment{
			{0, []ZeroPool{decode(1)}, []RouterDemand{said(5, 0, 0, 0)}, nil},
			{40, []ZeroPool{decode(1)}, []RouterDemand{said(6, 0, 0, 0)}, nil},
			{90, []ZeroPool{decode(1)}, []RouterDemand{said(6, 0, 0, 0)}, nil},
			{100, []ZeroPool{decode(1)}, []RouterDemand{said(6, 0, 0, 0)},
				[]string{"chat-decode 1 -> 0 Idle: no request at any router or engine for 1m0s, scaleToZeroAfterSeconds is 60: demand 1 becomes 0"}},
		}},
		{"LongRequestsCount", "one that streams for minutes", []moment{
			{0, []ZeroPool{decode(1)}, []RouterDemand{said(1, 1, 0, 0)}, nil},
			{300, []ZeroPool{decode(1)}, []RouterDemand{said(1, 1, 0, 0)}, nil},
		}},
		{"EnginesCount", "requests that came by another way", []moment{
			{0, []ZeroPool{decode(1)}, []RouterDemand{said(0, 0, 0, 0)}, nil},
			{100, []ZeroPool{decode(1, func(p *ZeroPool) { p.Outstanding = 1 })}, []RouterDemand{said(0, 0, 0, 0)}, nil},
			{159, []ZeroPool{decode(1)}, []RouterDemand{said(0, 0, 0, 0)}, nil},
		}},
		{"UnknownIsNotIdle", "an engine does not tell", []moment{
			{0, []ZeroPool{decode(1)}, []RouterDemand{said(0, 0, 0, 0)}, nil},
			{100, []ZeroPool{decode(1, func(p *ZeroPool) { p.Known = false })}, []RouterDemand{said(0, 0, 0, 0)}, nil},
		}},
		{"SilentRouterIsNotIdle", "it may hold requests", []moment{
			{0, []ZeroPool{decode(1)}, []RouterDemand{said(0, 0, 0, 0)}, nil},
			{100, []ZeroPool{decode(1)}, []RouterDemand{silent}, nil},
			{110, []ZeroPool{decode(1)}, []RouterDemand{said(0, 0, 0, 0)}, nil},
		}},
		{"NoRouter", "requests may come by another way", []moment{{0, []ZeroPool{decode(1)}, nil, nil}, {100, []ZeroPool{decode(1)}, nil, nil}}},
		{"NewRouter", "it counts from 0, and had requests already", []moment{
			{0, []ZeroPool{decode(1)}, []RouterDemand{said(9, 0, 0, 0)}, nil},
			{100, []ZeroPool{decode(1)}, []RouterDemand{{Router: "new", Answered: true, Report: demand.Report{Begun: 2}}}, nil},
		}},
		{"WakesAnewAfterSleep", "the idle time begins when it woke", []moment{
			{0, []ZeroPool{decode(0)}, []RouterDemand{said(1, 0, 0, 0)}, nil},
			{100, []ZeroPool{decode(1)}, []RouterDemand{said(1, 0, 0, 0)},
				[]string{"chat-decode 1 -> 0 Idle: no request at any router or engine for 1m40s, scaleToZeroAfterSeconds is 60: demand 1 becomes 0"}},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var memory ZeroMemory
			for _, m := range tc.moments {
				var decisions []ZeroDecision
				decisions, memory = DecideZero(ZeroState{Now: epoch.Add(time.Duration(m.second) * time.Second), Pools: m.pools, Routers: m.routers}, memory)
				var got []string
				for _, d := range decisions {
					got = append(got, fmt.Sprintf("%s %d -> %d %s: %s", d.Pool, d.From, d.To, d.By, d.Reason))
				}
				if diff := cmp.Diff(m.want, got); diff != "" {
					t.Errorf("second %d (-want +got), %s:\n%s", m.second, tc.reason, diff)
				}
			}
		})
	}
}

// TestZeroServesEveryone plays a service second by second with random arrivals: a request waits while the pool is empty or
// starts, is served otherwise, and none waits longer than a start and two rounds take. A pool never sleeps while one is open.
func TestZeroServesEveryone(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const start = 7 // seconds from demand to a ready engine
	var (
		memory  ZeroMemory
		want    int32
		readyAt = -1
		begun   uint64
		waiting []int // seconds of arrival
		running []int // seconds of end
		sleeps  int
	)
	for second := range 20_000 {
		if random.IntN(100) == 0 || (random.IntN(3) == 0 && second%500 < 20) {
			begun++
			waiting = append(waiting, second)
		}
		ready := want > 0 && readyAt >= 0 && second >= readyAt
		if ready {
			for range waiting {
				running = append(running, second+random.IntN(30))
			}
			waiting = nil
		}
		var left []int
		for _, end := range running {
			if end > second {
				left = append(left, end)
			}
		}
		running = left
		for _, since := range waiting {
			if second-since > start+2 {
				t.Fatalf("second %d: a request waits since second %d", second, since)
			}
		}
		report := demand.Report{Begun: begun, Open: int64(len(waiting) + len(running)), Waiting: map[string]int{}}
		if !ready {
			report.Waiting["unified"] = len(waiting)
		}
		var decisions []ZeroDecision
		decisions, memory = DecideZero(ZeroState{
			Now:     epoch.Add(time.Duration(second) * time.Second),
			Pools:   []ZeroPool{{Name: "u", Role: v1alpha1.RoleUnified, Demand: want, MayBeZero: true, IdleAfter: 20 * time.Second, Outstanding: int64(len(running)), Known: true}},
			Routers: []RouterDemand{{Router: "r", Answered: true, Report: report}},
		}, memory)
		for _, d := range decisions {
			if d.To == 0 {
				sleeps++
				if report.Open > 0 {
					t.Fatalf("second %d: it sleeps with %d open requests", second, report.Open)
				}
				readyAt = -1
			} else {
				readyAt = second + start
			}
			want = d.To
		}
	}
	if sleeps < 10 {
		t.Errorf("the pool slept %d times: the test proves little", sleeps)
	}
}

func TestOutstanding(t *testing.T) {
	for _, tc := range []struct {
		name  string
		pods  []observe.PodSample
		want  int64
		known bool
	}{
		{"None", nil, 0, true},
		{"Added", []observe.PodSample{engine("a", busyRank(2)), engine("b", busyRank(3), draining)}, 5, true},
		{"NeverReady", []observe.PodSample{engine("a", nil, starting)}, 0, true},
		{"Stale", []observe.PodSample{engine("a", busyRank(0), stale)}, 0, false},
		{"ReadyNoMore", []observe.PodSample{engine("a", busyRank(0), unready, stale)}, 0, false}, // it may be too busy to say so
		{"NotPolledYet", []observe.PodSample{engine("a", nil, justReady)}, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, known := outstanding(observe.PoolSample{Pool: types.NamespacedName{}, Pods: tc.pods, FreshFor: freshFor}, epoch)
			if got != tc.want || known != tc.known {
				t.Errorf("got %d, %t; want %d, %t", got, known, tc.want, tc.known)
			}
		})
	}
}

func busyRank(running int) []loads.Load {
	return []loads.Load{{NumRunningReqs: running, Disaggregation: &loads.Disaggregation{}}}
}

func TestParseDemand(t *testing.T) {
	for _, tc := range []struct {
		name, body, err string
	}{
		{"Whole", `{"waiting_requests":{"decode":1},"requests_begun":2,"requests_open":1}`, ""},
		{"Empty", `{}`, "the answer lacks"},
		{"NoBegun", `{"waiting_requests":{},"requests_open":1}`, "the answer lacks"},
		{"Negative", `{"waiting_requests":{"decode":-1},"requests_begun":2,"requests_open":1}`, "waiting_requests of decode is -1"},
		{"NegativeOpen", `{"waiting_requests":{},"requests_begun":2,"requests_open":-1}`, "requests_open is -1"},
		{"HTML", `<html>`, "read the answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseDemand([]byte(tc.body))
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("got %v, want %q", err, tc.err)
			}
		})
	}
}

func FuzzParseDemand(f *testing.F) {
	f.Add([]byte(`{"waiting_requests":{"decode":1},"requests_begun":2,"requests_open":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		report, err := parseDemand(body)
		if err != nil {
			return
		}
		for role, n := range report.Waiting {
			if n < 0 {
				t.Errorf("%d requests wait for %q", n, role)
			}
		}
		if report.Open < 0 {
			t.Errorf("%d requests are open", report.Open)
		}
	})
}
