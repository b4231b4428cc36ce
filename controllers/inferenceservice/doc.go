// Package inferenceservice makes an InferenceService out of EnginePools, a router and monitors.
//
// A reconcile reads (read.go), plans (package plan), applies (apply.go) and, in one deferred place, writes the status
// (status.go).
//
// It owns the EnginePools of a service and their headless Services, the router with its rights, the PD Secret, the call
// of the monitors and the status of InferenceService. It must not know pods: a pool's pods are the enginepool
// controller's. cmd/operator sets it up.
package inferenceservice
