package enginepool

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
)

// TestNamePolicies: the policies that select a pod are named where the way to it is blocked, and are read only then.
func TestNamePolicies(t *testing.T) {
	policy := func(namespace, name string, selector map[string]string, types ...networkingv1.PolicyType) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: selector}, PolicyTypes: types},
		}
	}
	ingress, egress := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	for _, tc := range []struct {
		name     string
		reason   string
		policies []client.Object
		cause    observe.Cause
		want     string
	}{
		{"None", "the network has others", nil, observe.CausePolicyBlocks, "x; no NetworkPolicy selects the pod, so see those for Prometheus' egress, and the network's own"},
		{"One", "an empty selector is every pod", []client.Object{policy("team-a", "deny-all", nil)}, observe.CausePolicyBlocks, "x; NetworkPolicy team-a/deny-all selects the pod"},
		{"Several", "in order", []client.Object{policy("team-a", "b", nil, egress, ingress), policy("team-a", "a", map[string]string{"app": "chat"}, ingress)}, observe.CausePolicyBlocks,
			"x; NetworkPolicies team-a/a, team-a/b select the pod"},
		{"Many", "a message is bounded", []client.Object{policy("team-a", "a", nil), policy("team-a", "b", nil), policy("team-a", "c", nil), policy("team-a", "d", nil)}, observe.CausePolicyBlocks,
			"x; NetworkPolicies team-a/a, team-a/b, team-a/c and others select the pod"},
		{"Others", "other pods, the other direction, another namespace", []client.Object{policy("team-a", "a", map[string]string{"app": "other"}), policy("team-a", "b", nil, egress), policy("team-b", "c", nil)},
			observe.CausePolicyBlocks, "x; no NetworkPolicy selects the pod, so see those for Prometheus' egress, and the network's own"},
		{"AnotherCause", "no policy explains it", []client.Object{policy("team-a", "deny-all", nil)}, observe.CauseTargetDown, "x"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := clientgoscheme.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			r := &Reconciler{Config: Config{Live: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.policies...).Build()}}
			if tc.cause != observe.CausePolicyBlocks {
				r.Live = nil
			}
			step := &step{
				pool: &v1alpha1.EnginePool{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "d"}},
				pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "d-0-0", Labels: map[string]string{"app": "chat"}}}},
			}
			findings := []observe.Finding{{Pod: "d-0-0", Cause: tc.cause, Detail: "x"}, {Pod: "gone", Cause: tc.cause, Detail: "x"}}
			r.namePolicies(t.Context(), step, findings)
			if diff := cmp.Diff([]string{tc.want, "x"}, []string{findings[0].Detail, findings[1].Detail}); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}
