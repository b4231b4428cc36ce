package autoscaling

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// How fast a pool grows and shrinks. It may double or gain four replicas every 15 s, whichever is more, without
// waiting; it shrinks only after the demand was low for the stabilisation window of its spec, and then as far as the
// demand says, since every replica drains first.
const (
	scaleUpPercent     = 100
	scaleUpPods        = 4
	scaleDownPercent   = 100
	scalePeriodSeconds = 15

	defaultScaleDownStabilizationSeconds = 300
)

// BuildHPA gives the HorizontalPodAutoscaler of a pool, owned by it and with its name; nil when the pool has no
// autoscaling. It reads metrics of type Pods; the package comment says why.
func BuildHPA(pool *v1alpha1.EnginePool) *autoscalingv2.HorizontalPodAutoscaler {
	spec := pool.Spec.Autoscaling
	if spec == nil {
		return nil
	}
	metrics := make([]autoscalingv2.MetricSpec, len(spec.Metrics))
	for i, m := range spec.Metrics {
		target := m.Target.DeepCopy()
		metrics[i] = autoscalingv2.MetricSpec{
			Type: autoscalingv2.PodsMetricSourceType,
			Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: scalingMetricName(m.Type)},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &target},
			},
		}
	}
	return &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta: metav1.TypeMeta{APIVersion: autoscalingv2.SchemeGroupVersion.String(), Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            pool.Name,
			Namespace:       pool.Namespace,
			Labels:          plan.PoolLabels(pool.Spec),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1alpha1.GroupVersion.WithKind("EnginePool"))},
		},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: v1alpha1.GroupVersion.String(),
				Kind:       "EnginePool",
				Name:       pool.Name,
			},
			MinReplicas: new(max(1, spec.MinReplicas)),
			MaxReplicas: spec.MaxReplicas,
			Metrics:     metrics,
			Behavior:    behavior(spec),
		},
	}
}

func behavior(spec *v1alpha1.AutoscalingSpec) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	stabilization := int32(defaultScaleDownStabilizationSeconds)
	if spec.ScaleDownStabilizationSeconds != nil {
		stabilization = *spec.ScaleDownStabilizationSeconds
	}
	percent := func(value int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: value, PeriodSeconds: scalePeriodSeconds}
	}
	pods := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: scaleUpPods, PeriodSeconds: scalePeriodSeconds}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: new(int32(0)),
			SelectPolicy:               new(autoscalingv2.MaxChangePolicySelect),
			Policies:                   []autoscalingv2.HPAScalingPolicy{percent(scaleUpPercent), pods},
		},
		ScaleDown: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: &stabilization,
			SelectPolicy:               new(autoscalingv2.MaxChangePolicySelect),
			Policies:                   []autoscalingv2.HPAScalingPolicy{percent(scaleDownPercent)},
		},
	}
}
