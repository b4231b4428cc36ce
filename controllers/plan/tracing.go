package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const (
	enableTrace = "--enable-trace"
	// traceLevelVariable is what an engine begins with.
	traceLevelVariable = "SGLANG_TRACE_LEVEL"
	// moduleRequest are the requests of clients, the one module of which engines make spans.
	moduleRequest = "request"

	defaultTraceLevel = 1
)

// TraceLevel is the level at which engines are to trace requests: that of the spec, and 0 when its modules leave requests out.
func TraceLevel(tracing *v1alpha1.TracingSpec) int32 {
	switch {
	case tracing == nil, len(tracing.Modules) > 0 && !slices.Contains(tracing.Modules, moduleRequest):
		return 0
	case tracing.Level == nil:
		return defaultTraceLevel
	default:
		return *tracing.Level
	}
}

// traceEnv makes a new engine begin with the level of its time. It is no part of the revision.
func traceEnv(tracing *v1alpha1.TracingSpec) []corev1.EnvVar {
	if tracing == nil {
		return nil
	}
	return []corev1.EnvVar{{Name: traceLevelVariable, Value: decimal(TraceLevel(tracing))}}
}

// TracedEngine says whether a pod is the leader of a replica whose engine can be told a trace level now, and at which port.
func TracedEngine(pod *corev1.Pod) (port int32, ok bool) {
	if pod.Labels[v1alpha1.LabelNodeRank] != "0" || pod.DeletionTimestamp != nil || hasEnded(pod) || !isReady(pod) || pod.Status.PodIP == "" {
		return 0, false
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == EngineContainer && slices.Contains(container.Args, enableTrace) {
			return httpPort(container), true
		}
	}
	return 0, false
}

func httpPort(container corev1.Container) int32 {
	for _, port := range container.Ports {
		if port.Name == v1alpha1.PortHTTP {
			return port.ContainerPort
		}
	}
	return v1alpha1.DefaultEnginePort
}
