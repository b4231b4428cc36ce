package v1alpha1

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ScalingMetricType names the signal that a pool is scaled on. docs/scaling.md has the formulas.
// +kubebuilder:validation:Enum=Utilization;PrefillDelay;QueueLength;TokenUsage;TTFT;ITL;Concurrency
type ScalingMetricType string

const (
	// MetricUtilization is sglang:utilization, a ratio: the mean over a pool's replicas; target 0.8 means 80 % of what the
	// SLO allows. Roles Decode and Unified.
	MetricUtilization ScalingMetricType = "Utilization"
	// MetricPrefillDelay is in seconds: the prompt tokens that wait and are in no cache, over the rate at which prompts are
	// computed. Target "2" or "500m". Roles Prefill and Unified.
	MetricPrefillDelay ScalingMetricType = "PrefillDelay"
	// MetricQueueLength is the number of waiting requests per replica, over all queues. All roles.
	MetricQueueLength ScalingMetricType = "QueueLength"
	// MetricTokenUsage is the locked share of the KV pool, a ratio: the mean over a pool's replicas. All roles.
	MetricTokenUsage ScalingMetricType = "TokenUsage"
	// MetricTTFT is the time to the first token over slo.ttft.threshold, at the quantile slo.ttft.objective: 1 is just within
	// the SLO. Roles Decode and Unified, whose engines send first tokens.
	MetricTTFT ScalingMetricType = "TTFT"
	// MetricITL is the time between tokens over slo.itl.threshold, at the quantile slo.itl.objective. Roles Decode and Unified.
	MetricITL ScalingMetricType = "ITL"
	// MetricConcurrency is the number of running requests per replica. All roles.
	MetricConcurrency ScalingMetricType = "Concurrency"
)

// ScalingProvider says who serves the signals to the autoscaler.
// +kubebuilder:validation:Enum=MetricsAPI;External;KEDA
type ScalingProvider string

const (
	// ProviderMetricsAPI is the operator itself, by custom.metrics.k8s.io.
	ProviderMetricsAPI ScalingProvider = "MetricsAPI"
	// ProviderExternal is another adapter of custom.metrics.k8s.io, such as prometheus-adapter, with metrics of the same names.
	ProviderExternal ScalingProvider = "External"
	// ProviderKEDA makes a ScaledObject with Prometheus triggers in place of a HorizontalPodAutoscaler.
	ProviderKEDA ScalingProvider = "KEDA"
)

// AutoscalingSpec scales the pool by itself.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",message="autoscaling.minReplicas must not exceed autoscaling.maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.scaleToZeroAfterSeconds) || (has(self.minReplicas) && self.minReplicas == 0)",message="autoscaling.scaleToZeroAfterSeconds has an effect with minReplicas 0 alone; set autoscaling.minReplicas to 0 or leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.provider) || self.provider == 'MetricsAPI' || self.metrics.all(m, m.type != 'PrefillDelay')",message="autoscaling.metrics type PrefillDelay is the prompt tokens that wait uncached over the rate of computing prompts: engines tell both in /v1/loads alone, and Prometheus has neither; use autoscaling.provider MetricsAPI, or type QueueLength"
// +kubebuilder:validation:XValidation:rule="!has(self.behavior) || ((!has(self.behavior.scaleUp) || !has(self.behavior.scaleUp.stabilizationWindowSeconds) || (self.behavior.scaleUp.stabilizationWindowSeconds >= 0 && self.behavior.scaleUp.stabilizationWindowSeconds <= 3600)) && (!has(self.behavior.scaleDown) || !has(self.behavior.scaleDown.stabilizationWindowSeconds) || (self.behavior.scaleDown.stabilizationWindowSeconds >= 0 && self.behavior.scaleDown.stabilizationWindowSeconds <= 3600)))",message="autoscaling.behavior stabilizationWindowSeconds may be 0 to 3600"
type AutoscalingSpec struct {
	// MinReplicas that stay. With 0 the pool has no replica after it was idle for scaleToZeroAfterSeconds; the router holds
	// the next request until there is one again.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	MinReplicas *int32 `json:"minReplicas,omitempty"`

	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	MaxReplicas int32 `json:"maxReplicas"`

	// Metrics to scale on; the largest answer wins.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=7
	Metrics []ScalingMetric `json:"metrics"`

	// Behavior of the HorizontalPodAutoscaler, as it stands in autoscaling/v2. By default a pool may double or gain four
	// replicas every 15 s, and shrinks after the demand was low for 300 s.
	// +optional
	Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior,omitempty"`

	// Provider of the signals.
	// +optional
	// +kubebuilder:default=MetricsAPI
	Provider ScalingProvider `json:"provider,omitempty"`

	// ScaleToZeroAfterSeconds is how long a pool with minReplicas 0 must be without a request before it has no replica; by
	// default 600.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	ScaleToZeroAfterSeconds *int32 `json:"scaleToZeroAfterSeconds,omitempty"`
}

