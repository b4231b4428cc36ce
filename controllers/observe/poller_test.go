package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig runs a poller against a cluster of pods and a clock that the test moves.
type rig struct {
	t       *testing.T
	pods    client.Client
	clock   *testingclock.FakeClock
	store   *Store
	metrics *Metrics
}

// newRig starts a poller with an interval of 2 s, a time-out of 200 ms and two polls at a time.
func newRig(t *testing.T, pods ...*corev1.Pod) *rig {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, p := range pods {
		builder = builder.WithObjects(p)
	}
	r := &rig{t: t, pods: builder.Build(), clock: testingclock.NewFakeClock(epoch)}
	r.store = NewStore(r.clock, 2*time.Second)
	var err error
	if r.metrics, err = NewMetrics(prometheus.NewRegistry(), r.store, r.clock); err != nil {
		t.Fatal(err)
	}
	poller, err := NewPoller(PollerConfig{
		Interval: 2 * time.Second, Timeout: 200 * time.Millisecond, Concurrency: 2, LimitBytes: 64 << 10,
		Pods: r.pods, Store: r.store, Metrics: r.metrics, Clock: r.clock, Random: func() float64 { return 0.5 }, Log: testr.New(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- poller.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the poller ended with %v", err)
		}
	})
	return r
}

// eventually waits until check gives nothing to complain about. With step above 0 it moves the clock by it each time
// that the poller waits for it.
func (r *rig) eventually(step time.Duration, check func() string) {
	r.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		complaint := check()
		if complaint == "" {
			return
		}
		select {
		case <-deadline.C:
			r.t.Fatalf("after 20 s: %s", complaint)
		case <-tick.C:
			if step > 0 && r.clock.HasWaiters() {
				r.clock.Step(step)
			}
		}
	}
}

func (r *rig) pod(name string) PodSample {
	p, _ := r.store.Pod(key(name))
	return p
}

// engineServer answers like an engine with these loads.
func engineServer(t *testing.T, running func() int) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/v1/loads" || request.URL.Query().Get("include") != "all" {
			http.NotFound(w, request)
			return
		}
		_ = json.NewEncoder(w).Encode(loads.Response{Loads: []loads.Load{{NumRunningReqs: running(), Utilization: 0.5}}})
	}))
	t.Cleanup(server.Close)
	return server
}

func always(n int) func() int { return func() int { return n } }

// leader is a Ready leader pod of pool "pool" that listens where the server does.
func leader(t *testing.T, name, serverURL string, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "team-a", UID: types.UID("uid-" + name),
			Labels: map[string]string{
				v1alpha1.LabelComponent: v1alpha1.ComponentEngine, v1alpha1.LabelNodeRank: "0", v1alpha1.LabelRole: string(v1alpha1.RoleUnified),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "EnginePool", Name: "pool", UID: "pool", Controller: new(true),
			}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "engine", Ports: []corev1.ContainerPort{
			{Name: "bootstrap", ContainerPort: 1}, {Name: v1alpha1.PortHTTP, ContainerPort: int32(port)},
		}}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: u.Hostname(),
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(epoch.Add(-time.Minute))}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func TestPollerSamplesEachInterval(t *testing.T) {
	var running atomic.Int64
	server := engineServer(t, func() int { return int(running.Add(1)) })
	r := newRig(t, leader(t, "a", server.URL))

	r.eventually(0, func() string { return cmp.Diff(1, len(r.pod("a").Ranks)) })
	if diff := cmp.Diff(epoch, r.pod("a").Taken); diff != "" {
		t.Errorf("the sample's time is the operator's clock (-want +got):\n%s", diff)
	}
	r.eventually(100*time.Millisecond, func() string {
		if p := r.pod("a"); p.Ranks[0].NumRunningReqs < 4 {
			return fmt.Sprintf("newest sample is number %d, want 4", p.Ranks[0].NumRunningReqs)
		}
		return ""
	})
	p := r.pod("a")
	if got, want := p.Taken.Sub(epoch), 6*time.Second; got < want || got > want+2*time.Second {
		t.Errorf("the fourth sample was taken after %s, want about %s", got, want)
	}
	if n := testutil.ToFloat64(r.metrics.polls.WithLabelValues("ok")); n < 4 {
		t.Errorf("%v polls counted, want 4 or more", n)
	}
}

