package plan

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestTraceLevel(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		tracing      *v1alpha1.TracingSpec
		want         int32
	}{
		{"none", "nobody asked for spans", nil, 0},
		{"default", "the stages of a request", &v1alpha1.TracingSpec{}, 1},
		{"off", "0 is a level", &v1alpha1.TracingSpec{Level: new(int32(0))}, 0},
		{"of requests", "that is the module that there is", &v1alpha1.TracingSpec{Level: new(int32(3)), Modules: []string{"mooncake", "request"}}, 3},
		{"of others alone", "requests are left out", &v1alpha1.TracingSpec{Level: new(int32(3)), Modules: []string{"mooncake"}}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := TraceLevel(test.tracing); got != test.want {
				t.Errorf("%s: level %d, want %d", test.reason, got, test.want)
			}
		})
	}
}

func TestTracedPod(t *testing.T) {
	pool := newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) {
		s.Engine.Tracing = &v1alpha1.TracingSpec{Endpoint: "collector:4317", Level: new(int32(2))}
		s.Engine.Env = []corev1.EnvVar{{Name: "OTEL_EXPORTER_OTLP_HEADERS", Value: "a=b"}}
	})
	pod, err := Pod(pool, engine, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	container := pod.Spec.Containers[0]
	if want := []string{"--enable-trace", "--otlp-traces-endpoint", "collector:4317"}; !slices.Equal(container.Args[len(container.Args)-3:], want) {
		t.Errorf("arguments %v, want them to end with %v", container.Args, want)
	}
	if !slices.Contains(container.Env, corev1.EnvVar{Name: "SGLANG_TRACE_LEVEL", Value: "2"}) {
		t.Errorf("environment %v lacks the level to begin with", container.Env)
	}

	ready := func(edit func(*corev1.Pod)) *corev1.Pod {
		p := pod.DeepCopy()
		p.Status.PodIP = "10.0.0.7"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if edit != nil {
			edit(p)
		}
		return p
	}
	for _, test := range []struct {
		name, reason string
		pod          *corev1.Pod
		port         int32
	}{
		{"ready", "it can be told", ready(nil), 30000},
		{"starting", "it begins with the level of its environment, and is told when it is ready", pod, 0},
		{"not traced", "an engine of an older revision has no level", ready(func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"serve"} }), 0},
		{"not the leader", "it has no API", ready(func(p *corev1.Pod) { p.Labels[v1alpha1.LabelNodeRank] = "1" }), 0},
		{"ended", "nobody is there", ready(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if port, ok := TracedEngine(test.pod); port != test.port || ok != (port != 0) {
				t.Errorf("%s: port %d, %t, want %d", test.reason, port, ok, test.port)
			}
		})
	}
}
