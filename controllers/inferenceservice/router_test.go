package inferenceservice

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// TestRouterWaits: what keeps a router from starting is in the condition, and comes there when Kubernetes says it.
func TestRouterWaits(t *testing.T) {
	starting := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat-router-x", Labels: map[string]string{
		v1alpha1.LabelService: "chat", v1alpha1.LabelComponent: v1alpha1.ComponentRouter,
	}}}
	waits := starting.DeepCopy()
	waits.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: plan.RouterContainer, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: `secret "router-keys" not found`},
	}}}
	engine := waits.DeepCopy()
	engine.Labels[v1alpha1.LabelComponent] = v1alpha1.ComponentEngine
	for _, tc := range []struct {
		name, reason  string
		before, after *corev1.Pod
		passes        bool
	}{
		{"Begins", "there is something to tell", starting, waits, true},
		{"Ends", "there is nothing to tell any more", waits, starting, true},
		{"Same", "nothing is new", waits, waits, false},
		{"Engine", "its pool tells of it", starting, engine, false},
	} {
		if got := routerWaits().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.passes {
			t.Errorf("%s: passes %t, want %t: %s", tc.name, got, tc.passes, tc.reason)
		}
	}

	for _, tc := range []struct {
		name, reason string
		pod          *corev1.Pod
		ready        int32
		want         string
	}{
		{"Waits", "the cause is named", waits, 0, `no router pod is ready: container router of pod chat-router-x waits: CreateContainerConfigError: secret "router-keys" not found`},
		{"Starting", "Kubernetes says nothing", starting, 0, "no router pod is ready; a router is ready when it has engines to send to"},
		{"Another", "one of two serves", waits, 1, "at least one router pod is ready"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &Reconciler{Config: Config{Client: fake.NewClientBuilder().WithObjects(tc.pod).Build()}}
			step := &step{
				service: &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat"}},
				router:  &appsv1.Deployment{Status: appsv1.DeploymentStatus{ReadyReplicas: tc.ready}},
			}
			if err := r.readRouterWait(t.Context(), step); err != nil {
				t.Fatal(err)
			}
			setRouterReady(step)
			if got := meta.FindStatusCondition(step.service.Status.Conditions, v1alpha1.ConditionRouterReady).Message; got != tc.want {
				t.Errorf("the condition says %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}
