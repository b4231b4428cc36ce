package enginepool

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/engine/loads"
)

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// gpuPod holds two GPUs since a second after the epoch.
func gpuPod(uid string, second int, edits ...func(*corev1.Pod)) *corev1.Pod {
	at := metav1.NewTime(epoch.Add(time.Duration(second) * time.Second))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid), CreationTimestamp: at, Labels: map[string]string{v1alpha1.LabelRevision: "r"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: plan.EngineContainer, Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2"), corev1.ResourceCPU: resource.MustParse("4")},
		}}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at}}},
	}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

// claiming holds what a claim was given since a second after the epoch.
func claiming(uid string, second int, claim string) *corev1.Pod {
	return gpuPod(uid, second, func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: new(claim)}}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "devices"}}}
	})
}

func gpus(n int) plan.Claim {
	c := plan.Claim{}
	for range n {
		c = append(c, plan.ClaimedDevice{Request: "r", Driver: "gpu.example.com"})
	}
	return c
}

func endedAt(second int) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: plan.EngineContainer, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(epoch.Add(time.Duration(second) * time.Second))},
		}}}
	}
}

func counted(uid string, prompt, generated int64) observe.PodSample {
	return observe.PodSample{Name: uid, UID: types.UID(uid), Ranks: []loads.Load{{TotalPrefillUncached: prompt, TotalGenerated: generated}}}
}

