// Package plan turns what is asked for and what exists into what to do. It is pure: it knows no client, context, clock
// or log, and the same input gives the same plan, in the same order, with the same reasons.
//
// It owns the rank set of a replica (ranks.go), the engine pod (pods.go) and its revision (revision.go), the replicas of
// a pool (pool.go), how much of the demand is granted (allocate.go), what a service is made of (service.go) and the
// names of it all (names.go).
//
// The inferenceservice and enginepool controllers call it; they read the state that goes in and apply what comes out.
package plan
