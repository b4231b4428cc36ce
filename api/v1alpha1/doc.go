// Package v1alpha1 holds the resources of inference.sluice.dev: InferenceService, which a tenant writes, and
// EnginePool, one per pool, which the operator writes. It owns the types, their defaults and CEL rules, the
// conditions and every label key. It knows no client and no controller.
//
// +kubebuilder:object:generate=true
// +groupName=inference.sluice.dev
package v1alpha1
