// Package enginepool makes the pods of an EnginePool follow its spec, and its HorizontalPodAutoscaler.
//
// A reconcile reads (read.go), plans (package plan), applies (apply.go) and, in one deferred place, writes the status
// (status.go). What the plan wants to change is planned again from live reads before it is applied, so that a cache that
// is late never drains or makes a replica too many.
//
// It owns the pods of a pool, their draining marks, the HorizontalPodAutoscaler and the status of EnginePool. It must
// not know routers or services. cmd/operator sets it up.
package enginepool
