package plan

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// DeviceRank is the kind of device of pods that request none: each of their ranks counts as one.
const DeviceRank = "rank"

// Devices says what accelerators the engine of a pod requests and how many: the extended resource whose name speaks of
// processors, else the first by name. A pod that requests none has its ranks. Claims of dynamic resource allocation are not
// looked into.
func Devices(pod *corev1.Pod) (kind string, count int64) {
	for _, container := range pod.Spec.Containers {
		if container.Name != EngineContainer {
			continue
		}
		names := make([]string, 0, len(container.Resources.Requests))
		for name, quantity := range container.Resources.Requests {
			if isExtended(string(name)) && quantity.Value() > 0 {
				names = append(names, string(name))
			}
		}
		if len(names) == 0 {
			break
		}
		slices.Sort(names)
		kind := names[0]
		if i := slices.IndexFunc(names, isAccelerator); i >= 0 {
			kind = names[i]
		}
		quantity := container.Resources.Requests[corev1.ResourceName(kind)]
		return kind, quantity.Value()
	}
	return DeviceRank, int64(LayoutOf(pod).RanksPerPod)
}

// isExtended says whether a resource is a device plugin's: its name has a domain, which is not Kubernetes' own.
func isExtended(name string) bool {
	domain, _, ok := strings.Cut(name, "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// isAccelerator tells processors from network cards and their like.
func isAccelerator(name string) bool {
	return slices.ContainsFunc([]string{"gpu", "/mig-", "tpu", "npu", "neuron", "gaudi", "accelerator"}, func(word string) bool {
		return strings.Contains(strings.ToLower(name), word)
	})
}

// Held says from when to when a pod holds its devices: from its place on a node until it has ended. from is zero while it has
// no node, to is zero while it holds them.
func Held(pod *corev1.Pod) (from, to time.Time) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionTrue {
			from = condition.LastTransitionTime.Time
		}
	}
	if from.IsZero() && pod.Spec.NodeName != "" {
		from = pod.CreationTimestamp.Time
	}
	if hasEnded(pod) {
		to, _, _ = describeEnd(pod)
		if to.Before(from) {
			to = from
		}
	}
	return from, to
}
