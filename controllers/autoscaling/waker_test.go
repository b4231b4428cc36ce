package autoscaling

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/router/demand"
	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/fleet"
	"github.com/sluice-dev/sluice/router/policy"
	"github.com/sluice-dev/sluice/router/proxy"
)

// sleeper is a unified pool that may be empty, behind a real router, with a clock that stands until it is moved.
type sleeper struct {
	*testing.T
	client.Client
	waker    *Waker
	clock    *testingclock.FakeClock
	recorder *events.FakeRecorder
	fleet    *fleet.Fleet
	url      string
	engine   *httptest.Server
	samples  samples
}

// listener hears of engines and requests, and does nothing.
type listener struct{}

func (listener) Changed(discovery.Engine, discovery.State, discovery.State) {}
func (listener) Quarantined(discovery.Engine)                               {}
func (listener) Picked(discovery.Engine)                                    {}
func (listener) Started(string)                                             {}
func (listener) Finished(string, int, proxy.Outcome, time.Duration)         {}
func (listener) Waited(time.Duration)                                       {}
func (listener) Forwarded(string, time.Duration)                            {}
func (listener) FirstByte(string, time.Duration)                            {}
func (listener) Retried(proxy.RetryReason)                                  {}
func (s *sleeper) Pool(pool types.NamespacedName) observe.PoolSample        { return s.samples.Pool(pool) }
func (s *sleeper) engineIn(state discovery.State) []discovery.Engine {
	return []discovery.Engine{{ID: "u", Name: "u", Role: discovery.Unified, URL: s.engine.URL, State: state}}
}

func newSleeper(t *testing.T) *sleeper {
	t.Helper()
	s := &sleeper{T: t, clock: testingclock.NewFakeClock(epoch), recorder: events.NewFakeRecorder(16)}
	s.engine = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "answer")
	}))
	t.Cleanup(s.engine.Close)
	var err error
	s.fleet, err = fleet.New(fleet.Config{Policy: policy.LeastLoad, Quarantine: time.Second, MaxWaiting: 10, Now: time.Now, Listener: listener{}, Wake: time.Hour})
	must(t, err)
	p, err := proxy.New(proxy.Config{
		MaxBodyBytes: 1 << 20, ReadTimeout: time.Minute, WriteTimeout: time.Minute, DialTimeout: time.Minute,
		Room: func() int64 { return 1 }, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}, s.fleet, listener{})
	must(t, err)
	router := httptest.NewServer(p)
	s.url = router.URL
	t.Cleanup(func() {
		router.Close()
		p.Close()
	})

	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	pool := testPool(func(p *v1alpha1.EnginePool) {
		p.Spec.Role, p.Spec.Replicas = v1alpha1.RoleUnified, new(int32(1))
		p.Spec.Autoscaling.MinReplicas, p.Spec.Autoscaling.ScaleToZeroAfterSeconds = new(int32(0)), new(int32(60))
	})
	port := router.Listener.Addr().(*net.TCPAddr).Port
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "chat-router-x", Namespace: "team-a", UID: "router-uid",
			Labels: map[string]string{v1alpha1.LabelService: "chat", v1alpha1.LabelComponent: v1alpha1.ComponentRouter},
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "router", Ports: []corev1.ContainerPort{{ContainerPort: int32(port)}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1"},
	}
	s.Client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool, pod).Build()
	s.waker, err = NewWaker(WakerConfig{Client: s.Client, Samples: s, Recorder: s.recorder, Clock: s.clock, Log: testr.New(t)})
	must(t, err)
	t.Cleanup(s.waker.client.CloseIdleConnections)
	return s
}

func (s *sleeper) round() {
	s.Helper()
	must(s.T, s.waker.round(context.Background()))
}

// wants checks the pool's demand.
func (s *sleeper) wants(replicas int32, why string) *v1alpha1.EnginePool {
	s.Helper()
	pool := &v1alpha1.EnginePool{}
	must(s.T, s.Get(context.Background(), types.NamespacedName{Namespace: "team-a", Name: "chat-decode"}, pool))
	if *pool.Spec.Replicas != replicas {
		s.Fatalf("the demand is %d, want %d: %s", *pool.Spec.Replicas, replicas, why)
	}
	return pool
}

// ask sends a request; the answer comes by the channel.
func (s *sleeper) ask() <-chan string {
	answer := make(chan string, 1)
	go func() {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url+"/generate", strings.NewReader("{}"))
		if err != nil {
			answer <- err.Error()
			return
		}
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(response.Body)
		answer <- response.Status + " " + string(body)
	}()
	return answer
}

func (s *sleeper) waits(n int) {
	s.Helper()
	poll(s.T, func() error {
		if got := s.fleet.Waiting()[discovery.Unified]; got != n {
			return errWaiting(got)
		}
		return nil
	})
}

