package scaling

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestCompute(t *testing.T) {
	for _, tc := range []struct {
		name, reason, value, target string
		replicas, current           int32
		want                        *int32
		within                      bool
	}{
		{"up", "ceil of 2.375", "950m", "800m", 2, 2, new(int32(3)), false},
		{"exact", "no rounding up of a whole number", "1600m", "800m", 2, 2, new(int32(4)), false},
		{"down", "", "200m", "800m", 4, 4, new(int32(1)), false},
		{"to zero", "nothing to do", "0", "800m", 4, 4, new(int32(0)), false},
		{"near", "within a tenth stays", "880m", "800m", 2, 5, new(int32(5)), true},
		{"nearly near", "", "881m", "800m", 2, 2, new(int32(3)), false},
		{"no value", "that is never a number", "", "800m", 2, 2, nil, false},
		{"a sentinel", "that is never a number", "-1", "800m", 2, 2, nil, false},
		{"no target", "", "1", "0", 2, 2, nil, false},
		{"huge", "a delay that no number of replicas ends", "1G", "1m", 50, 2, new(int32(math.MaxInt32)), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Input{Value: tc.value, Target: tc.target, Replicas: tc.replicas}
			in.compute(tc.current)
			if !cmp.Equal(in.Computed, tc.want) || in.Within != tc.within {
				t.Errorf("%s: %v, within %v", tc.reason, in.Computed, in.Within)
			}
		})
	}
}

// TestComputeAgainstFloats compares with the formula as one writes it down.
func TestComputeAgainstFloats(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		value, target, replicas := rng.Int64N(5000), 1+rng.Int64N(2000), 1+rng.Int32N(50)
		in := Input{Value: strconv.FormatInt(value, 10) + "m", Target: strconv.FormatInt(target, 10) + "m", Replicas: replicas}
		in.compute(7)
		want := int32(math.Ceil(float64(value*int64(replicas))/float64(target) - 1e-12))
		if math.Abs(float64(value)/float64(target)-1) <= 0.1+1e-12 {
			want = 7
		}
		if in.Computed == nil || *in.Computed != want {
			t.Fatalf("%s of %s with %d replicas: %v, want %d", in.Value, in.Target, replicas, in.Computed, want)
		}
	}
}

func TestExplain(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	pool := &v1alpha1.EnginePool{
		Spec: v1alpha1.EnginePoolSpec{Pool: "decode", Role: v1alpha1.RoleDecode, Replicas: new(int32(4)),
			Autoscaling: &v1alpha1.AutoscalingSpec{MinReplicas: new(int32(1)), MaxReplicas: 4, Provider: v1alpha1.ProviderMetricsAPI}},
		Status: v1alpha1.EnginePoolStatus{
			ReplicaCounts: v1alpha1.ReplicaCounts{Allocated: 4, ReadyReplicas: 2},
			Conditions:    []metav1.Condition{{Type: v1alpha1.ConditionScalingActive, Status: metav1.ConditionFalse, Reason: "Stale", Message: "the sample is old"}},
			LastDecisions: []v1alpha1.ScalingDecision{
				{Time: at, By: v1alpha1.ActorOther, From: 1, To: 2, Reason: "somebody"},
				{Time: at, By: v1alpha1.ActorHPA, From: 2, To: 4, MinReplicas: new(int32(1)), MaxReplicas: new(int32(4)), RawDesired: new(int32(5)), Bound: "maxReplicas", Reason: "utilization",
					Inputs: []v1alpha1.ScalingInput{{Signal: "Utilization", Metric: "sglang_utilization", Value: "1900m", Target: "800m", Replicas: 2, Desired: 5}, {Signal: "QueueLength", Metric: "q", Value: "2", Target: "2", Replicas: 2, Desired: 2}}},
				{Time: at, By: v1alpha1.ActorHPA, From: 4, To: 3, MinReplicas: new(int32(1)), MaxReplicas: new(int32(4)), Bound: "stabilization", Reason: "slowly",
					Inputs: []v1alpha1.ScalingInput{{Signal: "Utilization", Metric: "sglang_utilization", Value: "100m", Target: "800m", Replicas: 4, Desired: 1}}},
			},
			LastDecision: &v1alpha1.Decision{Time: at, Action: "ScaleOut", Reason: "demand 4: create replica 3"},
		},
	}
	target, current := resource.MustParse("800m"), resource.MustParse("950m")
	scaler := &autoscalingv2.HorizontalPodAutoscaler{
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: []autoscalingv2.MetricSpec{
			{Type: "Pods", Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "sglang_utilization"}, Target: autoscalingv2.MetricTarget{AverageValue: &target}}},
			{Type: "Pods", Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "q"}, Target: autoscalingv2.MetricTarget{AverageValue: &target}}},
		}},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: 4, DesiredReplicas: 4,
			CurrentMetrics: []autoscalingv2.MetricStatus{{Type: "Pods", Pods: &autoscalingv2.PodsMetricStatus{Metric: autoscalingv2.MetricIdentifier{Name: "sglang_utilization"}, Current: autoscalingv2.MetricValueStatus{AverageValue: &current}}}},
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
				{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionTrue}, {Type: autoscalingv2.ScalingLimited, Status: corev1.ConditionTrue, Reason: "TooManyReplicas", Message: "more than maxReplicas"}},
		},
	}
	e := Explanation{Pools: []Pool{NewPool(pool, scaler), NewPool(&v1alpha1.EnginePool{Spec: v1alpha1.EnginePoolSpec{Pool: "prefill", Role: v1alpha1.RolePrefill}}, nil)}, Notes: []string{"a note"}}
	want := `decode  Decode: 4 replicas asked for, 4 allocated, 2 ready
  autoscaling between 1 and 4 by MetricsAPI
  now: 4 -> 4
    sglang_utilization 950m, target 800m: ceil(950m * 4 / 800m) = 5
    q has no value, target 800m: it holds
    ScalingLimited is True, TooManyReplicas: more than maxReplicas
  ScalingActive: False, Stale: the sample is old
  2026-11-30T12:00:00Z  4 -> 3 by HorizontalPodAutoscaler
    Utilization 100m, target 800m: ceil(100m * 4 / 800m) = 1
    max(1) = 1, within [1, 4]: 1, but decided was 3 (bound: stabilization)
    why: slowly
  2026-11-30T12:00:00Z  2 -> 4 by HorizontalPodAutoscaler
    Utilization 1900m, target 800m: ceil(1900m * 2 / 800m) = 5
    QueueLength 2, target 2: 2 / 2 is within a tenth of 1: stays 2
    max(5, 2) = 5, within [1, 4]: 4, as decided: 4
    why: utilization
  2026-11-30T12:00:00Z  1 -> 2 by Other
    why: somebody
  last change of the replicas: 2026-11-30T12:00:00Z ScaleOut: demand 4: create replica 3

prefill  Prefill: 1 replica asked for, 0 allocated, 0 ready
  no autoscaling: the number is that of spec.pools[].replicas
note: a note
`
	if diff := cmp.Diff(want, e.Text()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}
