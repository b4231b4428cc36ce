package observe

import (
	"maps"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// loadsPath asks for every section, since the queues of all stages count.
const loadsPath = "/v1/loads?include=all"

// metricsPath is where an engine exposes its families.
const metricsPath = "/metrics"

// leaderLabels pick the pods that answer for a replica.
func leaderLabels() map[string]string {
	return map[string]string{v1alpha1.LabelComponent: v1alpha1.ComponentEngine, v1alpha1.LabelNodeRank: "0"}
}

// targetOf gives what to poll of a leader pod; false when no EnginePool controls it or it has ended. The URL is empty
// while the pod has no address, or is neither Ready nor draining: an engine that starts has no load to tell.
func targetOf(pod *corev1.Pod) (t target, ok bool) {
	pool, ok := poolOf(pod)
	if !ok || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return target{}, false
	}
	t = target{
		pool:       pool,
		pod:        types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		uid:        pod.UID,
		labels:     maps.Clone(pod.Labels),
		role:       v1alpha1.Role(pod.Labels[v1alpha1.LabelRole]),
		dataRanks:  int(plan.LayoutOf(pod).Data),
		draining:   draining(pod),
		readySince: readySince(pod),
	}
	if pod.Status.PodIP != "" && pod.Status.Phase == corev1.PodRunning && (!t.readySince.IsZero() || t.draining) {
		base := "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(httpPort(pod))))
		t.url, t.metricsURL = base+loadsPath, base+metricsPath
	}
	return t, true
}

// poolOf gives the EnginePool that controls the pod.
func poolOf(pod *corev1.Pod) (pool types.NamespacedName, ok bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "EnginePool" {
		return types.NamespacedName{}, false
	}
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || gv.Group != v1alpha1.GroupVersion.Group {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}, true
}

func draining(pod *corev1.Pod) bool {
	_, annotated := pod.Annotations[v1alpha1.AnnotationDraining]
	return annotated || pod.DeletionTimestamp != nil
}

// httpPort is the container port named http of any container, else the default.
func httpPort(pod *corev1.Pod) int32 {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == v1alpha1.PortHTTP {
				return p.ContainerPort
			}
		}
	}
	return v1alpha1.DefaultEnginePort
}
