package enginepool

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// traced is a ready leader that traces.
func traced(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{v1alpha1.LabelNodeRank: "0"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: plan.EngineContainer, Args: []string{"serve", "--enable-trace"}}}},
		Status:     corev1.PodStatus{PodIP: name, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// TestTracer tells step by step: who is told when, and what is said of it.
func TestTracer(t *testing.T) {
	refusal := errors.New("it answers 400: no")
	type step struct {
		second  int
		level   int32
		pods    []*corev1.Pod
		refuse  []string // pods that do not take the level
		told    []string
		refused []string
		again   time.Duration
	}
	for _, test := range []struct {
		name   string
		reason string
		steps  []step
	}{
		{"once", "an engine that has the level is not told again", []step{
			{level: 1, pods: []*corev1.Pod{traced("a"), traced("b")}, told: []string{"a", "b"}},
			{second: 1, level: 1, pods: []*corev1.Pod{traced("a"), traced("b")}},
			{second: 2, level: 1, pods: []*corev1.Pod{traced("a"), traced("b"), traced("c")}, told: []string{"c"}},
		}},
		{"another level", "all are told", []step{
			{level: 1, pods: []*corev1.Pod{traced("a")}, told: []string{"a"}},
			{second: 1, level: 0, pods: []*corev1.Pod{traced("a")}, told: []string{"a"}},
			{second: 2, level: 1, pods: []*corev1.Pod{traced("a")}, told: []string{"a"}},
		}},
		{"refused", "who does not take it is named, and told again after a while, or at once when the level changes", []step{
			{level: 1, pods: []*corev1.Pod{traced("a"), traced("b")}, refuse: []string{"b"}, told: []string{"a", "b"}, refused: []string{"b: it answers 400: no"}, again: traceRetry},
			{second: 4, level: 1, pods: []*corev1.Pod{traced("a"), traced("b")}, refused: []string{"b: it answers 400: no"}, again: traceRetry - 4*time.Second},
			{second: 10, level: 1, pods: []*corev1.Pod{traced("a"), traced("b")}, refuse: []string{"b"}, told: []string{"b"}, refused: []string{"b: it answers 400: no"}, again: traceRetry},
			{second: 11, level: 2, pods: []*corev1.Pod{traced("a"), traced("b")}, told: []string{"a", "b"}},
		}},
		{"gone and back", "an engine of the same name is another one", []step{
			{level: 1, pods: []*corev1.Pod{traced("a")}, told: []string{"a"}},
			{second: 1, level: 1},
			{second: 2, level: 1, pods: []*corev1.Pod{traced("a")}, told: []string{"a"}},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tracer := &tracer{told: map[types.UID]int32{}, failed: map[types.UID]traceFailure{}}
			for _, step := range test.steps {
				now := epoch.Add(time.Duration(step.second) * time.Second)
				var mu sync.Mutex
				var told []string
				tracer.tell(step.pods, step.level, now, func(url string) error {
					mu.Lock()
					defer mu.Unlock()
					name := url[len("http://"):][:1]
					told = append(told, name)
					if slices.Contains(step.refuse, name) {
						return refusal
					}
					return nil
				})
				slices.Sort(told)
				if diff := cmp.Diff(step.told, told); diff != "" {
					t.Errorf("%s: at second %d told (-want +got):\n%s", test.reason, step.second, diff)
				}
				outcome := tracer.outcome(step.pods, step.level, now)
				var refused []string
				for _, err := range outcome.refused {
					refused = append(refused, err.Error())
				}
				if diff := cmp.Diff(step.refused, refused); diff != "" || outcome.again != step.again || outcome.engines != len(step.pods) {
					t.Errorf("%s: at second %d of %d engines, again in %v, refused (-want +got):\n%s", test.reason, step.second, outcome.engines, outcome.again, diff)
				}
			}
		})
	}
}

func TestSetTraceLevel(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		switch request.URL.Query().Get("level") {
		case "1":
			if request.Method != http.MethodPost || request.URL.Path != "/set_trace_level" {
				t.Errorf("%s %s", request.Method, request.URL)
			}
			fmt.Fprint(w, "success")
		case "2":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			http.Error(w, "tracing is off", http.StatusBadRequest)
		}
	}))
	gone := httptest.NewServer(nil)
	gone.Close()
	t.Cleanup(engine.Close)
	r := New(Config{Clock: fixedClock{}})
	for _, test := range []struct {
		name, url string
		level     int32
		want      string
	}{
		{"taken", engine.URL, 1, ""},
		{"a key", engine.URL, 2, "it wants an admin key, which the operator does not have; leave out --admin-api-key"},
		{"refused", engine.URL, 3, "it answers 400: tracing is off"},
		{"gone", gone.URL, 1, "it does not answer: dial tcp " + gone.Listener.Addr().String() + ": connect: connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := ""
			if err := r.setTraceLevel(t.Context(), test.url, test.level); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

type fixedClock struct{}

func (fixedClock) Now() time.Time                  { return epoch }
func (fixedClock) Since(t time.Time) time.Duration { return epoch.Sub(t) }