// TestPollerSurvivesBadEngines polls one bad engine beside a good one, which must never notice.
func TestPollerSurvivesBadEngines(t *testing.T) {
	elsewhere := engineServer(t, always(99))
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closedURL := "http://" + closed.Addr().String()
	_ = closed.Close()

	for _, tc := range []struct {
		name    string
		reason  string
		handler http.HandlerFunc // nil: nobody listens
		outcome outcome
		err     string
	}{
		{
			name: "Slow", reason: "an engine that never answers is given up after the time-out",
			handler: func(_ http.ResponseWriter, request *http.Request) { <-request.Context().Done() },
			outcome: outcomeTimeout, err: "does not answer in time",
		},
		{
			name: "SlowBody", reason: "the time-out covers the body",
			handler: func(w http.ResponseWriter, request *http.Request) {
				_, _ = w.Write([]byte(`{"loads":[`))
				_ = http.NewResponseController(w).Flush()
				<-request.Context().Done()
			},
			outcome: outcomeTimeout, err: "does not answer in time",
		},
		{
			name: "Huge", reason: "memory is bounded",
			handler: func(w http.ResponseWriter, _ *http.Request) {
				for range 1000 {
					if _, err := w.Write([]byte(strings.Repeat(" ", 1000))); err != nil {
						return
					}
				}
			},
			outcome: outcomeTooLarge, err: "larger than 65536 bytes",
		},
		{
			name: "Garbage", reason: "another program may listen at the address",
			handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("SSH-2.0")) },
			outcome: outcomeMalformed, err: "read the answer",
		},
		{
			name: "Redirecting", reason: "an engine must not send the operator elsewhere",
			handler: func(w http.ResponseWriter, request *http.Request) {
				http.Redirect(w, request, elsewhere.URL+"/v1/loads?include=all", http.StatusFound)
			},
			outcome: outcomeStatus, err: "answers with status 302",
		},
		{
			name: "Failing", reason: "a status is not a load",
			handler: func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, `{"loads":[]}`, http.StatusInternalServerError)
			},
			outcome: outcomeStatus, err: "answers with status 500",
		},
		{
			name: "Dying", reason: "the process ends in the middle of an answer",
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1000")
				_, _ = w.Write([]byte(`{"loads":[`))
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			},
			outcome: outcomeConnect, err: "unexpected EOF",
		},
		{name: "Dead", reason: "nobody listens", outcome: outcomeConnect, err: "refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			badURL := closedURL
			if tc.handler != nil {
				server := httptest.NewServer(tc.handler)
				t.Cleanup(server.Close)
				badURL = server.URL
			}
			good := engineServer(t, always(3))
			r := newRig(t, leader(t, "bad", badURL), leader(t, "good", good.URL))

			r.eventually(0, func() string {
				if err := r.pod("bad").Err; err == nil || !strings.Contains(err.Error(), tc.err) {
					return fmt.Sprintf("got error %v, want one with %q: %s", err, tc.err, tc.reason)
				}
				return ""
			})
			if p := r.pod("bad"); !p.Taken.IsZero() || len(p.Ranks) != 0 {
				t.Errorf("a bad answer became a sample: %+v", p)
			}
			r.eventually(0, func() string { return cmp.Diff(3, len(r.pod("good").Ranks)*3) })
			if n := testutil.ToFloat64(r.metrics.polls.WithLabelValues(string(tc.outcome))); n < 1 {
				t.Errorf("no poll was counted as %s", tc.outcome)
			}
		})
	}
}

