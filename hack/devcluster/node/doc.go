// Package node renders what one node of the dev cluster needs: the configuration of containerd, of the CNI
// plugins, of the kubelet, of kube-proxy and of the name server, each in a file of its name, and prepares the host for them: Debian
// packages (packages.go) and cgroups (cgroup.go).
//
// It must not start or end processes of the cluster. Callers: hack/devcluster/cluster and, for the cgroup
// hierarchies, hack/devcluster/footprint.
package node
