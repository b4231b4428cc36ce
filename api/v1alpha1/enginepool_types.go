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
// +kubebuilder:printcolumn:name="Running",type=integer,JSONPath=`.status.load.runningRequests`
// +kubebuilder:printcolumn:name="Waiting",type=integer,JSONPath=`.status.load.waitingRequests`
// +kubebuilder:printcolumn:name="Utilization",type=string,JSONPath=`.status.load.utilization.mean`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Updated",type=integer,priority=1,JSONPath=`.status.updatedReplicas`
// +kubebuilder:printcolumn:name="Draining",type=integer,priority=1,JSONPath=`.status.drainingReplicas`
// +kubebuilder:printcolumn:name="Ranks",type=integer,priority=1,JSONPath=`.status.load.ranks`
// +kubebuilder:printcolumn:name="KV",type=string,priority=1,JSONPath=`.status.load.tokenUsage.mean`,description="KV memory in use, the mean over the ranks."
// +kubebuilder:printcolumn:name="Hits",type=string,priority=1,JSONPath=`.status.load.cacheHitRate.mean`,description="Share of prompt tokens found in the prefix cache."
// +kubebuilder:printcolumn:name="Tokens/s",type=string,priority=1,JSONPath=`.status.load.genThroughput`
// +kubebuilder:printcolumn:name="Busiest",type=string,priority=1,JSONPath=`.status.load.mostLoaded`
// +kubebuilder:printcolumn:name="Slowest",type=string,priority=1,JSONPath=`.status.load.slowest.at`
// +kubebuilder:printcolumn:name="Devices",type=integer,priority=1,JSONPath=`.status.cost.devices`
// +kubebuilder:printcolumn:name="Device-s/1k",type=string,priority=1,JSONPath=`.status.cost.deviceSecondsPer1kTokens`,description="Device-seconds per thousand tokens."
// +kubebuilder:printcolumn:name="Metrics",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="MetricsFlowing")].status`
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

	// Rollout as in the service.
	// +optional
	Rollout RolloutSpec `json:"rollout,omitempty"`

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

	// Ranks are the pool's busiest DP ranks, the busiest first.
	// +optional
	// +listType=map
	// +listMapKey=pod
	// +listMapKey=dpRank
	// +kubebuilder:validation:MaxItems=64
	Ranks []RankLoad `json:"ranks,omitempty"`

	// MoreRanks is how many ranks with a fresh sample are not in Ranks.
	// +optional
	MoreRanks int32 `json:"moreRanks,omitempty"`

	// Cost is what the pool took and gave, absent until it had a pod.
	// +optional
	Cost *PoolCost `json:"cost,omitempty"`

	// Tracing is what the engines were told; absent while they were told nothing.
	// +optional
	Tracing *TracingStatus `json:"tracing,omitempty"`

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
