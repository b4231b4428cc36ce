package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
	"github.com/sluice-dev/sluice/hack/devcluster/footprint"
	"github.com/sluice-dev/sluice/hack/devcluster/node"
	"github.com/sluice-dev/sluice/hack/images/image"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

// readyTimeout bounds the wait for each part of the cluster. On an idle machine all of them together take less
// than half a minute.
const readyTimeout = 3 * time.Minute

// errControlPlane says that the API server did not come up.
var errControlPlane = errors.New("the control plane does not come up")

// Up brings the cluster up: it starts what does not run, restarts what runs with another configuration, and
// does almost nothing if all is well. A cluster whose control plane does not come up again, as when a power cut has
// spoilt its data, is removed and made anew. The cluster outlives this process.
func (c *Cluster) Up(ctx context.Context) error {
	if err := requireRoot("up"); err != nil {
		return err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	others, err := c.others()
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("this host has one cluster at a time and %q exists: remove it with down --name %s", others[0], others[0])
	}
	programs, err := c.buildPrograms(ctx)
	if err != nil {
		return err
	}
	host, err := node.EnsureHostPrograms(ctx, c.log)
	if err != nil {
		return err
	}
	existed, err := c.start(ctx, programs, host)
	if !existed || ctx.Err() != nil || !errors.Is(err, errControlPlane) {
		return err
	}
	reason, _, _ := strings.Cut(err.Error(), "\n")
	c.logf("cluster %s: %s\nmaking it anew", c.name, reason)
	if err := c.down(ctx, false); err != nil {
		return err
	}
	_, err = c.start(ctx, programs, host)
	return err
}

// buildPrograms returns the paths of the cluster's programs, built if the cache lacks them.
func (c *Cluster) buildPrograms(ctx context.Context) (map[string]string, error) {
	cache, err := buildcache.Open(c.log)
	if err != nil {
		return nil, err
	}
	return cache.Paths(ctx, "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
		"kubelet", "kube-proxy", "coredns", "containerd", "containerd-shim-runc-v2", "ctr")
}

// start makes or repairs the cluster. It reports whether the cluster existed before, since then a failure may be
// due to what was left of it.
func (c *Cluster) start(ctx context.Context, programs map[string]string, host node.HostPrograms) (existed bool, err error) {
	begin := time.Now()
	// 1. Remember the host as it is, or recall how it was.
	s, existed, err := c.prepareState(ctx)
	if err != nil {
		return existed, err
	}
	plane := controlplane.Config{Dir: c.dir, Address: s.Address, Port: s.Port, ServiceRange: serviceRange, ServiceAccounts: true}
	machine, err := c.node(plane, host)
	if err != nil {
		return existed, err
	}
	if err := machine.Validate(); err != nil {
		return existed, err
	}
	// 2. Credentials and configuration.
	if err := plane.EnsureCredentials(time.Now(), controlplane.Node{Name: machine.Name, Address: machine.Address}); err != nil {
		return existed, err
	}
	if err := c.writeFiles(machine); err != nil {
		return existed, err
	}
	if err := node.MakeCgroup(c.cgroupRoot()); err != nil {
		return existed, err
	}
	if err := node.EnsureServiceRoute(ctx, machine.Address, serviceRange); err != nil {
		return existed, err
	}
	// 3. API server.
	servers := serverComponents(plane, programs)
	serversStarted, err := c.startAll(ctx, servers)
	if err != nil {
		return existed, err
	}
	if err := c.waitServer(ctx, plane, servers); err != nil {
		return existed, fmt.Errorf("%w: %w", errControlPlane, err)
	}
	if err := c.ensureDNSService(ctx, plane, machine); err != nil {
		return existed, err
	}
	// 4. Controllers, and the container runtime with the sandbox image.
	controllers := append(controllerComponents(plane, programs), runtimeComponent(machine, programs))
	controllersStarted, err := c.startAll(ctx, controllers)
	if err != nil {
		return existed, err
	}
	if err := c.ensureSandboxImage(ctx, programs["ctr"], machine, controllers); err != nil {
		return existed, err
	}
	// 5. The node.
	nodePrograms := nodeComponents(plane, machine, programs)
	nodeStarted, err := c.startAll(ctx, nodePrograms)
	if err != nil {
		return existed, err
	}
	since := time.Time{}
	if nodeStarted > 0 {
		since = begin
	}
	if err := c.waitNode(ctx, plane, since, slices.Concat(servers, controllers, nodePrograms)); err != nil {
		return existed, err
	}
	count := serversStarted + controllersStarted + nodeStarted
	if count == 0 {
		c.logf("cluster %s is up", c.name)
		return existed, nil
	}
	c.logf("cluster %s is up: %d programs started in %s", c.name, count, time.Since(begin).Round(100*time.Millisecond))
	return existed, nil
}