// TestDeadEnginesDelayNobody has many engines that never answer and one that does.
func TestDeadEnginesDelayNobody(t *testing.T) {
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) { <-request.Context().Done() }))
	t.Cleanup(hanging.Close)
	good := engineServer(t, always(1))
	pods := []*corev1.Pod{leader(t, "good", good.URL)}
	for i := range 20 {
		pods = append(pods, leader(t, fmt.Sprintf("dead-%d", i), hanging.URL))
	}
	r := newRig(t, pods...)
	// Every dead engine failed once and so is in the other lane.
	r.eventually(0, func() string {
		for i := range 20 {
			if r.pod(fmt.Sprintf("dead-%d", i)).Err == nil {
				return fmt.Sprintf("dead-%d was not polled", i)
			}
		}
		return ""
	})
	// From now on the good one is polled each interval although every slot of the other lane hangs: the clock moves
	// only after the newest poll came back.
	for round := range 5 {
		before := r.pod("good").Taken
		r.eventually(500*time.Millisecond, func() string {
			if !r.pod("good").Taken.After(before) {
				return fmt.Sprintf("round %d: no new sample of the good engine", round)
			}
			return ""
		})
		if p := r.pod("good"); !p.Fresh(r.clock.Now(), r.store.FreshFor()) {
			t.Errorf("round %d: the sample of the good engine is %s old", round, r.clock.Now().Sub(p.Taken))
		}
	}
}

func TestPollerKeepsAnOldSampleUntilItIsStale(t *testing.T) {
	var dead atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if dead.Load() {
			panic(http.ErrAbortHandler)
		}
		_ = json.NewEncoder(w).Encode(loads.Response{Loads: []loads.Load{{NumRunningReqs: 5}}})
	}))
	t.Cleanup(server.Close)
	r := newRig(t, leader(t, "a", server.URL))
	r.eventually(0, func() string { return cmp.Diff(1, len(r.pod("a").Ranks)) })
	dead.Store(true)

	r.eventually(time.Second, func() string {
		if r.pod("a").Err == nil {
			return "the poll has not failed yet"
		}
		return ""
	})
	if load, missing := Load(r.store.Pool(key("pool")), v1alpha1.RoleUnified, []Rank{{"a", 0}}, r.pod("a").Taken.Add(r.store.FreshFor())); load == nil || len(missing) != 0 {
		t.Errorf("while fresh: load %v, missing %v; want the old sample", load, missing)
	}
	load, missing := Load(r.store.Pool(key("pool")), v1alpha1.RoleUnified, []Rank{{"a", 0}}, r.pod("a").Taken.Add(r.store.FreshFor()+1))
	if load != nil || len(missing) != 1 || missing[0].Reason != MissingDown {
		t.Errorf("once stale: load %v, missing %v; want none and one", load, missing)
	}
}

func TestPollerFollowsPods(t *testing.T) {
	server := engineServer(t, always(1))
	starting := leader(t, "starting", server.URL, notReady)
	foreign := leader(t, "foreign", server.URL, func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "apps/v1" })
	follower := leader(t, "follower", server.URL, func(p *corev1.Pod) { p.Labels[v1alpha1.LabelNodeRank] = "1" })
	ended := leader(t, "ended", server.URL, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	draining := leader(t, "draining", server.URL, notReady, func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationDraining: epoch.Format(time.RFC3339)}
	})
	ready := leader(t, "ready", server.URL)
	r := newRig(t, starting, foreign, follower, ended, draining, ready)

	// states tells each known pod and whether it has a sample.
	states := func() map[string]string {
		got := map[string]string{}
		for _, p := range r.store.Pool(key("pool")).Pods {
			got[p.Name] = fmt.Sprintf("sampled=%t draining=%t ready=%t", !p.Taken.IsZero(), p.Draining, !p.ReadySince.IsZero())
		}
		return got
	}
	r.eventually(100*time.Millisecond, func() string {
		return cmp.Diff(map[string]string{
			"starting": "sampled=false draining=false ready=false",
			"draining": "sampled=true draining=true ready=false",
			"ready":    "sampled=true draining=false ready=true",
		}, states())
	})

	ctx := context.Background()
	starting.Status.Conditions[0].Status = corev1.ConditionTrue
	if err := errors.Join(r.pods.Delete(ctx, ready), r.pods.Status().Update(ctx, starting)); err != nil {
		t.Fatal(err)
	}
	r.eventually(100*time.Millisecond, func() string {
		return cmp.Diff(map[string]string{
			"starting": "sampled=true draining=false ready=true",
			"draining": "sampled=true draining=true ready=false",
		}, states())
	})
	if drained, known := r.store.Drained(key("starting"), r.clock.Now().Add(time.Hour)); drained || known {
		t.Errorf("no sample is from the future: drained %t, known %t", drained, known)
	}
}

