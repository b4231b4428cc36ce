// Package controlplane renders what the programs of a Kubernetes control plane need: the certificates and
// kubeconfigs in one folder (credentials.go) and the command lines of etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler (etcd.go, apiserver.go, controllers.go), and asks a started API
// server whether it is ready (ready.go).
//
// It must not start or end processes. Callers: hack/devcluster/apiserver, which runs the first two for tests,
// and hack/devcluster/cluster, which runs them all.
package controlplane
