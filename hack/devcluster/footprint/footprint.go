package footprint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Owner holds the marks of one cluster.
type Owner struct {
	// Dir is the cluster's folder. Its programs and its mounts have it in their arguments and paths.
	Dir string
	// CgroupRoot is the cgroup of all its pods, relative to each hierarchy, with a leading slash.
	CgroupRoot string
	// Pods is the network of its pods.
	Pods net.IPNet
	// Services is the network of its Services.
	Services net.IPNet
	// Network is the name of its pod network, the first part of the names of files that CNI plugins keep.
	Network string
}

// Before is what the host had before the cluster came; it is kept with the cluster's state.
type Before struct {
	// Chains are the iptables chains as "family/table/chain", sorted.
	Chains []string `json:"chains"`
	// Sysctls are the kernel settings that the cluster's programs change, by path below /proc/sys.
	Sysctls map[string]string `json:"sysctls"`
	// Paths are those shared folders (see sharedPaths) that existed.
	Paths []string `json:"paths"`
}

// linkWait is how long the kernel may take to remove the network links of namespaces that are gone.
const linkWait = 10 * time.Second

// Observe looks at the host before a cluster comes.
func Observe(ctx context.Context) (Before, error) {
	chains, err := listChains(ctx)
	if err != nil {
		return Before{}, err
	}
	return Before{Chains: chains, Sysctls: readSysctls(), Paths: existing(sharedPaths())}, nil
}

// AssumeNone describes a host of which it is not known what it had before. Every chain of Kubernetes is then the
// cluster's, shared folders are not, and kernel settings stay as they are.
func AssumeNone() Before { return Before{Paths: sharedPaths()} }

// ForeignNode returns an error if another Kubernetes node already has its rules on the host, since the two
// would undo each other's.
func (b Before) ForeignNode() error {
	for _, chain := range b.Chains {
		if strings.HasSuffix(chain, "/nat/KUBE-SERVICES") {
			return errors.New("iptables holds the rules of another Kubernetes node on this host (chain KUBE-SERVICES): stop that node, or remove what it left with down --force")
		}
	}
	return nil
}

// Scan lists what is left of a cluster, one readable line each; none means that no trace is left.
func Scan(ctx context.Context, owner Owner, before Before) ([]string, error) {
	var found []string
	processes, err := ownedProcesses(owner)
	if err != nil {
		return nil, err
	}
	for _, process := range processes {
		found = append(found, fmt.Sprintf("process %d: %s", process.PID, process.command))
	}
	mounts, err := ownedMounts(owner.Dir)
	if err != nil {
		return nil, err
	}
	for _, mount := range mounts {
		found = append(found, "mount "+mount)
	}
	links, err := ownedLinks(owner.Pods)
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		found = append(found, "network link "+link)
	}
	routes, err := ownedRoutes(owner.Services)
	if err != nil {
		return nil, err
	}
	for _, route := range routes {
		found = append(found, "route "+route)
	}
	chains, err := listChains(ctx)
	if err != nil {
		return nil, err
	}
	for _, chain := range addedChains(before.Chains, chains) {
		found = append(found, "iptables chain "+chain)
	}
	for _, group := range ownedCgroups(owner.CgroupRoot) {
		found = append(found, "cgroup "+group)
	}
	for path, value := range changedSysctls(before.Sysctls, readSysctls()) {
		found = append(found, fmt.Sprintf("kernel setting %s is %s, was %s", path, value, before.Sysctls[path]))
	}
	for _, path := range ownedPaths(owner, before) {
		found = append(found, "path "+path)
	}
	return found, nil
}

// EndPods kills the processes of all pods and then whatever else belongs to the cluster, such as the shims that
// outlive their container runtime. The kubelet and the container runtime must have been stopped.
func EndPods(ctx context.Context, owner Owner) error {
	// A program may start another one while it is being killed, so repeat until none is left.
	for round := 0; round < 10; round++ {
		processes, err := ownedProcesses(owner)
		if err != nil || len(processes) == 0 {
			return err
		}
		var errs []error
		for _, process := range processes {
			errs = append(errs, process.Kill(ctx))
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("end the cluster's processes: %w", err)
		}
	}
	return errors.New("end the cluster's processes: new ones keep appearing; run status --leaks to see them")
}

// Remove removes every trace but the processes (EndPods) and the folder itself. It goes on after a failure and
// returns all of them.
func Remove(ctx context.Context, owner Owner, before Before) error {
	return errors.Join(
		unmountAll(owner.Dir),
		removeLinks(ctx, owner.Pods),
		removeRoutes(ctx, owner.Services),
		removeChains(ctx, before.Chains),
		removeCgroups(ctx, owner.CgroupRoot),
		restoreSysctls(before.Sysctls),
		removePaths(owner, before),
	)
}
