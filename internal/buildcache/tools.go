package buildcache

import "fmt"

// Tool is one program that the cache can build.
type Tool struct {
	// Name is the executable's name, unique in the table.
	Name string
	// Dir is the nested module that pins the tool, relative to the repository root, with slashes.
	Dir string
	// Package is the main package's import path.
	Package string
	// Module is the module whose required version names the build.
	Module string
	// Group names the folder in the cache: tools built from one module share it.
	Group string
	// ldflags gives further linker flags for a version; nil means none.
	ldflags func(version string) string
}

// tools is the table of everything that can be built, in the order in which "build everything" builds it:
// what the shortest tasks wait for comes first.
func tools() []Tool {
	const (
		kubernetes = "k8s.io/kubernetes"
		containerd = "github.com/containerd/containerd/v2"

		prometheusOperator = "github.com/prometheus-operator/prometheus-operator"
	)
	table := []Tool{
		{Name: "protoc-gen-go", Dir: "hack/tools/protobuf", Package: "google.golang.org/protobuf/cmd/protoc-gen-go", Module: "google.golang.org/protobuf", Group: "protoc-gen-go"},
		{Name: "protoc-gen-go-grpc", Dir: "hack/tools/protobuf", Package: "google.golang.org/grpc/cmd/protoc-gen-go-grpc", Module: "google.golang.org/grpc/cmd/protoc-gen-go-grpc", Group: "protoc-gen-go-grpc"},
		{Name: "controller-gen", Dir: "hack/tools/controller-gen", Package: "sigs.k8s.io/controller-tools/cmd/controller-gen", Module: "sigs.k8s.io/controller-tools", Group: "controller-tools"},
		{Name: "buf", Dir: "hack/tools/buf", Package: "github.com/bufbuild/buf/cmd/buf", Module: "github.com/bufbuild/buf", Group: "buf"},
		{Name: "etcd", Dir: "hack/etcd", Package: "go.etcd.io/etcd/server/v3", Module: "go.etcd.io/etcd/server/v3", Group: "etcd"},
	}
	for _, name := range []string{"kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		table = append(table, Tool{
			Name: name, Dir: "hack/k8s", Package: kubernetes + "/cmd/" + name, Module: kubernetes, Group: "kubernetes",
			ldflags: kubernetesVersionFlags,
		})
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		table = append(table, Tool{Name: name, Dir: "hack/containerd", Package: containerd + "/cmd/" + name, Module: containerd, Group: "containerd"})
	}
	return append(table,
		// The list of plugins in its main package is part of no version: remove the executable after a change.
		Tool{Name: "coredns", Dir: "hack/coredns", Package: ".", Module: "github.com/coredns/coredns", Group: "coredns"},
		Tool{Name: "helm", Dir: "hack/tools/helm", Package: "helm.sh/helm/v4/cmd/helm", Module: "helm.sh/helm/v4", Group: "helm"},
		Tool{Name: "prometheus", Dir: "hack/prometheus", Package: "github.com/prometheus/prometheus/cmd/prometheus", Module: "github.com/prometheus/prometheus", Group: "prometheus"},
		Tool{Name: "prometheus-operator", Dir: "hack/prometheus-operator", Package: prometheusOperator + "/cmd/operator", Module: prometheusOperator, Group: "prometheus-operator"},
		Tool{Name: "prometheus-config-reloader", Dir: "hack/prometheus-operator", Package: prometheusOperator + "/cmd/prometheus-config-reloader", Module: prometheusOperator, Group: "prometheus-operator"},
		Tool{Name: "prometheus-adapter", Dir: "hack/prometheus-adapter", Package: "sigs.k8s.io/prometheus-adapter/cmd/adapter", Module: "sigs.k8s.io/prometheus-adapter", Group: "prometheus-adapter"},
		Tool{Name: "golangci-lint", Dir: "hack/tools/golangci-lint", Package: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint", Module: "github.com/golangci/golangci-lint/v2", Group: "golangci-lint"},
	)
}

// Tools returns the names of all tools in build order.
func Tools() []string {
	var names []string
	for _, tool := range tools() {
		names = append(names, tool.Name)
	}
	return names
}

// Lookup returns the tool with the given name.
func Lookup(name string) (Tool, error) {
	for _, tool := range tools() {
		if tool.Name == name {
			return tool, nil
		}
	}
	return Tool{}, fmt.Errorf("no tool is called %q: choose one of %v", name, Tools())
}

// kubernetesVersionFlags stamps the version into a Kubernetes program. Without it the programs call themselves
// v0.0.0 and refuse to compare their versions with each other's.
func kubernetesVersionFlags(version string) string {
	const pkg = "k8s.io/component-base/version"
	major, minor := majorMinor(version)
	return fmt.Sprintf("-X %s.gitVersion=%s -X %s.gitMajor=%s -X %s.gitMinor=%s", pkg, version, pkg, major, pkg, minor)
}
