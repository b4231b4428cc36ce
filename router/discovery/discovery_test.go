package discovery

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

func TestParseStatic(t *testing.T) {
	for _, tc := range []struct {
		name  string
		role  Role
		value string
		want  Engine
		err   string
	}{
		{name: "decode", role: Decode, value: "http://10.0.0.1:30000", want: Engine{ID: "http://10.0.0.1:30000", URL: "http://10.0.0.1:30000"}},
		{name: "slash", role: Unified, value: "http://h:1/", want: Engine{ID: "http://h:1", URL: "http://h:1"}},
		{name: "no port", role: Unified, value: "http://h", want: Engine{ID: "http://h:80", URL: "http://h:80"}},
		{name: "prefill", role: Prefill, value: "http://h:1,99", want: Engine{ID: "http://h:1", URL: "http://h:1", BootstrapHost: "h", BootstrapPort: 99}},
		{name: "prefill without port", role: Prefill, value: "http://[::1]:1", want: Engine{ID: "http://[::1]:1", URL: "http://[::1]:1", BootstrapHost: "::1", BootstrapPort: 8998}},
		{name: "decode with port", role: Decode, value: "http://h:1,99", err: "only a prefill engine has a bootstrap port"},
		{name: "bad bootstrap port", role: Prefill, value: "http://h:1,x", err: `bootstrap port "x": want 1 to 65535`},
		{name: "https", role: Decode, value: "https://h:1", err: "want http://host:port"},
		{name: "path", role: Decode, value: "http://h:1/v1", err: "want http://host:port"},
		{name: "no scheme", role: Decode, value: "h:1", err: "want http://host:port"},
		{name: "bad port", role: Decode, value: "http://h:70000", err: "port 70000"},
		{name: "nothing", role: Decode, value: "", err: "want http://host:port"},
	} {
		got, err := ParseStatic(tc.role, tc.value, 8998)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want %q", tc.name, err, tc.err)
			}
			continue
		}
		tc.want.Name, tc.want.Role, tc.want.State, tc.want.Reason = tc.want.ID, tc.role, StateNotReady, "not checked yet"
		if d := cmp.Diff(tc.want, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tc.name, err, d)
		}
	}
}

// collect runs a source and gives what it reports.
func collect(t *testing.T, s Source) <-chan []Engine {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	updates, done := make(chan []Engine, 100), make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx, func(e []Engine) { updates <- e }); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return updates
}

// until waits for a report in which the engines have these states.
func until(t *testing.T, updates <-chan []Engine, want ...State) []Engine {
	t.Helper()
	limit := time.After(patience)
	var last []Engine
	for {
		select {
		case last = <-updates:
			var got []State
			for _, e := range last {
				got = append(got, e.State)
			}
			if slices.Equal(got, want) {
				return last
			}
		case <-limit:
			t.Fatalf("the last report was %+v, want states %v", last, want)
		}
	}
}

func TestStatic(t *testing.T) {
	var status [2]atomic.Int32
	var engines []Engine
	var servers []*httptest.Server
	for i := range status {
		status[i].Store(503)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/health" {
				t.Errorf("path %s", r.URL.Path)
			}
			w.WriteHeader(int(status[i].Load()))
		}))
		defer srv.Close()
		servers = append(servers, srv)
		e, err := ParseStatic(Unified, srv.URL, 0)
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
	}
	s, err := NewStatic(engines, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	updates := collect(t, s)
	until(t, updates, StateNotReady, StateNotReady)
	status[1].Store(200)
	until(t, updates, StateNotReady, StateReady)
	status[0].Store(200)
	until(t, updates, StateReady, StateReady)
	status[0].Store(503)
	if got := until(t, updates, StateNotReady, StateReady); got[0].Reason != "health check: HTTP 503" {
		t.Errorf("reason %q", got[0].Reason)
	}
	servers[1].Close()
	if got := until(t, updates, StateNotReady, StateNotReady); !strings.HasPrefix(got[1].Reason, "health check: Get") {
		t.Errorf("reason %q", got[1].Reason)
	}
	if _, err := NewStatic([]Engine{engines[0], engines[0]}, time.Second); err == nil {
		t.Error("the same engine twice: no error")
	}
	if _, err := NewStatic(engines, 0); err == nil {
		t.Error("interval 0: no error")
	}
}

