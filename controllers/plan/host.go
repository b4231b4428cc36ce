package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// checkHost refuses a pod that reaches into its node: by a directory of the node, its network or processes, a privileged
// container, a port of the node or a capability. Whoever may make an InferenceService writes its model.uri and template,
// and the operator makes the pods with its own rights, so an installation must say that it wants this. Pod Security
// admission guards a namespace beyond that.
func checkHost(pod corev1.PodSpec, spec v1alpha1.EnginePoolSpec) error {
	if strings.HasPrefix(spec.Model.URI, "hostpath://") {
		return fmt.Errorf("model.uri %q: the operator was started without --allow-host-access (chart: operator.allowHostAccess); use pvc://CLAIM/PATH", spec.Model.URI)
	}
	if field := hostField(pod); field != "" {
		return fmt.Errorf("template: %s reaches into the node, and the operator was started without --allow-host-access (chart: operator.allowHostAccess); leave it out", field)
	}
	return nil
}

// hostField names the first field of a pod that reaches into its node; empty when none does.
func hostField(pod corev1.PodSpec) string {
	switch {
	case pod.HostNetwork:
		return "spec.hostNetwork"
	case pod.HostPID:
		return "spec.hostPID"
	case pod.HostIPC:
		return "spec.hostIPC"
	}
	for _, volume := range pod.Volumes {
		if volume.HostPath != nil {
			return fmt.Sprintf("spec.volumes[name=%s].hostPath", volume.Name)
		}
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		if field := hostFieldOf(container); field != "" {
			return fmt.Sprintf("%s of container %s", field, container.Name)
		}
	}
	return ""
}

func hostFieldOf(container corev1.Container) string {
	for _, port := range container.Ports {
		if port.HostPort != 0 {
			return "ports[].hostPort"
		}
	}
	security := container.SecurityContext
	if security == nil {
		return ""
	}
	if security.Privileged != nil && *security.Privileged {
		return "securityContext.privileged"
	}
	if security.Capabilities == nil {
		return ""
	}
	for _, capability := range security.Capabilities.Add {
		if capability != "NET_BIND_SERVICE" {
			return fmt.Sprintf("securityContext.capabilities.add %s", capability)
		}
	}
	return ""
}
