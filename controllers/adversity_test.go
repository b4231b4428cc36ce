package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// TestRefusedPods: pods that the API server refuses are not counted, and are made when it takes them.
func TestRefusedPods(t *testing.T) {
	trial := newTrial(t)
	limits := &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "small"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}}},
	}
	if err := trial.Create(t.Context(), limits); err != nil {
		t.Fatal(err)
	}
	trial.apply(strings.Replace(unified, "role: Unified}", "role: Unified, replicas: 2, resources: {requests: {cpu: 2}, limits: {cpu: 2}}}", 1))
	service := trial.untilCondition("uni", v1alpha1.ConditionReady, metav1.ConditionFalse, "PoolNotReady")
	trial.until("the refusal to be told", func() (bool, string) {
		if err := trial.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
			t.Fatal(err)
		}
		message := meta.FindStatusCondition(service.Status.Conditions, v1alpha1.ConditionReady).Message
		return strings.Contains(message, "maximum cpu usage per Container is 1"), message
	})
	if diff := cmp.Diff(v1alpha1.ReplicaCounts{Allocated: 2}, trial.pool("uni", "main").Status.ReplicaCounts); diff != "" {
		t.Errorf("counts while no pod exists (-want +got):\n%s", diff)
	}
	if err := trial.Delete(t.Context(), limits); err != nil {
		t.Fatal(err)
	}
	trial.untilSettled("uni")
}

// TestLostSecret: engines that hold different secrets cannot hand KV pages over, so when the PD Secret is lost and made
// anew, both pools roll out.
func TestLostSecret(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(chat)
	trial.untilSettled("chat")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "chat-pd"}}
	if err := trial.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	lost := secret.UID
	before := map[string]string{}
	for _, pool := range []string{"prefill", "decode"} {
		before[pool] = trial.pool("chat", pool).Status.Revision
	}

	if err := trial.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	// A pod that needs the Secret does not start without it.
	trial.kubelet.setHold(func(*corev1.Pod) bool {
		return trial.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{}) != nil
	})
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Pools[1].Replicas = new(int32(2)) })
	trial.until("a new Secret", func() (bool, string) {
		fresh := &corev1.Secret{}
		err := trial.Get(t.Context(), client.ObjectKeyFromObject(secret), fresh)
		return err == nil && fresh.UID != lost, fmt.Sprint(err)
	})
	for _, pool := range []string{"prefill", "decode"} {
		trial.until("pool "+pool+" to roll out", func() (bool, string) {
			pods := trial.pods(pool)
			old := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return p.Labels[v1alpha1.LabelRevision] != before[pool] })
			return len(pods) > 0 && len(old) == 0, fmt.Sprint(names(pods), " of which old ", names(old))
		})
	}
	trial.untilSettled("chat")
}

// TestRecreated: a service that is made anew while what belonged to the old one still ends waits for it, without calling
// that a conflict, and without many writes.
func TestRecreated(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(unified)
	trial.untilSettled("uni")
	pool := trial.pool("uni", "main")
	// The old engine holds a request, so its pod ends slowly.
	pod := trial.pods("main")[0]
	pod.Finalizers = []string{"test.sluice.dev/slow"}
	if err := trial.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := trial.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	service = trial.apply(unified)
	trial.until("the wait to be told", func() (bool, string) {
		if err := trial.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(service.Status.Conditions, v1alpha1.ConditionReady)
		return ready != nil && ready.Reason == "OldStillEnds", fmt.Sprint(ready)
	})
	before := trial.operator.written()
	trial.untilRounds(80)
	attempts := 0
	for path, n := range trial.operator.written() {
		attempts += n - before[path]
	}
	if attempts > 20 {
		t.Errorf("%d writes while the service waits, want about one a second at most", attempts)
	}

	// What a garbage collector does, of which this API server has none.
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	for _, object := range owned(trial, "uni-main", "uni-router") {
		if err := trial.Client.Delete(t.Context(), object, background); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	trial.until("the new pool's pod", func() (bool, string) {
		fresh := trial.pods("main")
		return len(fresh) == 1 && !metav1.IsControlledBy(fresh[0], pool) && isReady(fresh[0]), fmt.Sprint(names(fresh))
	})
	trial.untilSettled("uni")
	var events eventsv1.EventList
	if err := trial.List(t.Context(), &events, client.InNamespace(trial.namespace)); err != nil {
		t.Fatal(err)
	}
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning {
			t.Errorf("warning %s: %s", event.Reason, event.Note)
		}
	}
	if err := trial.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	pod.Finalizers = nil
	if err := trial.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// owned lists what exists of a service under two names, the pods included.
func owned(t *trial, names ...string) []client.Object {
	t.Helper()
	var objects []client.Object
	for _, name := range names {
		for _, kind := range []string{"v1/Service", "v1/ServiceAccount", "rbac.authorization.k8s.io/v1/Role", "rbac.authorization.k8s.io/v1/RoleBinding", "apps/v1/Deployment", "inference.sluice.dev/v1alpha1/EnginePool"} {
			at := strings.LastIndex(kind, "/")
			object := &unstructured.Unstructured{}
			object.SetAPIVersion(kind[:at])
			object.SetKind(kind[at+1:])
			object.SetNamespace(t.namespace)
			object.SetName(name)
			objects = append(objects, object)
		}
	}
	for _, pod := range t.pods("main") {
		objects = append(objects, pod)
	}
	return objects
}

// TestNamespaceEnds: in a namespace that is being deleted nothing can be made, and nothing is tried for long.
func TestNamespaceEnds(t *testing.T) {
	trial := newTrial(t)
	trial.apply(unified)
	trial.untilSettled("uni")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: trial.namespace}}
	if err := trial.Client.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	if err := trial.Client.Delete(t.Context(), trial.pods("main")[0]); err != nil {
		t.Fatal(err)
	}
	pods := "POST /api/v1/namespaces/" + trial.namespace + "/pods"
	from := trial.operator.written()[pods]
	trial.until("the operator to notice", func() (bool, string) {
		n := trial.operator.written()[pods] - from
		return n > 0, fmt.Sprint(n)
	})
	condition := meta.FindStatusCondition(trial.pool("uni", "main").Status.Conditions, v1alpha1.ConditionProgressing)
	if condition == nil || condition.Reason == "ApplyFailed" {
		t.Errorf("the end of the namespace is told as a failure: %v", condition)
	}
	trial.untilRounds(20)
	before := trial.operator.written()
	trial.untilRounds(80)
	if diff := cmp.Diff(before, trial.operator.written()); diff != "" {
		t.Errorf("writes into a namespace that ends (-before +after):\n%s", diff)
	}
}

