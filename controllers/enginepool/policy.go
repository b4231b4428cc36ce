package enginepool

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sluice-dev/sluice/controllers/observe"
)

// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=list

// namePolicies adds to the findings of blocked ways which NetworkPolicies hold for the pod. They are read only then, from the
// API server: a watch of them would cost more than it tells.
func (r *Reconciler) namePolicies(ctx context.Context, step *step, findings []observe.Finding) {
	if !slices.ContainsFunc(findings, isBlocked) {
		return
	}
	var list networkingv1.NetworkPolicyList
	err := r.Live.List(ctx, &list, client.InNamespace(step.pool.Namespace))
	if err != nil {
		log.FromContext(ctx).V(1).Info("NetworkPolicies cannot be read", "error", err.Error())
	}
	for i := range findings {
		pod := slices.IndexFunc(step.pods, func(pod *corev1.Pod) bool { return pod.Name == findings[i].Pod })
		if pod < 0 || !isBlocked(findings[i]) {
			continue
		}
		if err != nil {
			findings[i].Detail += "; look for a NetworkPolicy"
			continue
		}
		findings[i].Detail += "; " + policiesText(policiesOf(list.Items, step.pods[pod].Labels))
	}
}

func isBlocked(f observe.Finding) bool { return f.Cause == observe.CausePolicyBlocks }

// policiesOf gives the names of the policies that hold for what comes into a pod with these labels, in order. Whether one of
// them lets Prometheus in is for its reader to see: that depends on labels of pods and namespaces elsewhere.
func policiesOf(policies []networkingv1.NetworkPolicy, pod map[string]string) (names []string) {
	for _, policy := range policies {
		// A policy that names no types holds for ingress.
		if types := policy.Spec.PolicyTypes; len(types) > 0 && !slices.Contains(types, networkingv1.PolicyTypeIngress) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err == nil && selector.Matches(labels.Set(pod)) {
			names = append(names, policy.Namespace+"/"+policy.Name)
		}
	}
	slices.Sort(names)
	return names
}

// namedPolicies is how many policies a message names.
const namedPolicies = 3

func policiesText(names []string) string {
	switch more := len(names) - namedPolicies; {
	case len(names) == 0:
		return "no NetworkPolicy selects the pod, so see those for Prometheus' egress, and the network's own"
	case len(names) == 1:
		return "NetworkPolicy " + names[0] + " selects the pod"
	case more > 0:
		return "NetworkPolicies " + strings.Join(names[:namedPolicies], ", ") + " and others select the pod"
	default:
		return "NetworkPolicies " + strings.Join(names, ", ") + " select the pod"
	}
}
