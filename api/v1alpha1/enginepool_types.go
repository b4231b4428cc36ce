package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EnginePool is one pool of engines of an InferenceService; the operator writes it. Where the pool has autoscaling, the
// scale belongs to the autoscaler; elsewhere change replicas in the service, the operator undoes a change here.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=slpool
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.role`
// +kubebuilder:printcolumn:name="Demand",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Utilization",type=string,JSONPath=`.status.load.utilization.mean`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type EnginePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   EnginePoolSpec   `json:"spec"`
	Status EnginePoolStatus `json:"status,omitempty"`
}

// EnginePoolList is a list of EnginePool.
//
// +kubebuilder:object:root=true
type EnginePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EnginePool `json:"items"`
}

// EnginePoolSpec is a pool with everything it needs from its service copied in.
//
// +kubebuilder:validation:XValidation:rule="self.role == oldSelf.role",message="spec.role is immutable; make another pool"
// +kubebuilder:validation:XValidation:rule="self.service == oldSelf.service && self.pool == oldSelf.pool",message="spec.service and spec.pool are immutable; make another pool"
type EnginePoolSpec struct {
	// Service is the name of the owning InferenceService.
	Service string `json:"service"`
	// Pool is the pool's name within the service.
	Pool string `json:"pool"`
	// Role of the engines.
	Role Role `json:"role"`
	// Tenant as resolved by the service.
	Tenant string `json:"tenant"`

	// Replicas is demand: what the autoscaler or a person asks for.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	Replicas *int32 `json:"replicas,omitempty"`

	Model  ModelSpec  `json:"model"`
	Engine EngineSpec `json:"engine,omitempty"`

	// SLO as in the service.
	// +optional
	SLO *SLOSpec `json:"slo,omitempty"`

	EngineShape `json:",inline"`

	// SecretHash tells contents of the PD Secret apart: 10 hex digits of their SHA-256. Engines that hold different secrets
	// cannot hand KV pages over, so it is part of the revision. Empty for role Unified.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SecretHash string `json:"secretHash,omitempty"`

	// Observability as in the service: how the pool's engines are scraped and what happens when one freezes.
	// +optional
	Observability MonitorSpec `json:"observability,omitempty"`

	// Autoscaling as in the service; the controller makes the HorizontalPodAutoscaler from it.
	// +optional
	Autoscaling *AutoscalingSpec `json:"autoscaling,omitempty"`
}

// ReplicaCounts counts replicas; a replica counts as ready only when all of its pods are.
type ReplicaCounts struct {
	// Replicas that exist, draining ones included.
	Replicas int32 `json:"replicas"`
	// ReadyReplicas serve.
	ReadyReplicas int32 `json:"readyReplicas"`
	// UpdatedReplicas have the newest revision.
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// Allocated is how many the allocator granted of the demand.
	Allocated int32 `json:"allocated"`
	// DrainingReplicas finish their requests before they go.
	DrainingReplicas int32 `json:"drainingReplicas"`
}

// EnginePoolStatus is what the operator sees of a pool.
type EnginePoolStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	ReplicaCounts `json:",inline"`

	// Selector picks one pod per replica: the leader. It is what the scale subresource gives to autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// Revision is the newest pod template hash.
	// +optional
	Revision string `json:"revision,omitempty"`

	// Load of the pool, absent when no engine has a fresh sample.
	// +optional
	Load *PoolLoad `json:"load,omitempty"`

	// LastDecision is the newest change of the replica set, with its numbers.
	// +optional
	LastDecision *Decision `json:"lastDecision,omitempty"`

	// LastDecisions are the newest changes of the demand, oldest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	LastDecisions []ScalingDecision `json:"lastDecisions,omitempty"`
}

// Decision is one change of a pool with the numbers that led to it.
type Decision struct {
	Time   metav1.Time `json:"time"`
	Action string      `json:"action"` // ScaleOut, ScaleIn, Replace, RollOut or Undrain
	Reason string      `json:"reason"` // "demand 3, allocated 1, budget none: create replicas 1 and 2"
}

// PoolLoad is the load of a pool's ranks at one time. Ratios are decimal strings with two digits, so that equal loads
// compare equal.
type PoolLoad struct {
	// Utilization over the ranks; absent on a pool that reports none (prefill).
	// +optional
	Utilization *Spread `json:"utilization,omitempty"`
	// TokenUsage over the ranks: locked KV tokens over capacity.
	// +optional
	TokenUsage *Spread `json:"tokenUsage,omitempty"`

	RunningRequests int64 `json:"runningRequests"` // over all ranks
	WaitingRequests int64 `json:"waitingRequests"` // scheduler waiting queues

	// PD queues, present by role.
	// +optional
	PrefillBootstrapQueue *int64 `json:"prefillBootstrapQueue,omitempty"`
	// +optional
	PrefillInflightQueue *int64 `json:"prefillInflightQueue,omitempty"`
	// +optional
	DecodePreallocQueue *int64 `json:"decodePreallocQueue,omitempty"`
	// +optional
	DecodeTransferQueue *int64 `json:"decodeTransferQueue,omitempty"`
	// +optional
	DecodeRetractedQueue *int64 `json:"decodeRetractedQueue,omitempty"`

	// GenThroughput is generated tokens per second over all ranks.
	GenThroughput string `json:"genThroughput"`

	// Ranks is how many ranks the numbers come from, ExpectedRanks how many the plan expects.
	Ranks         int32 `json:"ranks"`
	ExpectedRanks int32 `json:"expectedRanks"`

	// SampleTime is the time of the oldest sample in these numbers. It is not written anew while they stay the same.
	// +optional
	SampleTime *metav1.Time `json:"sampleTime,omitempty"`
}

// Spread is the distribution of a value over ranks.
type Spread struct {
	Min  string `json:"min"`
	Mean string `json:"mean"`
	Max  string `json:"max"`
	// MaxAt is the pod and rank that has Max: "POD/rank".
	// +optional
	MaxAt string `json:"maxAt,omitempty"`
}
