package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/config/crd"
	"github.com/sluice-dev/sluice/controllers/autoscaling"
	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/router/demand"
)

// keda makes the ScaledObject resource for as long as the test runs.
func keda(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("testdata/scaledobjects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &definition); err != nil {
		t.Fatal(err)
	}
	if err := crd.Create(t.Context(), server.Config, definition); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		clients, err := apiextensions.NewForConfig(server.Config)
		if err != nil {
			t.Fatal(err)
		}
		if err := clients.CustomResourceDefinitions().Delete(context.Background(), definition.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestKEDA chooses KEDA before and after the cluster has it, and goes back to the own metrics API.
func TestKEDA(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(strings.Replace(unified, "role: Unified}", `role: Unified, autoscaling: {provider: KEDA, maxReplicas: 4, metrics: [{type: Utilization, target: "0.8"}, {type: TTFT, target: "0.75"}]}}`, 1) +
		"  slo: {ttft: {threshold: 500ms, objective: \"0.95\"}}\n")
	trial.untilSettled("uni")
	trial.untilCondition("uni", v1alpha1.ConditionScalingActive, metav1.ConditionFalse, "KEDAMissing")
	keda(t)

	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	key := client.ObjectKey{Namespace: trial.namespace, Name: "uni-main"}
	trial.until("a ScaledObject", func() (bool, string) {
		err := trial.Get(t.Context(), key, object)
		return err == nil, fmt.Sprint(err)
	})
	selector := fmt.Sprintf(`namespace="%s",inference_service="uni",pool="main"`, trial.namespace)
	trigger := func(name, kind string, of v1alpha1.ScalingMetricType, threshold string) map[string]any {
		signal, _ := semantics.SignalOf(of)
		query, ok := signal.Query(selector, 1, trial.pool("uni", "main").Spec.SLO)
		if !ok {
			t.Fatalf("%s has no query", of)
		}
		return map[string]any{"type": "prometheus", "name": name, "metricType": kind, "metadata": map[string]any{
			"serverAddress": "http://prometheus:9090", "ignoreNullValues": "false", "threshold": threshold, "query": query,
		}}
	}
	want := map[string]any{
		"scaleTargetRef":  map[string]any{"apiVersion": "inference.sluice.dev/v1alpha1", "kind": "EnginePool", "name": "uni-main"},
		"pollingInterval": int64(15), "minReplicaCount": int64(1), "maxReplicaCount": int64(4),
		"advanced": map[string]any{"horizontalPodAutoscalerConfig": map[string]any{"behavior": map[string]any{
			"scaleUp": map[string]any{"stabilizationWindowSeconds": int64(0), "selectPolicy": "Max", "policies": []any{
				map[string]any{"type": "Percent", "value": int64(100), "periodSeconds": int64(15)}, map[string]any{"type": "Pods", "value": int64(4), "periodSeconds": int64(15)},
			}},
			"scaleDown": map[string]any{"stabilizationWindowSeconds": int64(300), "selectPolicy": "Max", "policies": []any{
				map[string]any{"type": "Percent", "value": int64(100), "periodSeconds": int64(15)},
			}},
		}}},
		"triggers": []any{
			trigger("utilization", "AverageValue", v1alpha1.MetricUtilization, "0.8"), trigger("ttft", "Value", v1alpha1.MetricTTFT, "0.75"),
		},
	}
	if diff := cmp.Diff(want, object.Object["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if controller := metav1.GetControllerOf(object); controller == nil || controller.UID != trial.pool("uni", "main").UID {
		t.Errorf("the ScaledObject's controller is %v, want the pool", controller)
	}
	// What KEDA would do.
	trial.untilCondition("uni", v1alpha1.ConditionScalingActive, metav1.ConditionUnknown, "Pending")
	hpa := autoscaling.BuildHPA(&v1alpha1.EnginePool{ObjectMeta: trial.pool("uni", "main").ObjectMeta, Spec: v1alpha1.EnginePoolSpec{
		Autoscaling: &v1alpha1.AutoscalingSpec{MaxReplicas: 4, Metrics: []v1alpha1.ScalingMetric{{Type: v1alpha1.MetricUtilization, Target: resource.MustParse("0.8")}}},
	}})
	hpa.Name, hpa.Labels = "keda-hpa-uni-main", object.GetLabels()
	hpa.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(object, object.GroupVersionKind())}
	if err := trial.Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	hpa.Status = autoscalingv2.HorizontalPodAutoscalerStatus{DesiredReplicas: 1, Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
		{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionTrue, Reason: "ValidMetricFound"},
	}}
	if err := trial.Status().Update(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	trial.untilCondition("uni", v1alpha1.ConditionScalingActive, metav1.ConditionTrue, "ValidMetric")
	if err := trial.Get(t.Context(), key, &autoscalingv2.HorizontalPodAutoscaler{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pool of KEDA's has an autoscaler of the operator too: %v", err)
	}
	version := object.GetResourceVersion()
	trial.untilPolled(5)
	if err := trial.Get(t.Context(), key, object); err != nil || object.GetResourceVersion() != version {
		t.Errorf("the ScaledObject is written again and again: version %s, was %s, error %v", object.GetResourceVersion(), version, err)
	}

	change(trial, service, func(s *v1alpha1.InferenceService) {
		s.Spec.Pools[0].Autoscaling.Provider = v1alpha1.ProviderMetricsAPI
	})
	trial.until("an autoscaler in its place", func() (bool, string) {
		gone, there := trial.Get(t.Context(), key, object), trial.Get(t.Context(), key, &autoscalingv2.HorizontalPodAutoscaler{})
		return apierrors.IsNotFound(gone) && there == nil, fmt.Sprint(gone, there)
	})
}

// fakeRouter says what it has to do.
type fakeRouter struct {
	mu     sync.Mutex
	report demand.Report
}

func (r *fakeRouter) set(waiting int, begun uint64, open int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report = demand.Report{Waiting: map[string]int{"unified": waiting}, Begun: begun, Open: open}
}

func (r *fakeRouter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = json.NewEncoder(w).Encode(r.report)
}

// TestSleepingService takes an idle pool to no replica and wakes it when its router says that somebody waits.
func TestSleepingService(t *testing.T) {
	trial := newTrial(t)
	trial.kubelet.setHold(func(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelComponent] == v1alpha1.ComponentRouter })
	router := &fakeRouter{}
	router.set(0, 0, 0)
	serving := httptest.NewServer(router)
	defer serving.Close()
	port := serving.Listener.Addr().(*net.TCPAddr).Port
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "uni-router-x", Labels: map[string]string{
			v1alpha1.LabelService: "uni", v1alpha1.LabelComponent: v1alpha1.ComponentRouter,
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "router", Image: "router:v1", Ports: []corev1.ContainerPort{{ContainerPort: int32(port)}}}}},
	}
	if err := trial.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	trial.until("the router to run", func() (bool, string) {
		before := &corev1.Pod{}
		if err := trial.Get(t.Context(), client.ObjectKeyFromObject(pod), before); err != nil {
			t.Fatal(err)
		}
		after := before.DeepCopy()
		after.Status.Phase, after.Status.PodIP, after.Status.PodIPs = corev1.PodRunning, "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
		err := trial.Status().Patch(t.Context(), after, client.MergeFrom(before))
		return err == nil, fmt.Sprint(err)
	})

	service := trial.apply(strings.Replace(unified, "role: Unified}", `role: Unified, autoscaling: {minReplicas: 0, maxReplicas: 4, scaleToZeroAfterSeconds: 10, metrics: [{type: Concurrency, target: 4}]}}`, 1))
	trial.untilSettled("uni")
	trial.until("the idle pool to be empty", func() (bool, string) {
		pool := trial.pool("uni", "main")
		return *pool.Spec.Replicas == 0 && pool.Status.Replicas == 0, fmt.Sprint(*pool.Spec.Replicas, pool.Status.ReplicaCounts)
	})
	trial.untilCondition("uni", v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
	trial.untilCondition("uni", v1alpha1.ConditionScalingActive, metav1.ConditionTrue, "ValidMetric")

	// A change of the service lets it sleep.
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Pools[0].Autoscaling.MaxReplicas = 3 })
	trial.untilRounds(20)
	if pool := trial.pool("uni", "main"); *pool.Spec.Replicas != 0 {
		t.Errorf("the demand is %d although nobody waits", *pool.Spec.Replicas)
	}

	router.set(2, 2, 2)
	trial.until("the pool to wake", func() (bool, string) {
		pool := trial.pool("uni", "main")
		return *pool.Spec.Replicas == 1 && pool.Status.ReadyReplicas == 1, fmt.Sprint(*pool.Spec.Replicas, pool.Status.ReplicaCounts)
	})
	var got []string
	trial.until("the decisions", func() (bool, string) {
		got = nil
		for _, d := range trial.pool("uni", "main").Status.LastDecisions {
			reason, _, _ := strings.Cut(d.Reason, " for 1") // how long it was idle
			got = append(got, fmt.Sprintf("%s %d -> %d: %s", d.By, d.From, d.To, reason))
		}
		return len(got) == 3, fmt.Sprint(got)
	})
	want := []string{
		"Other 0 -> 1: the pool began with demand 1", "Idle 1 -> 0: no request at any router or engine",
		"WakeUp 0 -> 1: 2 requests wait in a router for a unified engine: demand 0 becomes 1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lastDecisions (-want +got):\n%s", diff)
	}
	trial.until("the events", func() (bool, string) {
		var list eventsv1.EventList
		if err := trial.List(t.Context(), &list, client.InNamespace(trial.namespace)); err != nil {
			t.Fatal(err)
		}
		reasons := map[string]bool{}
		for _, event := range list.Items {
			reasons[event.Reason] = true
		}
		return reasons["PutToSleep"] && reasons["WokenUp"], fmt.Sprint(reasons)
	})

	// A pool that may not sleep any more is not empty.
	router.set(0, 2, 0)
	trial.until("the pool to sleep again", func() (bool, string) {
		pool := trial.pool("uni", "main")
		return *pool.Spec.Replicas == 0, fmt.Sprint(*pool.Spec.Replicas)
	})
	change(trial, service, func(s *v1alpha1.InferenceService) {
		s.Spec.Pools[0].Autoscaling.MinReplicas, s.Spec.Pools[0].Autoscaling.ScaleToZeroAfterSeconds = new(int32(2)), nil
	})
	trial.until("two replicas", func() (bool, string) {
		pool := trial.pool("uni", "main")
		return pool.Status.ReadyReplicas == 2, fmt.Sprint(*pool.Spec.Replicas, pool.Status.ReplicaCounts)
	})
}
