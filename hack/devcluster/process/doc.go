// Package process starts long-lived programs and finds them again.
//
// It owns the identity of a process (identity.go), the ways to start one: detached, so that it outlives the
// program that started it, or tied, so that it never does (start.go), and ending one (stop.go). A process is
// always named by its identity and never by its program's name, so nothing that belongs to others is touched.
//
// It must not know what the programs are. Callers: hack/devcluster/apiserver and hack/devcluster/cluster.
package process