func TestPollerConfig(t *testing.T) {
	store := NewStore(testingclock.NewFakeClock(epoch), time.Second)
	whole := PollerConfig{Pods: fake.NewFakeClient(), Store: store, Metrics: &Metrics{}, Clock: testingclock.NewFakeClock(epoch), Random: func() float64 { return 0 }}
	for _, tc := range []struct {
		name   string
		change func(*PollerConfig)
		err    string
	}{
		{"Defaults", func(*PollerConfig) {}, ""},
		{"Interval", func(c *PollerConfig) { c.Interval = -1 }, "interval is -1ns, want above 0, for example 2s"},
		{"Timeout", func(c *PollerConfig) { c.Timeout = -1 }, "timeout is -1ns"},
		{"Concurrency", func(c *PollerConfig) { c.Concurrency = -1 }, "concurrency is -1"},
		{"Limit", func(c *PollerConfig) { c.LimitBytes = -1 }, "limit is -1 bytes"},
		{"Store", func(c *PollerConfig) { c.Store = nil }, "are all needed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := whole
			tc.change(&cfg)
			_, err := NewPoller(cfg)
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("got %v, want %q", err, tc.err)
			}
		})
	}
}

func TestPace(t *testing.T) {
	for _, tc := range []struct {
		name     string
		failures int
		draining bool
		random   float64
		want     time.Duration
	}{
		{"Steady", 0, false, 0.5, 2 * time.Second},
		{"Early", 0, false, 0, 1800 * time.Millisecond},
		{"FirstFailure", 1, false, 0.5, 2 * time.Second},
		{"SecondFailure", 2, false, 0.5, 4 * time.Second},
		{"ManyFailures", 50, false, 0.5, 8 * time.Second},
		{"DrainingFails", 50, true, 0.5, 2 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := pace(2*time.Second, tc.failures, tc.draining, tc.random); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestTargetURL(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string
	}{
		{"NamedPort", func(*corev1.Pod) {}, "http://127.0.0.1:4000/v1/loads?include=all"},
		{"NoPort", func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil }, "http://127.0.0.1:30000/v1/loads?include=all"},
		{"IPv6", func(p *corev1.Pod) { p.Status.PodIP = "fd00::1" }, "http://[fd00::1]:4000/v1/loads?include=all"},
		{"NoAddress", func(p *corev1.Pod) { p.Status.PodIP = "" }, ""},
		{"Pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, ""},
		{"NotReady", notReady, ""},
		{"Deleted", func(p *corev1.Pod) { notReady(p); p.DeletionTimestamp = new(metav1.NewTime(epoch)) }, "http://127.0.0.1:4000/v1/loads?include=all"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := targetOf(leader(t, "a", "http://127.0.0.1:4000", tc.change))
			if !ok || got.url != tc.want {
				t.Errorf("got %q, %t; want %q", got.url, ok, tc.want)
			}
		})
	}
}
