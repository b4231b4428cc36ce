// Package footprint finds and removes what a cluster leaves on its host: processes, mounts, network links,
// iptables chains, cgroups, kernel settings and files outside its own folder.
//
// What is the cluster's is decided by marks that only it has — its folder, its cgroup, its pods' addresses — and,
// for iptables chains and shared folders, by what was there before it came (Before). Nothing is found by a
// program's name.
//
// It must not know how the cluster is started. Caller: hack/devcluster/cluster.
package footprint