// TestBrokenTemplateLeaves: a pool whose template makes no pod can still be scaled to zero and removed.
func TestBrokenTemplateLeaves(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(unified + "  - {name: more, role: Unified}\n")
	trial.untilSettled("uni")
	change(trial, service, func(s *v1alpha1.InferenceService) {
		s.Spec.Pools[1].Template = &runtime.RawExtension{Raw: []byte(`{"spec": {"hostNetwork": "perhaps"}}`)}
	})
	trial.untilCondition("uni", v1alpha1.ConditionReady, metav1.ConditionFalse, "PoolNotReady")
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Pools = s.Spec.Pools[:1] })
	trial.until("the pool to leave", func() (bool, string) {
		got := names(trial.pods("more"))
		return len(got) == 0, fmt.Sprint(got)
	})
	trial.untilSettled("uni")
}

// TestForeignMonitor: a ServiceMonitor of another owner is left alone and named, and made when it is gone.
func TestForeignMonitor(t *testing.T) {
	foreign(t, "monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")
	trial := newTrial(t)
	theirs := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"mine": true}}}
	theirs.SetGroupVersionKind(schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "ServiceMonitor"})
	theirs.SetNamespace(trial.namespace)
	theirs.SetName("uni-main")
	if err := trial.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	version := theirs.GetResourceVersion()
	trial.apply(unified)
	service := trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionFalse, "ApplyFailed")
	want := fmt.Sprintf("main: ServiceMonitor %s/uni-main exists and belongs to nobody; remove it or choose another name", trial.namespace)
	if got := meta.FindStatusCondition(service.Status.Conditions, v1alpha1.ConditionMonitoringProvisioned).Message; got != want {
		t.Errorf("the condition says %q, want %q", got, want)
	}
	trial.untilCondition("uni", v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
	if err := trial.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
		t.Fatal(err)
	}
	if theirs.GetResourceVersion() != version {
		t.Error("the other's ServiceMonitor was written")
	}
	if err := trial.Client.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionTrue, "Provisioned")
}

// TestNamesMeet: two services whose pools would have one name do not share it.
func TestNamesMeet(t *testing.T) {
	trial := newTrial(t)
	trial.apply(strings.NewReplacer("name: uni", "name: a-b", "name: main", "name: c").Replace(unified))
	trial.untilSettled("a-b")
	pod := trial.pods("c")[0]
	trial.apply(strings.NewReplacer("name: uni", "name: a", "name: main", "name: b-c").Replace(unified))
	second := trial.untilCondition("a", v1alpha1.ConditionReady, metav1.ConditionFalse, "NameConflict")
	want := fmt.Sprintf("EnginePool %s/a-b-c exists and belongs to InferenceService a-b; remove it or choose another name", trial.namespace)
	if got := meta.FindStatusCondition(second.Status.Conditions, v1alpha1.ConditionReady).Message; got != want {
		t.Errorf("the condition says %q, want %q", got, want)
	}
	trial.untilRounds(20)
	trial.untilSettled("a-b")
	if got := trial.pods("c"); len(got) != 1 || got[0].UID != pod.UID {
		t.Errorf("the first service's pods are %v, want the same as before", names(got))
	}
}

// TestQuarantine: a pod that somebody took out of its pool by its labels is in the way of its successor, and is named.
func TestQuarantine(t *testing.T) {
	trial := newTrial(t)
	trial.apply(unified)
	trial.untilSettled("uni")
	pod := trial.pods("main")[0]
	change(trial, pod, func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelComponent) })
	trial.until("the pool to name it", func() (bool, string) {
		condition := meta.FindStatusCondition(trial.pool("uni", "main").Status.Conditions, v1alpha1.ConditionReady)
		return condition.Status == metav1.ConditionFalse && strings.Contains(condition.Message, "pod uni-main-0-0 lacks the label inference.sluice.dev/component=engine; put it back or delete the pod"), condition.Message
	})
	if err := trial.Client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	trial.untilSettled("uni")
}
