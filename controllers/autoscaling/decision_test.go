package autoscaling

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestDecisions(t *testing.T) {
	before := v1alpha1.ScalingDecision{Time: metav1.NewTime(epoch.Add(-time.Minute)), By: v1alpha1.ActorOther, To: 2, Reason: "before"}
	pool := func(demand int32, change ...func(*v1alpha1.EnginePool)) *v1alpha1.EnginePool {
		return testPool(append([]func(*v1alpha1.EnginePool){func(p *v1alpha1.EnginePool) {
			p.Spec.Replicas = &demand
			p.Status.LastDecisions = []v1alpha1.ScalingDecision{before}
		}}, change...)...)
	}
	hpa := func(desired int32, utilization, queue string, conditions ...autoscalingv2.HorizontalPodAutoscalerCondition) *autoscalingv2.HorizontalPodAutoscaler {
		current := func(name, value string) autoscalingv2.MetricStatus {
			return autoscalingv2.MetricStatus{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricStatus{
				Metric: autoscalingv2.MetricIdentifier{Name: name}, Current: autoscalingv2.MetricValueStatus{AverageValue: new(resource.MustParse(value))},
			}}
		}
		return &autoscalingv2.HorizontalPodAutoscaler{
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: new(int32(2)), MaxReplicas: 6},
			Status: autoscalingv2.HorizontalPodAutoscalerStatus{
				DesiredReplicas: desired, LastScaleTime: new(metav1.NewTime(epoch)), Conditions: conditions,
				CurrentMetrics: []autoscalingv2.MetricStatus{current("sluice_utilization", utilization), current("sluice_queue_length", queue)},
			},
		}
	}
	limited := func(reason string) autoscalingv2.HorizontalPodAutoscalerCondition {
		return autoscalingv2.HorizontalPodAutoscalerCondition{Type: autoscalingv2.ScalingLimited, Status: corev1.ConditionTrue, Reason: reason}
	}
	input := func(signal v1alpha1.ScalingMetricType, metric, value, target string, desired int32) v1alpha1.ScalingInput {
		return v1alpha1.ScalingInput{Signal: signal, Metric: metric, Value: value, Target: target, Replicas: 2, Desired: desired}
	}
	// KEDA's autoscaler had three replicas when it looked: its means are over all of them, ready or not.
	keda := func(desired int32, utilization, ttft string) *autoscalingv2.HorizontalPodAutoscaler {
		h := hpa(desired, "9", "9")
		h.Status.CurrentReplicas = 3
		external := func(name string, current autoscalingv2.MetricValueStatus) autoscalingv2.MetricStatus {
			return autoscalingv2.MetricStatus{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricStatus{
				Metric: autoscalingv2.MetricIdentifier{Name: name}, Current: current,
			}}
		}
		h.Status.CurrentMetrics = []autoscalingv2.MetricStatus{
			external("s1-prometheus", autoscalingv2.MetricValueStatus{Value: new(resource.MustParse(ttft))}),
			external("s0-prometheus", autoscalingv2.MetricValueStatus{AverageValue: new(resource.MustParse(utilization))}),
		}
		return h
	}
	scaledByKEDA := func(p *v1alpha1.EnginePool) {
		p.Spec.Autoscaling.Provider = v1alpha1.ProviderKEDA
		p.Spec.Autoscaling.Metrics = []v1alpha1.ScalingMetric{
			{Type: v1alpha1.MetricUtilization, Target: resource.MustParse("0.8")}, {Type: v1alpha1.MetricTTFT, Target: resource.MustParse("0.5")},
		}
	}
	for _, tc := range []struct {
		name   string
		reason string
		pool   *v1alpha1.EnginePool
		hpa    *autoscalingv2.HorizontalPodAutoscaler
		age    time.Duration // since the demand was first seen
		want   *v1alpha1.ScalingDecision
		again  time.Duration
	}{
		{name: "Same", reason: "the demand is as the newest decision says", pool: pool(2)},
		{name: "NothingScales", reason: "a person's pool has no decisions", pool: testPool(func(p *v1alpha1.EnginePool) { p.Spec.Autoscaling = nil })},
		{
			name: "Begin", reason: "the first one", pool: testPool(func(p *v1alpha1.EnginePool) { p.Spec.Replicas = new(int32(2)) }),
			want: &v1alpha1.ScalingDecision{By: v1alpha1.ActorOther, To: 2, MinReplicas: new(int32(2)), MaxReplicas: new(int32(6)), Bound: "none", Reason: "the pool began with demand 2"},
		},
		{
			name: "Autoscaler", reason: "ceil(1.3 * 2 / 0.8) = 4, and the other two signals want less", pool: pool(4), hpa: hpa(4, "1300m", "2"),
			want: &v1alpha1.ScalingDecision{
				By: v1alpha1.ActorHPA, From: 2, To: 4, MinReplicas: new(int32(2)), MaxReplicas: new(int32(6)), RawDesired: new(int32(4)), Bound: "none",
				Inputs: []v1alpha1.ScalingInput{input(v1alpha1.MetricUtilization, "sluice_utilization", "1300m", "800m", 4), input(v1alpha1.MetricQueueLength, "sluice_queue_length", "2", "5", 1)},
				Reason: "Utilization: ceil(1300m * 2 / 800m) = 4; QueueLength: ceil(2 * 2 / 5) = 1; Concurrency has no value; bound: none: demand 2 becomes 4",
			},
		},
		{
			name: "Maximum", reason: "the bound that held is named", pool: pool(6), hpa: hpa(6, "4", "5400m", limited("TooManyReplicas")),
			want: &v1alpha1.ScalingDecision{
				By: v1alpha1.ActorHPA, From: 2, To: 6, MinReplicas: new(int32(2)), MaxReplicas: new(int32(6)), RawDesired: new(int32(10)), Bound: "maxReplicas 6",
				Inputs: []v1alpha1.ScalingInput{input(v1alpha1.MetricUtilization, "sluice_utilization", "4", "800m", 10), input(v1alpha1.MetricQueueLength, "sluice_queue_length", "5400m", "5", 2)},
				Reason: "Utilization: ceil(4 * 2 / 800m) = 10; QueueLength: ceil(5400m * 2 / 5) = 2; Concurrency has no value; bound: maxReplicas 6: demand 2 becomes 6",
			},
		},
		{
			name: "KEDA", reason: "its metrics have the numbers of the triggers, in any order", pool: pool(5, scaledByKEDA), hpa: keda(5, "1200m", "1"),
			want: &v1alpha1.ScalingDecision{
				By: v1alpha1.ActorHPA, From: 2, To: 5, MinReplicas: new(int32(2)), MaxReplicas: new(int32(6)), RawDesired: new(int32(5)), Bound: "none",
				Inputs: []v1alpha1.ScalingInput{
					{Signal: v1alpha1.MetricUtilization, Metric: "sluice_utilization", Value: "1200m", Target: "800m", Replicas: 3, Desired: 5},
					{Signal: v1alpha1.MetricTTFT, Metric: "sluice_ttft_slo_ratio", Value: "1", Target: "500m", Replicas: 2, Desired: 4},
				},
				Reason: "Utilization: ceil(1200m * 3 / 800m) = 5; TTFT: ceil(1 * 2 / 500m) = 4; bound: none: demand 2 becomes 5",
			},
		},
		{name: "TooEarly", reason: "the autoscaler writes its status after the demand", pool: pool(4), hpa: hpa(2, "1300m", "2"), age: 2 * time.Second, again: 3 * time.Second},
		{
			name: "Somebody", reason: "nobody tells", pool: pool(4), hpa: hpa(2, "1300m", "2"), age: 5 * time.Second,
			want: &v1alpha1.ScalingDecision{By: v1alpha1.ActorOther, From: 2, To: 4, MinReplicas: new(int32(2)), MaxReplicas: new(int32(6)), Bound: "none",
				Reason: "somebody changed the demand from 2 to 4: a person, another controller or the service"},
		},
		{
			name: "Operator", reason: "its note says why", pool: pool(0, func(p *v1alpha1.EnginePool) {
				p.Annotations = map[string]string{v1alpha1.AnnotationScaled: `{"by":"Idle","from":2,"to":0,"reason":"idle"}`}
			}),
			want: &v1alpha1.ScalingDecision{By: v1alpha1.ActorIdle, From: 2, MinReplicas: new(int32(2)), MaxReplicas: new(int32(6)), Bound: "none", Reason: "idle"},
		},
		{
			name: "OldNote", reason: "a note of another change says nothing", pool: pool(3, func(p *v1alpha1.EnginePool) {
				p.Annotations = map[string]string{v1alpha1.AnnotationScaled: `{"by":"Idle","from":2,"to":0,"reason":"idle"}`}
			}), age: time.Minute,
			want: &v1alpha1.ScalingDecision{By: v1alpha1.ActorOther, From: 2, To: 3, MinReplicas: new(int32(2)), MaxReplicas: new(int32(6)), Bound: "none",
				Reason: "somebody changed the demand from 2 to 3: a person, another controller or the service"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, again := Decisions(DemandChange{Pool: tc.pool, HPA: tc.hpa, Ready: 2, Seen: epoch, Now: epoch.Add(tc.age)})
			want := tc.pool.Status.LastDecisions
			if tc.want != nil {
				tc.want.Time = metav1.NewTime(epoch)
				want = append(append([]v1alpha1.ScalingDecision(nil), want...), *tc.want)
			}
			if diff := cmp.Diff(want, got); diff != "" || again != tc.again {
				t.Errorf("again %s, want %s (-want +got), %s:\n%s", again, tc.again, tc.reason, diff)
			}
		})
	}
}

// TestDecisionsAreBounded keeps the newest.
func TestDecisionsAreBounded(t *testing.T) {
	pool := testPool()
	for demand := range int32(20) {
		pool.Spec.Replicas = new(demand)
		pool.Status.LastDecisions, _ = Decisions(DemandChange{Pool: pool, Seen: epoch, Now: epoch.Add(time.Minute)})
	}
	if n, last := len(pool.Status.LastDecisions), pool.Status.LastDecisions[len(pool.Status.LastDecisions)-1].To; n != maxDecisions || last != 19 {
		t.Errorf("%d decisions, the newest to %d; want %d and 19", n, last, maxDecisions)
	}
}

// TestDesiredOfHugeValues: a delay that no capacity ends is told as many replicas as there are numbers for.
func TestDesiredOfHugeValues(t *testing.T) {
	if got := desiredReplicas(1e12, 1, 1024, 3); got != math.MaxInt32 {
		t.Errorf("got %d replicas, want %d", got, math.MaxInt32)
	}
}