type errWaiting int

func (e errWaiting) Error() string { return "requests wait" }

// TestSleepAndWake takes a pool to no replica and back by a request that comes while it still drains.
func TestSleepAndWake(t *testing.T) {
	s := newSleeper(t)
	s.fleet.Update(s.engineIn(discovery.StateReady))

	s.round()
	s.clock.Step(59 * time.Second)
	s.round()
	s.wants(1, "a minute is not over")
	if got := <-s.ask(); got != "200 OK answer" {
		t.Fatalf("a request to a pool that is awake: %s", got)
	}
	poll(t, func() error { // the router's handler ends a moment after the client has its answer
		report, err := s.waker.fetch(t.Context(), s.url+demand.Path)
		if err == nil && report.Open > 0 {
			err = errWaiting(report.Open)
		}
		return err
	})
	s.clock.Step(2 * time.Second)
	s.round()
	s.wants(1, "there was a request")
	s.clock.Step(60 * time.Second)
	s.round()
	pool := s.wants(0, "a minute without a request is over")
	want := `{"by":"Idle","from":1,"to":0,"reason":"no request at any router or engine for 1m0s, scaleToZeroAfterSeconds is 60: demand 1 becomes 0"}`
	if diff := cmp.Diff(want, pool.Annotations[v1alpha1.AnnotationScaled]); diff != "" {
		t.Errorf("note (-want +got):\n%s", diff)
	}
	s.round()
	s.wants(0, "nobody waits")

	// Admission to the engine has stopped, and a request comes.
	s.fleet.Update(s.engineIn(discovery.StateDraining))
	first, second := s.ask(), s.ask()
	s.waits(2)
	s.round()
	pool = s.wants(1, "two requests wait")
	want = `{"by":"WakeUp","from":0,"to":1,"reason":"2 requests wait in a router for a unified engine: demand 0 becomes 1"}`
	if diff := cmp.Diff(want, pool.Annotations[v1alpha1.AnnotationScaled]); diff != "" {
		t.Errorf("note (-want +got):\n%s", diff)
	}
	s.round()
	s.wants(1, "one is on its way")

	// The replica is brought back.
	s.fleet.Update(s.engineIn(discovery.StateReady))
	for _, answer := range []<-chan string{first, second} {
		if got := <-answer; got != "200 OK answer" {
			t.Errorf("a request that came while the pool drained: %s", got)
		}
	}
	for _, want := range []string{"Normal PutToSleep no request at any router", "Normal WokenUp 2 requests wait"} {
		if got := <-s.recorder.Events; !strings.HasPrefix(got, want) {
			t.Errorf("event %q, want %q", got, want)
		}
	}
}

// TestWakerKeepsOthersWrites decides on a pool that somebody else changes at the same time.
func TestWakerKeepsOthersWrites(t *testing.T) {
	s := newSleeper(t)
	s.fleet.Update(s.engineIn(discovery.StateReady))
	s.round()
	s.clock.Step(60 * time.Second)
	services, err := s.waker.services(context.Background())
	must(t, err)
	pool := s.wants(1, "it began so")
	pool.Spec.Replicas = new(int32(3))
	must(t, s.Update(context.Background(), pool))
	must(t, s.waker.apply(context.Background(), services[types.NamespacedName{Namespace: "team-a", Name: "chat"}].pools,
		ZeroDecision{Pool: "chat-decode", From: 1, To: 0, By: v1alpha1.ActorIdle, Reason: "idle"}))
	s.wants(3, "the autoscaler was faster")
}

// TestRouterThatDoesNotAnswer keeps a pool awake.
func TestRouterThatDoesNotAnswer(t *testing.T) {
	s := newSleeper(t)
	pod := &corev1.Pod{}
	must(t, s.Get(t.Context(), types.NamespacedName{Namespace: "team-a", Name: "chat-router-x"}, pod))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	pod.Spec.Containers[0].Ports[0].ContainerPort = int32(listener.Addr().(*net.TCPAddr).Port)
	must(t, listener.Close())
	must(t, s.Update(t.Context(), pod))
	for range 3 {
		s.clock.Step(time.Minute)
		s.round()
		s.wants(1, "the router may hold requests")
	}
}

// TestStaleEngineKeepsAwake has an engine of which nobody knows what it does.
func TestStaleEngineKeepsAwake(t *testing.T) {
	s := newSleeper(t)
	s.samples = samples{engine("a", busyRank(0), stale)}
	for range 3 {
		s.clock.Step(time.Minute)
		s.round()
		s.wants(1, "the engine may hold requests")
	}
	s.samples = nil
	s.round()
	s.clock.Step(time.Minute)
	s.round()
	s.wants(0, "there is no engine")
}
