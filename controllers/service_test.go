package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const chat = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - {name: prefill, role: Prefill}
  - {name: decode, role: Decode, drainSeconds: 600}
`

const unified = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: uni}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - {name: main, role: Unified}
`

// TestApply: one apply makes everything, with owners that take it all away again.
func TestApply(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(chat)
	got := trial.untilSettled("chat")

	if want := fmt.Sprintf("http://chat-router.%s.svc:8000", trial.namespace); got.Status.URL != want {
		t.Errorf("status.url is %s, want %s", got.Status.URL, want)
	}
	if want := "prefill=1/1 decode=1/1"; got.Status.Summary.Replicas != want {
		t.Errorf("summary says %s, want %s", got.Status.Summary.Replicas, want)
	}
	if want := "0.00"; got.Status.Summary.Utilization != want {
		t.Errorf("summary says utilization %s, want %s", got.Status.Summary.Utilization, want)
	}
	var conditions []string
	for _, condition := range got.Status.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s=%s", condition.Type, condition.Status))
	}
	slices.Sort(conditions)
	if diff := cmp.Diff([]string{"MetricsFlowing=True", "MonitoringProvisioned=Unknown", "Progressing=False", "Ready=True", "RouterReady=True"}, conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}

	// Every object that exists leads to the service by its owners.
	uids := map[string]string{string(service.UID): "InferenceService chat"}
	prefill, decode := trial.pool("chat", "prefill"), trial.pool("chat", "decode")
	uids[string(prefill.UID)], uids[string(decode.UID)] = "EnginePool chat-prefill", "EnginePool chat-decode"
	found := map[string]string{}
	lists := map[string]client.ObjectList{
		"Pod": &corev1.PodList{}, "Service": &corev1.ServiceList{}, "Secret": &corev1.SecretList{}, "ServiceAccount": &corev1.ServiceAccountList{},
		"Role": &rbacv1.RoleList{}, "RoleBinding": &rbacv1.RoleBindingList{}, "Deployment": &appsv1.DeploymentList{}, "EnginePool": &v1alpha1.EnginePoolList{},
		"HorizontalPodAutoscaler": &autoscalingv2.HorizontalPodAutoscalerList{},
	}
	for kind, list := range lists {
		if err := trial.List(t.Context(), list, client.InNamespace(trial.namespace)); err != nil {
			t.Fatal(err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			object := item.(client.Object)
			if object.GetName() == "default" || object.GetName() == operatorUser {
				continue // not of the service
			}
			owner := "nobody"
			if controller := metav1.GetControllerOf(object); controller != nil {
				owner = uids[string(controller.UID)]
			}
			found[kind+" "+object.GetName()] = owner
		}
	}
	want := map[string]string{
		"EnginePool chat-decode":     "InferenceService chat",
		"EnginePool chat-prefill":    "InferenceService chat",
		"Secret chat-pd":             "InferenceService chat",
		"Deployment chat-router":     "InferenceService chat",
		"Service chat-router":        "InferenceService chat",
		"ServiceAccount chat-router": "InferenceService chat",
		"Role chat-router":           "InferenceService chat",
		"RoleBinding chat-router":    "InferenceService chat",
		"Service chat-decode":        "EnginePool chat-decode",
		"Service chat-prefill":       "EnginePool chat-prefill",
		"Pod chat-decode-0-0":        "EnginePool chat-decode",
		"Pod chat-prefill-0-0":       "EnginePool chat-prefill",
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("objects and their owners (-want +got):\n%s", diff)
	}

	// What leaves the API server is what the plan said: pods with their labels and arguments.
	pod := trial.pods("prefill")[0]
	for key, value := range map[string]string{
		v1alpha1.LabelService: "chat", v1alpha1.LabelPool: "prefill", v1alpha1.LabelEngineType: "prefill", v1alpha1.LabelReplica: "0",
		v1alpha1.LabelNodeRank: "0", v1alpha1.LabelTenant: trial.namespace, v1alpha1.LabelRevision: prefill.Status.Revision, v1alpha1.LabelTPRank: "0",
	} {
		if pod.Labels[key] != value {
			t.Errorf("label %s is %q, want %q", key, pod.Labels[key], value)
		}
	}
	if got := strings.Join(pod.Spec.Containers[0].Args, " "); !strings.Contains(got, "--disaggregation-mode prefill --disaggregation-bootstrap-port 8998") {
		t.Errorf("arguments: %s", got)
	}
	secret := &corev1.Secret{}
	if err := trial.Get(t.Context(), client.ObjectKey{Namespace: trial.namespace, Name: "chat-pd"}, secret); err != nil {
		t.Fatal(err)
	}
	if got := len(secret.Data["secret"]); got != 64 {
		t.Errorf("the PD secret has %d characters, want 64 hex digits", got)
	}
}

