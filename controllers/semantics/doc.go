// Package semantics is the registry of what the engines' numbers mean to somebody who adds them up: the operator's scaling,
// its recording rules, its dashboards and its proofs read it, so that one number means the same everywhere.
//
// It owns one row for each family of /metrics and each field of /v1/loads (Numbers): who has it, its unit, which values are
// never numbers, what it reads when nothing runs, and how it is folded over the ranks of a replica, over replicas and over
// priorities. On top of the rows it owns the signals that pools are scaled on (Signals), and the only code that makes a
// number for an autoscaler out of a sample. A test compares the rows with the engine's own table of families.
//
// It is data and pure functions: it must not know clients, clocks, pods or who asks. Package observe keeps the samples,
// package autoscaling serves the signals, package monitoring writes rules from the rows.
package semantics
