package autoscaling

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// testPool is the decode pool of service chat in team-a.
func testPool(change ...func(*v1alpha1.EnginePool)) *v1alpha1.EnginePool {
	pool := &v1alpha1.EnginePool{
		ObjectMeta: metav1.ObjectMeta{Name: "chat-decode", Namespace: "team-a", UID: "pool-uid", Generation: 3},
		Spec: v1alpha1.EnginePoolSpec{
			Service: "chat", Pool: "decode", Role: v1alpha1.RoleDecode, Tenant: "team-a", Model: v1alpha1.ModelSpec{Name: "tiny"},
			Autoscaling: &v1alpha1.AutoscalingSpec{
				MinReplicas: new(int32(2)), MaxReplicas: 6,
				Metrics: []v1alpha1.ScalingMetric{
					{Type: v1alpha1.MetricUtilization, Target: resource.MustParse("0.8")},
					{Type: v1alpha1.MetricQueueLength, Target: resource.MustParse("5")},
					{Type: v1alpha1.MetricConcurrency, Target: resource.MustParse("12")},
				},
				Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(45))}},
			},
		},
	}
	for _, c := range change {
		c(pool)
	}
	return pool
}

func TestBuildHPA(t *testing.T) {
	podsMetric := func(name, target string) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: name},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse(target))},
		}}
	}
	want := &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "chat-decode", Namespace: "team-a", Labels: plan.PoolLabels(testPool().Spec),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "inference.sluice.dev/v1alpha1", Kind: "EnginePool", Name: "chat-decode", UID: "pool-uid",
				Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "inference.sluice.dev/v1alpha1", Kind: "EnginePool", Name: "chat-decode"},
			MinReplicas:    new(int32(2)),
			MaxReplicas:    6,
			Metrics: []autoscalingv2.MetricSpec{
				podsMetric("sluice_utilization", "0.8"), podsMetric("sluice_queue_length", "5"), podsMetric("sluice_concurrency", "12"),
			},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleUp: &autoscalingv2.HPAScalingRules{
					StabilizationWindowSeconds: new(int32(0)), SelectPolicy: new(autoscalingv2.MaxChangePolicySelect),
					Policies: []autoscalingv2.HPAScalingPolicy{
						{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
						{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
					},
				},
				ScaleDown: &autoscalingv2.HPAScalingRules{
					StabilizationWindowSeconds: new(int32(45)), SelectPolicy: new(autoscalingv2.MaxChangePolicySelect),
					Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}},
				},
			},
		},
	}

	for _, tc := range []struct {
		name   string
		reason string
		pool   *v1alpha1.EnginePool
		want   func(*autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler
	}{
		{
			name: "Whole", reason: "every field of the spec arrives", pool: testPool(),
			want: func(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler { return h },
		},
		{
			name: "NoAutoscaling", reason: "a pool that a person scales has no autoscaler",
			pool: testPool(func(p *v1alpha1.EnginePool) { p.Spec.Autoscaling = nil }),
			want: func(*autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler { return nil },
		},
		{
			name: "Defaults", reason: "an object from before the defaults is complete too",
			pool: testPool(func(p *v1alpha1.EnginePool) {
				p.Spec.Autoscaling.MinReplicas = nil
				p.Spec.Autoscaling.Behavior = nil
			}),
			want: func(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
				h.Spec.MinReplicas = new(int32(1))
				h.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = new(int32(300))
				return h
			},
		},
		{
			name: "MayBeZero", reason: "an autoscaler knows nothing below 1; the way to 0 is the operator's",
			pool: testPool(func(p *v1alpha1.EnginePool) { p.Spec.Autoscaling.MinReplicas = new(int32(0)) }),
			want: func(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
				h.Spec.MinReplicas = new(int32(1))
				return h
			},
		},
		{
			name: "Behaviour", reason: "what the spec says of a direction arrives, the rest is filled in",
			pool: testPool(func(p *v1alpha1.EnginePool) {
				p.Spec.Autoscaling.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
					ScaleUp: &autoscalingv2.HPAScalingRules{
						SelectPolicy: new(autoscalingv2.MinChangePolicySelect),
						Policies:     []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 60}},
					},
					ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: new(autoscalingv2.DisabledPolicySelect)},
				}
			}),
			want: func(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
				h.Spec.Behavior.ScaleUp.SelectPolicy = new(autoscalingv2.MinChangePolicySelect)
				h.Spec.Behavior.ScaleUp.Policies = []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 60}}
				h.Spec.Behavior.ScaleDown.SelectPolicy = new(autoscalingv2.DisabledPolicySelect)
				h.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = new(int32(300))
				return h
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want(want.DeepCopy()), BuildHPA(tc.pool)); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestReadsLatency: histograms are read for those who ask for them.
func TestReadsLatency(t *testing.T) {
	objectives := func(p *v1alpha1.EnginePool) { p.Spec.SLO = &v1alpha1.SLOSpec{} }
	scaled := func(kind v1alpha1.ScalingMetricType, provider v1alpha1.ScalingProvider) func(*v1alpha1.EnginePool) {
		return func(p *v1alpha1.EnginePool) {
			p.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{Metrics: []v1alpha1.ScalingMetric{{Type: kind}}, Provider: provider}
		}
	}
	prefill := func(p *v1alpha1.EnginePool) { p.Spec.Role = v1alpha1.RolePrefill }
	for _, tc := range []struct {
		name, reason   string
		pool           *v1alpha1.EnginePool
		external, want bool
	}{
		{"TTFT", "its autoscaler asks", testPool(scaled(v1alpha1.MetricTTFT, v1alpha1.ProviderMetricsAPI)), false, true},
		{"Utilization", "nobody asks", testPool(scaled(v1alpha1.MetricUtilization, v1alpha1.ProviderMetricsAPI), objectives), false, false},
		{"KEDA", "Prometheus is asked", testPool(scaled(v1alpha1.MetricITL, v1alpha1.ProviderKEDA), objectives), false, false},
		{"External", "autoscalers of others may ask", testPool(scaled(v1alpha1.MetricUtilization, v1alpha1.ProviderMetricsAPI), objectives), true, true},
		{"NoObjective", "there is nothing to compare with", testPool(scaled(v1alpha1.MetricUtilization, v1alpha1.ProviderMetricsAPI)), true, false},
		{"Prefill", "it has no such latency", testPool(objectives, prefill), true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := ReadsLatency(tc.pool, tc.external); got != tc.want {
				t.Errorf("got %v: %s", got, tc.reason)
			}
		})
	}
}