// TestIdle: a settled service causes no write, neither while it is polled nor when the operator starts anew.
func TestIdle(t *testing.T) {
	trial := newTrial(t)
	trial.apply(chat)
	trial.untilSettled("chat")
	trial.untilPolled(3)
	before := trial.operator.written()
	trial.untilPolled(10)
	if diff := cmp.Diff(before, trial.operator.written()); diff != "" {
		t.Errorf("writes of an idle operator (-before +after):\n%s", diff)
	}

	trial.operator.stop(t)
	trial.operator = startOperator(t, trial.namespace)
	trial.untilPolled(10)
	if diff := cmp.Diff(map[string]int{}, trial.operator.written()); diff != "" {
		t.Errorf("writes of an operator that started anew (-want +got):\n%s", diff)
	}
}

// TestDrift: what somebody changes is put right, what somebody adds stays.
func TestDrift(t *testing.T) {
	trial := newTrial(t)
	trial.apply(unified)
	trial.untilSettled("uni")
	router := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "uni-router"}}
	change(trial, router, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Args = []string{"--port", "1"}
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, "note", "mine")
	})
	trial.until("the router to be put right", func() (bool, string) {
		if err := trial.Get(t.Context(), client.ObjectKeyFromObject(router), router); err != nil {
			t.Fatal(err)
		}
		args := router.Spec.Template.Spec.Containers[0].Args
		return len(args) > 2 && router.Annotations["note"] == "mine", fmt.Sprint(args, router.Annotations)
	})
}

