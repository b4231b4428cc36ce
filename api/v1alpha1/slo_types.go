package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SLOSpec says how fast the service has to be. Alerts and scaling on latency measure against it; nothing is enforced.
type SLOSpec struct {
	// TTFT is the objective for the time from a request's arrival to its first token.
	// +optional
	TTFT *LatencyObjective `json:"ttft,omitempty"`

	// ITL is the objective for the time from one token of a request to its next.
	// +optional
	ITL *LatencyObjective `json:"itl,omitempty"`
}

// LatencyObjective is the share of events that have to take at most a time: 0 < objective < 1, 0 < threshold.
type LatencyObjective struct {
	// Threshold is the time within which an event is good, for example 500ms. Latencies are counted in buckets; a threshold
	// between two bounds is measured as the bound below it, and alerts say so.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="slo threshold must be a time above 0, for example 500ms or 2s"
	Threshold metav1.Duration `json:"threshold"`

	// Objective is the share of events that have to be good, for example "0.99".
	// +optional
	// +kubebuilder:default="0.99"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0')) && quantity(string(self)).isLessThan(quantity('1'))",message="slo objective is a share between 0 and 1, for example \"0.99\" for 99 %"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=20
	Objective resource.Quantity `json:"objective,omitempty"`
}