// pod makes a ready engine pod; change changes it.
func pod(name string, role Role, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "team-a", UID: types.UID("uid-" + name),
			Labels: map[string]string{
				v1alpha1.LabelService: "chat", v1alpha1.LabelComponent: v1alpha1.ComponentEngine,
				v1alpha1.LabelEngineType: string(role), v1alpha1.LabelNodeRank: "0",
			},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "sidecar", Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: 1}}},
			{Name: "engine", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 31000}, {Name: "bootstrap", ContainerPort: 9000}}},
		}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.5",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func TestFromPod(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	base := Engine{ID: "uid-a", Name: "a", Role: Decode, URL: "http://10.0.0.5:31000", State: StateReady}
	with := func(change func(*Engine)) *Engine {
		e := base
		change(&e)
		return &e
	}
	for _, tc := range []struct {
		name   string
		role   Role
		change func(*corev1.Pod)
		want   *Engine // nil: none
	}{
		{"ready", Decode, nil, &base},
		{"prefill", Prefill, nil, with(func(e *Engine) { e.Role, e.BootstrapHost, e.BootstrapPort = Prefill, "10.0.0.5", 9000 })},
		{"default ports", Prefill, func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }, with(func(e *Engine) {
			e.Role, e.URL, e.BootstrapHost, e.BootstrapPort = Prefill, "http://10.0.0.5:30000", "10.0.0.5", 8998
		})},
		{"IPv6", Decode, func(p *corev1.Pod) { p.Status.PodIP = "fd00::5" }, with(func(e *Engine) { e.URL = "http://[fd00::5]:31000" })},
		{"draining", Decode, func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.AnnotationDraining: "2026-01-01T00:00:00Z"}
		}, with(func(e *Engine) {
			e.State, e.Reason = StateDraining, "draining since 2026-01-01T00:00:00Z"
		})},
		{"deleted", Decode, func(p *corev1.Pod) { p.DeletionTimestamp = &at }, with(func(e *Engine) { e.State, e.Reason = StateDraining, "being deleted since 2026-01-02T03:04:05Z" })},
		{"deleted and not ready", Decode, func(p *corev1.Pod) { p.DeletionTimestamp = &at; p.Status.Conditions = nil }, with(func(e *Engine) {
			e.State, e.Reason = StateDraining, "being deleted since 2026-01-02T03:04:05Z"
		})},
		{"not ready", Decode, func(p *corev1.Pod) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].Message = corev1.ConditionFalse, "containers with unready status: [engine]"
		}, with(func(e *Engine) {
			e.State, e.Reason = StateNotReady, "pod is not Ready: containers with unready status: [engine]"
		})},
		{"no conditions", Decode, func(p *corev1.Pod) { p.Status.Conditions, p.Status.Phase = nil, corev1.PodPending }, with(func(e *Engine) {
			e.State, e.Reason = StateNotReady, "pod is not Ready: phase Pending"
		})},
		{"no address", Decode, func(p *corev1.Pod) { p.Status.PodIP = "" }, with(func(e *Engine) { e.URL, e.State, e.Reason = "", StateNotReady, "has no address yet" })},
		{"finished", Decode, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, nil},
		{"other node rank", Decode, func(p *corev1.Pod) { p.Labels[v1alpha1.LabelNodeRank] = "1" }, nil},
		{"unknown role", "encoder", nil, nil},
		{"no labels", Decode, func(p *corev1.Pod) { p.Labels = nil }, nil},
	} {
		full := pod("a", tc.role, tc.change)
		small, err := slim(full)
		if err != nil {
			t.Fatal(err)
		}
		for what, p := range map[string]*corev1.Pod{"pod": full, "slim pod": small.(*corev1.Pod)} {
			got, ok := FromPod(p)
			if ok != (tc.want != nil) {
				t.Errorf("%s, %s: ok is %v", tc.name, what, ok)
			} else if ok {
				if d := cmp.Diff(*tc.want, got); d != "" {
					t.Errorf("%s, %s (-want +got):\n%s", tc.name, what, d)
				}
			}
		}
	}
}

func TestPods(t *testing.T) {
	client := fake.NewSimpleClientset(pod("d0", Decode, nil), pod("other", Decode, func(p *corev1.Pod) { p.Namespace = "team-b" }))
	s, err := NewPods(client, "team-a", "chat")
	if err != nil {
		t.Fatal(err)
	}
	if want := "inference.sluice.dev/component=engine,inference.sluice.dev/node-rank=0,inference.sluice.dev/service=chat"; s.selector() != want {
		t.Errorf("selector %s, want %s", s.selector(), want)
	}
	updates := collect(t, s)
	until(t, updates, StateReady)
	pods := client.CoreV1().Pods("team-a")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(pods.Create(t.Context(), pod("p0", Prefill, func(p *corev1.Pod) { p.Status.PodIP = "" }), metav1.CreateOptions{}))
	until(t, updates, StateReady, StateNotReady)
	must(pods.Update(t.Context(), pod("p0", Prefill, nil), metav1.UpdateOptions{}))
	got := until(t, updates, StateReady, StateReady)
	if got[0].Name != "d0" || got[1].Name != "p0" || got[1].BootstrapPort != 9000 {
		t.Errorf("engines %+v", got)
	}
	must(pods.Update(t.Context(), pod("d0", Decode, func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationDraining: "now"} }), metav1.UpdateOptions{}))
	until(t, updates, StateDraining, StateReady)
	must(nil, pods.Delete(t.Context(), "d0", metav1.DeleteOptions{}))
	until(t, updates, StateReady)
	if _, err := NewPods(client, "", "chat"); err == nil {
		t.Error("no namespace: no error")
	}
}