// TestScale: the scale subresource sets the demand; a scale-in drains the replica with the least work, and waits.
func TestScale(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(strings.Replace(chat, "drainSeconds: 600}", "drainSeconds: 600, replicas: 2, autoscaling: {maxReplicas: 5, metrics: [{type: Utilization, target: \"0.8\"}]}}", 1))
	trial.untilSettled("chat")
	hpa := &autoscalingv2.HorizontalPodAutoscaler{}
	if err := trial.Get(t.Context(), client.ObjectKey{Namespace: trial.namespace, Name: "chat-decode"}, hpa); err != nil {
		t.Fatal(err)
	}
	trial.untilCondition("chat", v1alpha1.ConditionScalingActive, metav1.ConditionUnknown, "Pending")

	scaleTo := func(replicas int32) *autoscalingv1.Scale {
		scale := &autoscalingv1.Scale{}
		trial.until("the scale to be taken", func() (bool, string) {
			pool := trial.pool("chat", "decode")
			if err := trial.SubResource("scale").Get(t.Context(), pool, scale); err != nil {
				t.Fatal(err)
			}
			scale.Spec.Replicas = replicas
			err := trial.SubResource("scale").Update(t.Context(), pool, client.WithSubResourceBody(scale))
			return err == nil, fmt.Sprint(err)
		})
		return scale
	}
	scale := scaleTo(3)
	trial.until("three replicas", func() (bool, string) {
		pool := trial.pool("chat", "decode")
		return pool.Status.ReadyReplicas == 3, fmt.Sprint(pool.Status.ReplicaCounts)
	})
	selector, err := labels.Parse(scale.Status.Selector)
	if err != nil {
		t.Fatal(err)
	}
	selected := func() []string {
		var pods []*corev1.Pod
		for _, pod := range trial.pods("decode") {
			if selector.Matches(labels.Set(pod.Labels)) {
				pods = append(pods, pod)
			}
		}
		return names(pods)
	}
	if diff := cmp.Diff([]string{"chat-decode-0-0", "chat-decode-1-0", "chat-decode-2-0"}, selected()); diff != "" {
		t.Errorf("the scale selector finds (-want +got):\n%s", diff)
	}

	pods := trial.pods("decode")
	trial.kubelet.setRunning(pods[0], 4)
	trial.kubelet.setRunning(pods[1], 2)
	trial.kubelet.setRunning(pods[2], 3)
	trial.untilPolled(3)
	scaleTo(2)
	trial.until("the replica with the least work to drain", func() (bool, string) {
		var draining []string
		for _, pod := range trial.pods("decode") {
			if pod.Annotations[v1alpha1.AnnotationDraining] != "" {
				draining = append(draining, pod.Name)
			}
		}
		return slices.Equal(draining, []string{"chat-decode-1-0"}), fmt.Sprint(draining)
	})
	if diff := cmp.Diff([]string{"chat-decode-0-0", "chat-decode-2-0"}, selected()); diff != "" {
		t.Errorf("while one drains, the scale selector finds (-want +got):\n%s", diff)
	}
	trial.untilPolled(10)
	if diff := cmp.Diff([]string{"chat-decode-0-0", "chat-decode-1-0", "chat-decode-2-0"}, names(trial.pods("decode"))); diff != "" {
		t.Errorf("a replica with requests was deleted (-want +got):\n%s", diff)
	}
	trial.kubelet.setRunning(pods[1], 0)
	trial.until("the drained replica to go", func() (bool, string) {
		got := names(trial.pods("decode"))
		return slices.Equal(got, []string{"chat-decode-0-0", "chat-decode-2-0"}), fmt.Sprint(got)
	})

	// Demand that comes back while a replica drains brings it back.
	scaleTo(1)
	trial.until("a replica to drain", func() (bool, string) {
		pool := trial.pool("chat", "decode")
		return pool.Status.ObservedGeneration == pool.Generation && pool.Status.DrainingReplicas == 1, fmt.Sprint(pool.Status.ReplicaCounts)
	})
	scaleTo(2)
	trial.until("it to be brought back", func() (bool, string) {
		pool := trial.pool("chat", "decode")
		return pool.Status.ReadyReplicas == 2 && pool.Status.LastDecision.Action == "Undrain", fmt.Sprint(pool.Status.ReplicaCounts, pool.Status.LastDecision)
	})

	// Each change has an event of its own, with its numbers.
	wantEvents := []string{
		"ReplicaBroughtBack: demand 2, allocated 2 (bound: none), 1 active: bring back replica 2 with 3 requests outstanding",
		"ReplicaCreated: demand 2, allocated 2 (bound: none), 0 active: create replica 0",
		"ReplicaCreated: demand 2, allocated 2 (bound: none), 1 active: create replica 1",
		"ReplicaCreated: demand 3, allocated 3 (bound: none), 2 active: create replica 2",
		"ReplicaDraining: demand 1, allocated 1 (bound: none), 2 active: drain replica 2 (ready, 3 requests outstanding)",
		"ReplicaDraining: demand 2, allocated 2 (bound: none), 3 active: drain replica 1 (ready, 2 requests outstanding)",
	}
	trial.until("the events", func() (bool, string) {
		var list eventsv1.EventList
		if err := trial.List(t.Context(), &list, client.InNamespace(trial.namespace)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, event := range list.Items {
			if event.Regarding.Name == "chat-decode" && strings.HasPrefix(event.Reason, "Replica") && event.Reason != "ReplicaDeleted" && event.Related != nil {
				got = append(got, event.Reason+": "+event.Note)
			}
		}
		slices.Sort(got)
		return slices.Equal(got, wantEvents), cmp.Diff(wantEvents, got)
	})

	// Without autoscaling the service's number holds again, and the autoscaler is gone.
	change(trial, service, func(s *v1alpha1.InferenceService) {
		s.Spec.Pools[1].Autoscaling, s.Spec.Pools[1].Replicas = nil, new(int32(3))
	})
	trial.until("the service's number", func() (bool, string) {
		pool := trial.pool("chat", "decode")
		err := trial.Get(t.Context(), client.ObjectKeyFromObject(hpa), hpa)
		return *pool.Spec.Replicas == 3 && client.IgnoreNotFound(err) == nil && err != nil, fmt.Sprint(*pool.Spec.Replicas, err)
	})
}

// TestRollOut: a new revision comes one by one; as many serve as are asked for, all the time.
func TestRollOut(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(strings.Replace(unified, "role: Unified}", "role: Unified, replicas: 2}", 1))
	trial.untilSettled("uni")
	before := trial.pool("uni", "main").Status.Revision
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Engine.Args = []string{"--log-level", "debug"} })
	trial.until("the roll-out", func() (bool, string) {
		pods := trial.pods("main")
		serving, newer := 0, 0
		for _, pod := range pods {
			if pod.Annotations[v1alpha1.AnnotationDraining] == "" && isReady(pod) {
				serving++
			}
			if pod.Labels[v1alpha1.LabelRevision] != before {
				newer++
			}
		}
		if serving < 2 {
			t.Fatalf("%d replicas serve during the roll-out, want at least 2: %v", serving, names(pods))
		}
		if len(pods) > 3 {
			t.Fatalf("%d replicas exist during the roll-out, want at most 3: %v", len(pods), names(pods))
		}
		return newer == 2 && len(pods) == 2, fmt.Sprint(names(pods), newer)
	})
	trial.untilSettled("uni")
	after := trial.pool("uni", "main").Status.Revision
	wantEvents := []string{
		"RollOutFinished: every replica has revision " + after,
		fmt.Sprintf("RollOutStarted: revision %s takes the place of %s, one replica after the other: ", after, before),
	}
	trial.until("its begin and its end to be told once", func() (bool, string) {
		var list eventsv1.EventList
		if err := trial.List(t.Context(), &list, client.InNamespace(trial.namespace)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, event := range list.Items {
			if strings.HasPrefix(event.Reason, "RollOut") {
				got = append(got, event.Reason+": "+event.Note)
			}
		}
		slices.Sort(got)
		return len(got) == 2 && got[0] == wantEvents[0] && strings.HasPrefix(got[1], wantEvents[1]), cmp.Diff(wantEvents, got)
	})
}

