package v1alpha1

// RolloutSpec says whether new revisions come to the pools.
type RolloutSpec struct {
	// Paused holds roll-outs. Changes of model, engine and the shapes of pools wait until it is false again; a roll-out that is
	// under way stops after the replica that it is replacing. What has to be made meanwhile, for more demand or in place of a
	// replica that failed, is of the pool's newest revision. Replicas and autoscaling are not held.
	// +optional
	Paused bool `json:"paused,omitempty"`
}
