package plan

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// DeviceRank is the kind of device of pods that request none: each of their ranks counts as one.
const DeviceRank = "rank"

// Devices says what accelerators the engine of a pod holds and how many: the extended resource whose name speaks of
// processors, else the first by name; else what its claims of dynamic resource allocation were given, by the name of the
// driver that is chosen alike. A pod that requests none has its ranks. claims are those that are known, by name of object; a
// pod with others has no kind and none, since nobody knows yet.
func Devices(pod *corev1.Pod, claims map[string]Claim) (kind string, count int64) {
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
		kind := accelerator(names)
		quantity := container.Resources.Requests[corev1.ResourceName(kind)]
		return kind, quantity.Value()
	}
	if len(uses(pod)) == 0 {
		return DeviceRank, int64(LayoutOf(pod).RanksPerPod)
	}
	byDriver, known := claimed(pod, claims)
	if !known || len(byDriver) == 0 {
		return "", 0
	}
	kind = accelerator(slices.Collect(maps.Keys(byDriver)))
	return kind, byDriver[kind]
}

// accelerator chooses the name that speaks of processors, else the first.
func accelerator(names []string) string {
	slices.Sort(names)
	if i := slices.IndexFunc(names, isAccelerator); i >= 0 {
		return names[i]
	}
	return names[0]
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