// TestBrokenRevision: engines that serve stay while the new revision does not, and going back is possible.
func TestBrokenRevision(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(unified)
	trial.untilSettled("uni")
	before := trial.pool("uni", "main").Status.Revision
	trial.kubelet.setHold(func(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelRevision] != before })
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Engine.Args = []string{"--no-such-flag"} })
	trial.until("the new revision's pod", func() (bool, string) {
		got := names(trial.pods("main"))
		return slices.Equal(got, []string{"uni-main-0-0", "uni-main-1-0"}), fmt.Sprint(got)
	})
	trial.untilPolled(5)
	old := trial.pods("main")[0]
	if old.Labels[v1alpha1.LabelRevision] != before || !isReady(old) || old.Annotations[v1alpha1.AnnotationDraining] != "" {
		t.Errorf("the old engine was touched before the new one served: %v", old.ObjectMeta)
	}
	service = trial.untilCondition("uni", v1alpha1.ConditionProgressing, metav1.ConditionTrue, "PoolsChanging")
	if !meta.IsStatusConditionTrue(service.Status.Conditions, v1alpha1.ConditionReady) {
		t.Error("the service is not ready although its old engine serves")
	}
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Engine.Args = nil })
	trial.until("the broken pod to go", func() (bool, string) {
		got := names(trial.pods("main"))
		return slices.Equal(got, []string{"uni-main-0-0"}), fmt.Sprint(got)
	})
	trial.untilSettled("uni")
	if after := trial.pods("main")[0]; after.UID != old.UID {
		t.Error("the old engine was replaced although its revision is wanted again")
	}
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// TestDeath: a dead engine is replaced, and so is one that somebody deletes.
func TestDeath(t *testing.T) {
	trial := newTrial(t)
	trial.apply(unified)
	trial.untilSettled("uni")
	pod := trial.pods("main")[0]
	trial.kubelet.fail(pod)
	trial.until("a replacement", func() (bool, string) {
		pods := trial.pods("main")
		return len(pods) == 1 && pods[0].UID != pod.UID && isReady(pods[0]) && pods[0].Annotations[v1alpha1.AnnotationRestarts] == "1", fmt.Sprint(names(pods))
	})
	trial.untilSettled("uni")
	trial.until("the decision in the status", func() (bool, string) {
		decision := trial.pool("uni", "main").Status.LastDecision
		return decision != nil && decision.Action == "Replace" && strings.Contains(decision.Reason, "engine of pod uni-main-0-0 ended with code 1 (Error), failure 1 in a row"), fmt.Sprintf("%+v", decision)
	})

	pod = trial.pods("main")[0]
	if err := trial.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	trial.until("another", func() (bool, string) {
		pods := trial.pods("main")
		return len(pods) == 1 && pods[0].UID != pod.UID && isReady(pods[0]), fmt.Sprint(names(pods))
	})
}

