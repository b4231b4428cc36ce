package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ObservabilitySpec says how the metrics of a service are scraped, checked and shown.
type ObservabilitySpec struct {
	MonitorSpec `json:",inline"`

	// Rules are what Prometheus records and alerts on for the service.
	// +optional
	// +kubebuilder:default={}
	Rules RulesSpec `json:"rules,omitempty"`

	// Dashboards show the tenant's services in Grafana.
	// +optional
	// +kubebuilder:default={}
	Dashboards DashboardsSpec `json:"dashboards,omitempty"`
}

// MonitorKind is the resource of prometheus-operator that makes Prometheus scrape.
// +kubebuilder:validation:Enum=ServiceMonitor;PodMonitor;None
type MonitorKind string

const (
	// MonitorService finds pods through the endpoints of the pool's Service.
	MonitorService MonitorKind = "ServiceMonitor"
	// MonitorPod finds pods by their labels, and needs no right to read endpoints.
	MonitorPod MonitorKind = "PodMonitor"
	// MonitorNone makes no monitor; something else scrapes.
	MonitorNone MonitorKind = "None"
)

// FrozenPolicy is what happens with a replica one of whose ranks holds work and does none.
// +kubebuilder:validation:Enum=Report;RestartReplica
type FrozenPolicy string

const (
	// FrozenReport sets the condition Degraded and leaves the replica alone.
	FrozenReport FrozenPolicy = "Report"
	// FrozenRestart also restarts the replica, with the usual growing delay between restarts.
	FrozenRestart FrozenPolicy = "RestartReplica"
)

// MonitorSpec says how engines and routers are scraped. It is the same in InferenceServiceSpec and EnginePoolSpec.
//
// +kubebuilder:object:generate=true
type MonitorSpec struct {
	// Monitor is the kind of the monitors, one per pool and one for the router.
	// +optional
	// +kubebuilder:default=ServiceMonitor
	Monitor MonitorKind `json:"monitor,omitempty"`

	// Interval between two scrapes; by default the operator's --monitor-interval.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('5m')",message="observability.interval must be from 1s to 5m, for example 15s"
	Interval *metav1.Duration `json:"interval,omitempty"`

	// Labels are added to the monitors, for a Prometheus that selects monitors by labels, for example release: prometheus.
	// They cannot replace the operator's own labels.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && size(self[k]) <= 63)",message="observability.labels must be label keys and values: a value has at most 63 characters"
	Labels map[string]string `json:"labels,omitempty"`

	// SampleLimit is the most series that one engine pod may give. By default it follows from the ranks and the families
	// that they export, with room to spare. Where it is below what they may export, families on which neither alerts nor
	// scaling nor the proof of scraping rest are dropped, those with the most series first; the status says which.
	// +optional
	// +kubebuilder:validation:Minimum=500
	// +kubebuilder:validation:Maximum=10000000
	SampleLimit *int32 `json:"sampleLimit,omitempty"`

	// FrozenPolicy is what happens with a replica one of whose ranks holds work and does none.
	// +optional
	// +kubebuilder:default=Report
	FrozenPolicy FrozenPolicy `json:"frozenPolicy,omitempty"`
}

// ObservabilityStatus is what the operator made for the scraping of a service.
type ObservabilityStatus struct {
	// Monitors in the order of their names.
	// +optional
	// +listType=map
	// +listMapKey=name
	Monitors []MonitorStatus `json:"monitors,omitempty"`
}

// MonitorStatus is one monitor with the number of series that it lets in.
type MonitorStatus struct {
	// Name of the object, in the namespace of the service.
	Name string      `json:"name"`
	Kind MonitorKind `json:"kind"`

	// Series is the most that one pod may export, by the table of families, the ranks in the pod and their labels.
	Series int32 `json:"series"`
	// SampleLimit is the most series that are taken of one pod; a pod with more is not taken at all, and up is 0.
	SampleLimit int32 `json:"sampleLimit"`
	// Dropped are the families that are left out so that a pod stays below the limit.
	// +optional
	Dropped []string `json:"dropped,omitempty"`
}
