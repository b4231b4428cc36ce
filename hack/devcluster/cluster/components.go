package cluster

import (
	"os"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
	"github.com/sluice-dev/sluice/hack/devcluster/node"
)

// Names of the cluster's programs, which are those of their log files too.
const (
	componentEtcd              = "etcd"
	componentAPIServer         = "kube-apiserver"
	componentControllerManager = "kube-controller-manager"
	componentScheduler         = "kube-scheduler"
	componentContainerd        = "containerd"
	componentKubelet           = "kubelet"
	componentProxy             = "kube-proxy"
	componentDNS               = "coredns"
)

// components are the names of all programs in the order in which they are stopped: first those that would start
// pods again, last what the others need.
func components() []string {
	return []string{
		componentScheduler, componentControllerManager, componentKubelet, componentProxy, componentDNS,
		componentContainerd, componentAPIServer, componentEtcd,
	}
}

// serverComponents returns the API server and its store, in the order of their start. Like all programs that log
// in somewhere they are restarted when credentials change.
func serverComponents(plane controlplane.Config, programs map[string]string) []component {
	credentials := []string{plane.CertPath(controlplane.FileGeneration)}
	return []component{
		{name: componentEtcd, path: programs["etcd"], args: plane.EtcdArgs()},
		{name: componentAPIServer, path: programs["kube-apiserver"], args: plane.APIServerArgs(), inputs: credentials},
	}
}

// controllerComponents returns the rest of the control plane. These programs give up when the API server takes
// long to know their rights, so they are started after it is ready.
func controllerComponents(plane controlplane.Config, programs map[string]string) []component {
	credentials := []string{plane.CertPath(controlplane.FileGeneration)}
	return []component{
		{name: componentControllerManager, path: programs["kube-controller-manager"], args: plane.ControllerManagerArgs(), inputs: credentials},
		{name: componentScheduler, path: programs["kube-scheduler"], args: plane.SchedulerArgs(), inputs: credentials},
	}
}

// runtimeComponent returns the container runtime.
func runtimeComponent(machine node.Config, programs map[string]string) component {
	return component{
		name: componentContainerd, path: programs["containerd"], args: machine.ContainerdArgs(), inputs: []string{machine.ContainerdFile()},
	}
}

// nodeComponents returns the programs of the node but containerd, which must run before them.
func nodeComponents(plane controlplane.Config, machine node.Config, programs map[string]string) []component {
	generation := plane.CertPath(controlplane.FileGeneration)
	return []component{
		{name: componentKubelet, path: programs["kubelet"], args: machine.KubeletArgs(), inputs: []string{generation, machine.KubeletFile()}},
		{name: componentProxy, path: programs["kube-proxy"], args: machine.ProxyArgs(), inputs: []string{generation, machine.ProxyFile()}},
		{name: componentDNS, path: programs["coredns"], args: machine.DNSArgs(), inputs: []string{generation, machine.DNSFile()}},
	}
}

// mayLowerOOMScore reports whether this process may make others less likely to be killed when memory is short,
// which containerd wants to do for sandboxes.
func mayLowerOOMScore() (may bool) {
	const capSysResource = 24
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for _, line := range strings.Split(string(status), "\n") {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && mask&(1<<capSysResource) != 0
		}
	}
	return false
}