// TestRemovedPool: a pool that the service lists no more drains, and goes.
func TestRemovedPool(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(chat + "  - {name: more, role: Decode, replicas: 2, drainSeconds: 600}\n")
	trial.untilSettled("chat")
	pods := trial.pods("more")
	trial.kubelet.setRunning(pods[0], 1)
	trial.untilPolled(3)
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Pools = s.Spec.Pools[:2] })
	trial.until("the idle replica to go", func() (bool, string) {
		got := names(trial.pods("more"))
		return slices.Equal(got, []string{"chat-more-0-0"}), fmt.Sprint(got)
	})
	trial.untilCondition("chat", v1alpha1.ConditionProgressing, metav1.ConditionTrue, "PoolsChanging")
	trial.kubelet.setRunning(pods[0], 0)
	trial.until("the pool to go", func() (bool, string) {
		var pools v1alpha1.EnginePoolList
		if err := trial.List(t.Context(), &pools, client.InNamespace(trial.namespace)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, pool := range pools.Items {
			if pool.DeletionTimestamp == nil {
				got = append(got, pool.Name)
			}
		}
		return slices.Equal(got, []string{"chat-decode", "chat-prefill"}), fmt.Sprint(got)
	})
	trial.untilSettled("chat")
}

// TestNameConflict: an object of another owner is left alone and named.
func TestNameConflict(t *testing.T) {
	trial := newTrial(t)
	theirs := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "uni-router"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}},
	}
	if err := trial.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	trial.apply(unified)
	service := trial.untilCondition("uni", v1alpha1.ConditionReady, metav1.ConditionFalse, "NameConflict")
	want := fmt.Sprintf("Service %s/uni-router exists and belongs to nobody; remove it or choose another name", trial.namespace)
	if got := meta.FindStatusCondition(service.Status.Conditions, v1alpha1.ConditionReady).Message; got != want {
		t.Errorf("the condition says %q, want %q", got, want)
	}
	after := &corev1.Service{}
	if err := trial.Get(t.Context(), client.ObjectKeyFromObject(theirs), after); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(theirs.Spec.Ports, after.Spec.Ports); diff != "" {
		t.Errorf("the other's Service was changed (-before +after):\n%s", diff)
	}
	if err := trial.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	trial.untilSettled("uni")
}

// TestInvalidTemplate: a template that is no overlay is named, and running engines stay.
func TestInvalidTemplate(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(unified)
	trial.untilSettled("uni")
	change(trial, service, func(s *v1alpha1.InferenceService) {
		s.Spec.Pools[0].Template = &runtime.RawExtension{Raw: []byte(`{"spec": {"hostNetwork": "perhaps"}}`)}
	})
	service = trial.untilCondition("uni", v1alpha1.ConditionReady, metav1.ConditionFalse, "PoolNotReady")
	if got := meta.FindStatusCondition(service.Status.Conditions, v1alpha1.ConditionReady).Message; !strings.HasPrefix(got, "pool main: template: ") {
		t.Errorf("the condition says %q, want it to name the pool and the template", got)
	}
	if got := names(trial.pods("main")); !slices.Equal(got, []string{"uni-main-0-0"}) {
		t.Errorf("pods: %v", got)
	}
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Pools[0].Template = nil })
	trial.untilSettled("uni")
}
