// Package cluster brings a real one-node Kubernetes up on this host, and down again without a trace.
//
// Reading order: cluster.go (what a cluster is), up.go (start or repair), component.go (one program: kept while
// its command line and configuration stay the same, else restarted), state.go (what is remembered), down.go,
// status.go, images.go, external.go (a cluster that KUBECONFIG names).
//
// A host has one such cluster at a time, since the iptables rules of two would undo each other. Everything that
// lasts is in one folder; what must lie outside is found and removed by hack/devcluster/footprint.
//
// It must not know Sluice's own programs. Callers: hack/devcluster (the command), the demo and end-to-end tests.
package cluster