// DefaultScaleToZeroAfterSeconds is how long a pool may be idle whose spec does not say.
const DefaultScaleToZeroAfterSeconds = 600

// DefaultWakeUpSeconds is how long a router holds a request whose service does not say.
const DefaultWakeUpSeconds = 300

// Min is the least number of replicas, 0 or more.
func (s *AutoscalingSpec) Min() int32 {
	if s.MinReplicas == nil {
		return 1
	}
	return *s.MinReplicas
}

// ScalingMetric is one signal with its target per replica.
//
// +kubebuilder:validation:XValidation:rule="!(self.type in ['Utilization', 'TokenUsage']) || quantity(string(self.target)).compareTo(quantity('1')) <= 0",message="autoscaling.metrics[].target of types Utilization and TokenUsage is a ratio and at most 1; write \"0.8\" for 80 %"
// +kubebuilder:validation:XValidation:rule="!(self.type in ['TTFT', 'ITL']) || quantity(string(self.target)).compareTo(quantity('1')) <= 0",message="autoscaling.metrics[].target of types TTFT and ITL is the share of the threshold in spec.slo and at most 1; write \"0.8\" to scale out at 80 % of it"
type ScalingMetric struct {
	Type ScalingMetricType `json:"type"`

	// Target is the value per replica to hold, for example "0.8".
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="autoscaling.metrics[].target must be above 0, for example \"0.8\""
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=20
	Target resource.Quantity `json:"target"`
}

// ScalingActor is who changed a pool's demand.
// +kubebuilder:validation:Enum=HorizontalPodAutoscaler;WakeUp;Idle;Other
type ScalingActor string

const (
	// ActorHPA is the pool's HorizontalPodAutoscaler, KEDA's included.
	ActorHPA ScalingActor = "HorizontalPodAutoscaler"
	// ActorWakeUp is the operator, since requests wait in a router for a pool without replicas.
	ActorWakeUp ScalingActor = "WakeUp"
	// ActorIdle is the operator, since the pool had no request for a time.
	ActorIdle ScalingActor = "Idle"
	// ActorOther is somebody else: a person, another controller, or a change of the service.
	ActorOther ScalingActor = "Other"
)

// ScalingDecision is one change of a pool's demand with everything that is needed to compute it again by hand.
type ScalingDecision struct {
	Time metav1.Time  `json:"time"`
	By   ScalingActor `json:"by"`
	// From and To are the demand before and after.
	From int32 `json:"from"`
	To   int32 `json:"to"`

	// Inputs are the signals with their numbers at that time; empty where none was read.
	// +optional
	// +listType=map
	// +listMapKey=signal
	Inputs []ScalingInput `json:"inputs,omitempty"`

	// RawDesired is the largest of the inputs' desired replicas, before bounds.
	// +optional
	RawDesired *int32 `json:"rawDesired,omitempty"`
	// MinReplicas and MaxReplicas are the bounds of the pool's autoscaling; absent without.
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// Bound that held: "none" when To is RawDesired.
	// +optional
	Bound string `json:"bound,omitempty"`

	// Reason is the decision in words, with its numbers.
	Reason string `json:"reason"`
}

// ScalingInput is one signal of a decision. desired = ceil(value * replicas / target), or the number of replicas as it was
// while value / target is within 10 % of 1.
type ScalingInput struct {
	Signal ScalingMetricType `json:"signal"`
	// Metric is its name in custom.metrics.k8s.io.
	Metric string `json:"metric"`
	// Value is the mean over the replicas that have a value, a quantity in the signal's unit.
	Value string `json:"value"`
	// Target per replica, a quantity.
	Target string `json:"target"`
	// Replicas that have a value.
	Replicas int32 `json:"replicas"`
	// Desired replicas by this signal alone.
	Desired int32 `json:"desired"`
}
