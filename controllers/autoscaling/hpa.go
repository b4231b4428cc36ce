package autoscaling

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/controllers/semantics"
)

// How fast a pool grows and shrinks. It may double or gain four replicas every 15 s, whichever is more, without
// waiting; it shrinks only after the demand was low for the stabilisation window, and then as far as the
// demand says, since every replica drains first.
const (
	scaleUpPercent     = 100
	scaleUpPods        = 4
	scaleDownPercent   = 100
	scalePeriodSeconds = 15

	scaleDownStabilizationSeconds = 300
)

// BuildHPA gives the HorizontalPodAutoscaler of a pool, owned by it and with its name; nil when the pool has no
// autoscaling, or KEDA makes one for it. With provider External it is the same object, read by another server. It reads metrics of type Pods; the package comment says why.
func BuildHPA(pool *v1alpha1.EnginePool) *autoscalingv2.HorizontalPodAutoscaler {
	spec := pool.Spec.Autoscaling
	if spec == nil || UsesKEDA(pool) {
		return nil
	}
	metrics := make([]autoscalingv2.MetricSpec, len(spec.Metrics))
	for i, m := range spec.Metrics {
		target := m.Target.DeepCopy()
		signal, _ := semantics.SignalOf(m.Type) // a test compares the types with the schema's
		metrics[i] = autoscalingv2.MetricSpec{
			Type: autoscalingv2.PodsMetricSourceType,
			Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: signal.Metric},
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
			MinReplicas: new(max(1, spec.Min())),
			MaxReplicas: spec.MaxReplicas,
			Metrics:     metrics,
			Behavior:    behavior(spec),
		},
	}
}

// behavior gives what the spec says, and the defaults where it says nothing of a direction.
func behavior(spec *v1alpha1.AutoscalingSpec) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	percent := func(value int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: value, PeriodSeconds: scalePeriodSeconds}
	}
	pods := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: scaleUpPods, PeriodSeconds: scalePeriodSeconds}
	given := spec.Behavior.DeepCopy()
	if given == nil {
		given = &autoscalingv2.HorizontalPodAutoscalerBehavior{}
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   rules(given.ScaleUp, 0, percent(scaleUpPercent), pods),
		ScaleDown: rules(given.ScaleDown, scaleDownStabilizationSeconds, percent(scaleDownPercent)),
	}
}

// rules fills in what is left out, so that the API server has nothing to default and the object stays as it is applied.
func rules(given *autoscalingv2.HPAScalingRules, stabilizationSeconds int32, policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	if given == nil {
		given = &autoscalingv2.HPAScalingRules{}
	}
	if given.StabilizationWindowSeconds == nil {
		given.StabilizationWindowSeconds = &stabilizationSeconds
	}
	if given.SelectPolicy == nil {
		given.SelectPolicy = new(autoscalingv2.MaxChangePolicySelect)
	}
	if len(given.Policies) == 0 {
		given.Policies = policies
	}
	return given
}