// prepareState loads the state or, for a new cluster, observes the host and chooses address and port. The state
// is written before anything is started, so that down can always undo what a failed up has done.
func (c *Cluster) prepareState(ctx context.Context) (s state, existed bool, err error) {
	s, existed, err = c.loadState()
	if err != nil {
		return state{}, existed, err
	}
	boot, err := bootID()
	if err != nil {
		return state{}, existed, err
	}
	address, err := hostAddress()
	if err != nil {
		return state{}, existed, err
	}
	if !existed {
		if s.Before, err = footprint.Observe(ctx); err != nil {
			return state{}, false, err
		}
		if err := s.Before.ForeignNode(); err != nil {
			return state{}, false, err
		}
		if s.Port, err = freePort(address); err != nil {
			return state{}, false, err
		}
		if err := os.MkdirAll(c.dir, 0o711); err != nil {
			return state{}, false, fmt.Errorf("make the cluster's folder: %w", err)
		}
	}
	if existed && s.BootID != boot {
		// What containers and namespaces a container runtime had is gone with the last boot.
		if err := os.RemoveAll(c.path("containerd", "state")); err != nil {
			return state{}, existed, fmt.Errorf("forget the containers of the last boot: %w", err)
		}
	}
	s.Address, s.BootID = address, boot
	return s, existed, c.saveState(s)
}

// node describes the cluster's only node.
func (c *Cluster) node(plane controlplane.Config, host node.HostPrograms) (node.Config, error) {
	name := c.nodeName()
	dns, err := plane.ServiceAddress(dnsServiceNumber)
	if err != nil {
		return node.Config{}, err
	}
	return node.Config{
		Name:              name,
		Dir:               c.dir,
		Address:           plane.Address,
		Pods:              podRange,
		CgroupRoot:        c.cgroupRoot(),
		SandboxImage:      image.Pause().Reference(),
		RestrictOOMScore:  !mayLowerOOMScore(),
		RuncPath:          host.Runc,
		CNIBin:            host.CNIBin,
		CAPath:            plane.CertPath(controlplane.FileCA),
		KubeletCert:       plane.CertPath("kubelet-" + name + ".crt"),
		KubeletKey:        plane.CertPath("kubelet-" + name + ".key"),
		KubeletKubeconfig: plane.KubeconfigPath("kubelet-" + name),
		ProxyKubeconfig:   plane.KubeconfigPath(controlplane.UserProxy),
		DNSKubeconfig:     plane.KubeconfigPath(controlplane.UserDNS),
		DNS:               dns,
		ForwardDNS:        node.HostResolver(),
	}, nil
}

// writeFiles writes the node's configuration and makes the folders that its programs expect.
func (c *Cluster) writeFiles(machine node.Config) error {
	files, err := machine.Files()
	if err != nil {
		return err
	}
	for file, data := range files {
		if err := replaceFile(c.path(filepath.FromSlash(file)), data); err != nil {
			return fmt.Errorf("write the node's configuration: %w", err)
		}
	}
	for _, folder := range []string{c.path("containerd"), c.path("kubelet")} {
		if err := os.MkdirAll(folder, 0o711); err != nil {
			return fmt.Errorf("make the node's folders: %w", err)
		}
	}
	return nil
}

// startAll starts those components that do not run as described and returns how many that were.
func (c *Cluster) startAll(ctx context.Context, components []component) (count int, err error) {
	for _, component := range components {
		started, err := c.ensure(ctx, component)
		if err != nil {
			return count, err
		}
		if started {
			c.logf("started %s", component.name)
			count++
		}
	}
	return count, nil
}

// requireRoot says in one line why a command cannot work here.
func requireRoot(command string) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%s needs Linux: containers of the cluster run on this host", command)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s needs root: it runs containers and changes this host's network; without root, set KUBECONFIG to use a cluster that you have", command)
	}
	return nil
}

// hostAddress returns the address from which this host reaches others, or any address of it that others reach.
func hostAddress() (net.IP, error) {
	// No packet is sent: connecting a UDP socket only asks for a route. The address is for documentation only.
	if connection, err := net.Dial("udp4", "198.51.100.1:9"); err == nil {
		address := connection.LocalAddr().(*net.UDPAddr).IP.To4()
		if err := connection.Close(); err != nil {
			return nil, fmt.Errorf("find this host's address: %w", err)
		}
		if address != nil && !address.IsLoopback() {
			return address, nil
		}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("find this host's address: %w", err)
	}
	for _, address := range addresses {
		network, ok := address.(*net.IPNet)
		if ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() && !podRange.Contains(network.IP) {
			return network.IP.To4(), nil
		}
	}
	return nil, errors.New("this host has no IPv4 address but loopback: pods could not reach the API server; add one with ip address add 172.31.255.1/32 dev lo")
}

// freePort returns a TCP port that is free at the address now. It is the API server's from then on.
func freePort(address net.IP) (int, error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: address})
	if err != nil {
		return 0, fmt.Errorf("find a free port at %s: %w", address, err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	return port, listener.Close()
}
