package layout

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/enginepool"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/test/harness"
)

// collector keeps what it is sent over HTTP.
type collector struct {
	mu  sync.Mutex
	got bytes.Buffer
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, request *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = io.Copy(&c.got, request.Body) // a message that breaks off lacks what the test waits for
}

func (c *collector) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.got.Bytes(), []byte(text))
}

// withoutKEDA is a cluster that has no ScaledObjects, so that there is nothing to remove.
type withoutKEDA struct{ enginepool.Scalers }

func (withoutKEDA) Remove(context.Context, monitoring.Resource, types.NamespacedName, metav1.OwnerReference) (bool, error) {
	return false, nil
}

// TestTraceLevelReachesEngines: the pool's controller changes the level of a running engine, which was started as planned. No
// request is traced while the level is 0, every one from the change on.
func TestTraceLevelReachesEngines(t *testing.T) {
	harness.NoteSources(t, "../..")
	spans := &collector{}
	server := httptest.NewServer(spans)
	t.Cleanup(server.Close)

	pool := pool(v1alpha1.RoleUnified, shape(2, 1, 1, 0))
	pool.UID = "pool"
	pool.Spec.Engine.Tracing = &v1alpha1.TracingSpec{Endpoint: server.URL, Level: new(int32(0))}
	engine := launch(t, pool, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", "SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS=10")[0]
	healthy(t, []*harness.Engine{engine})

	pod, err := plan.Pod(pool, plan.EngineDefaults{Image: "engine"}, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	pod.UID, pod.OwnerReferences = "pod", plan.OwnedByPool(pool)
	pod.Spec.Containers[0].Ports[0].ContainerPort = int32(engine.Port)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "127.0.0.1",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool, pod).WithStatusSubresource(pool).Build()
	recorder := events.NewFakeRecorder(10)
	controller := enginepool.New(enginepool.Config{
		Client: api, Live: api, Recorder: recorder, Samples: observe.NewStore(clock.RealClock{}, 1e9), Clock: clock.RealClock{},
		Engine: plan.EngineDefaults{Image: "engine"}, Scalers: withoutKEDA{},
	})
	reconcile := func(level int32, event string) {
		t.Helper()
		now := &v1alpha1.EnginePool{}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(pool), now); err != nil {
			t.Fatal(err)
		}
		now.Spec.Engine.Tracing.Level = &level
		if err := api.Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if _, err := controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pool)}); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(pool), now); err != nil {
			t.Fatal(err)
		}
		if now.Status.Tracing == nil || now.Status.Tracing.Level != level {
			t.Errorf("the status says %+v, want level %d; conditions %+v", now.Status.Tracing, level, now.Status.Conditions)
		}
		for {
			select {
			case got := <-recorder.Events:
				if got == event {
					return
				}
			default:
				t.Fatalf("there is no event %q", event)
			}
		}
	}
	ask := func(rid string) {
		t.Helper()
		if err := harness.Post(t.Context(), engine.URL+"/generate", map[string]any{
			"rid": rid, "text": "the old mill", "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": 4, "ignore_eos": true},
		}, nil); err != nil {
			t.Fatal(err)
		}
	}

	reconcile(0, "Normal TraceLevelChanged every ready engine traces at level 0")
	ask("dark-before")
	reconcile(1, "Normal TraceLevelChanged every ready engine traces at level 1, before at 0")
	ask("bright-one")
	harness.Eventually(t, "the collector has the spans of a traced request", func() bool { return spans.has("bright-one") })
	reconcile(0, "Normal TraceLevelChanged every ready engine traces at level 0, before at 1")
	ask("dark-after")
	reconcile(2, "Normal TraceLevelChanged every ready engine traces at level 2, before at 0")
	ask("bright-two")
	harness.Eventually(t, "the collector has the spans of the next traced request", func() bool { return spans.has("bright-two") })
	for _, rid := range []string{"dark-before", "dark-after"} {
		if spans.has(rid) {
			t.Error(fmt.Sprint("the collector has spans of a request that came at level 0: ", rid))
		}
	}
}