// TestMeter counts step by step; the operator may end between two steps and go on from what the last step gave.
func TestMeter(t *testing.T) {
	type step struct {
		second  int
		restart bool // a new operator goes on from what was written
		pods    []*corev1.Pod
		claims  map[string]plan.Claim
		samples []observe.PodSample
		want    *v1alpha1.PoolCost
	}
	cost := func(since, asOf int, devices, seconds, prompt, generated int64, per string) *v1alpha1.PoolCost {
		return &v1alpha1.PoolCost{
			Device: "nvidia.com/gpu", Devices: devices, DeviceSeconds: seconds, PromptTokens: prompt, GeneratedTokens: generated, DeviceSecondsPer1kTokens: per,
			Since: metav1.NewTime(epoch.Add(time.Duration(since) * time.Second)), AsOf: metav1.NewTime(epoch.Add(time.Duration(asOf) * time.Second)),
		}
	}
	byClaim := func(since, asOf int, devices, seconds int64) *v1alpha1.PoolCost {
		c := cost(since, asOf, devices, seconds, 0, 0, "")
		c.Device = "gpu.example.com"
		return c
	}
	waiting := gpuPod("w", 0, func(pod *corev1.Pod) { pod.Status.Conditions = nil })
	for _, test := range []struct {
		name   string
		reason string
		role   v1alpha1.Role
		steps  []step
	}{
		{"nothing", "a pod without a node holds nothing", v1alpha1.RoleDecode, []step{{second: 10, pods: []*corev1.Pod{waiting}}}},
		{"from the node on", "devices count from when a pod has its node, whenever that is seen", v1alpha1.RoleDecode, []step{
			{second: 10, pods: []*corev1.Pod{gpuPod("a", 4)}, want: cost(4, 10, 2, 12, 0, 0, "")},
			{second: 20, pods: []*corev1.Pod{gpuPod("a", 4), gpuPod("b", 15)}, samples: []observe.PodSample{counted("a", 7, 500)}, want: cost(4, 20, 4, 42, 7, 500, "84.00")},
		}},
		{"by claims", "what a claim was given counts from when it is known; a shared one once, also when the first of its pods goes", v1alpha1.RoleUnified, []step{
			{second: 10, pods: []*corev1.Pod{claiming("a", 0, "own")}},
			{second: 20, pods: []*corev1.Pod{claiming("a", 0, "own")}, claims: map[string]plan.Claim{"own": gpus(2)}, want: byClaim(0, 20, 2, 40)},
			{second: 30, restart: true, pods: []*corev1.Pod{claiming("a", 0, "own")}, want: byClaim(0, 30, 0, 40)},
			{second: 40, pods: []*corev1.Pod{claiming("a", 0, "own"), claiming("b", 40, "both"), claiming("c", 40, "both")}, claims: map[string]plan.Claim{"own": gpus(2), "both": gpus(4)}, want: byClaim(0, 40, 6, 60)},
			{second: 50, pods: []*corev1.Pod{claiming("a", 0, "own"), claiming("c", 40, "both")}, claims: map[string]plan.Claim{"own": gpus(2), "both": gpus(4)}, want: byClaim(0, 50, 6, 120)},
		}},
		{"to the end", "a pod that ended holds nothing, though it is still there; one that is gone held its devices until its end called for a count", v1alpha1.RoleUnified, []step{
			{second: 10, pods: []*corev1.Pod{gpuPod("a", 0), gpuPod("b", 0)}, samples: []observe.PodSample{counted("a", 600, 400), counted("b", 600, 400)}, want: cost(0, 10, 4, 40, 1200, 800, "20.00")},
			{second: 20, pods: []*corev1.Pod{gpuPod("a", 0, endedAt(15))}, want: cost(0, 20, 0, 70, 1200, 800, "35.00")},
			{second: 30, pods: []*corev1.Pod{gpuPod("a", 0, endedAt(15))}, want: cost(0, 30, 0, 70, 1200, 800, "35.00")},
		}},
		{"counters that fall", "an engine that began anew counts from 0", v1alpha1.RolePrefill, []step{
			{second: 10, pods: []*corev1.Pod{gpuPod("a", 0)}, samples: []observe.PodSample{counted("a", 1000, 10)}, want: cost(0, 10, 2, 20, 1000, 10, "20.00")},
			{second: 20, pods: []*corev1.Pod{gpuPod("a", 0)}, samples: []observe.PodSample{counted("a", 1000, 3)}, want: cost(0, 20, 2, 40, 1000, 13, "40.00")},
			{second: 20, pods: []*corev1.Pod{gpuPod("a", 0)}, samples: []observe.PodSample{counted("a", 1000, 3)}, want: cost(0, 20, 2, 40, 1000, 13, "40.00")},
			{second: 30, pods: []*corev1.Pod{gpuPod("a", 0)}, samples: []observe.PodSample{counted("a", 1500, -1)}, want: cost(0, 30, 2, 60, 1500, 13, "40.00")},
		}},
		{"another operator", "totals go on: devices without a gap, tokens from its first sample on, those of an engine that came later in full", v1alpha1.RoleDecode, []step{
			{second: 10, pods: []*corev1.Pod{gpuPod("a", 0)}, samples: []observe.PodSample{counted("a", 0, 1000)}, want: cost(0, 10, 2, 20, 0, 1000, "20.00")},
			{second: 40, restart: true, pods: []*corev1.Pod{gpuPod("a", 0), gpuPod("b", 30)}, samples: []observe.PodSample{counted("a", 0, 1400), counted("b", 0, 100)},
				want: cost(0, 40, 4, 100, 0, 1100, "90.91")},
			{second: 50, pods: []*corev1.Pod{gpuPod("a", 0), gpuPod("b", 30)}, samples: []observe.PodSample{counted("a", 0, 1500), counted("b", 0, 100)},
				want: cost(0, 50, 4, 140, 0, 1200, "116.67")},
		}},
		{"another kind of device", "seconds of different devices don't add up: it begins anew", v1alpha1.RoleDecode, []step{
			{second: 10, pods: []*corev1.Pod{gpuPod("a", 0, func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{} })},
				samples: []observe.PodSample{counted("a", 0, 1000)}, want: &v1alpha1.PoolCost{Device: "rank", Devices: 1, DeviceSeconds: 10, GeneratedTokens: 1000, DeviceSecondsPer1kTokens: "10.00",
					Since: metav1.NewTime(epoch), AsOf: metav1.NewTime(epoch.Add(10 * time.Second))}},
			{second: 20, pods: []*corev1.Pod{gpuPod("b", 15)}, samples: []observe.PodSample{counted("b", 0, 100)}, want: cost(15, 20, 2, 10, 0, 100, "100.00")},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMeter(nil)
			var got *v1alpha1.PoolCost
			for _, step := range test.steps {
				if step.restart {
					m = newMeter(got)
				}
				m.count(step.pods, step.claims, observe.PoolSample{Pods: step.samples}, "r", epoch.Add(time.Duration(step.second)*time.Second))
				got = m.cost(test.role)
				if diff := cmp.Diff(step.want, got); diff != "" {
					t.Fatalf("%s: at second %d (-want +got):\n%s", test.reason, step.second, diff)
				}
			}
		})
	}
}

func TestSameCost(t *testing.T) {
	base := v1alpha1.PoolCost{Device: "rank", Devices: 1, DeviceSeconds: 5, AsOf: metav1.NewTime(epoch)}
	edit := func(f func(*v1alpha1.PoolCost)) *v1alpha1.PoolCost {
		c := base
		f(&c)
		return &c
	}
	for _, test := range []struct {
		name string
		to   *v1alpha1.PoolCost
		want bool
	}{
		{"time", edit(func(c *v1alpha1.PoolCost) { c.DeviceSeconds, c.AsOf = 9, metav1.NewTime(epoch.Add(time.Hour)) }), true},
		{"devices", edit(func(c *v1alpha1.PoolCost) { c.Devices = 2 }), false},
		{"tokens", edit(func(c *v1alpha1.PoolCost) { c.GeneratedTokens = 1 }), false},
		{"gone", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := sameCost(&base, test.to); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
