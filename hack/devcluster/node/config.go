package node

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
)

// Network is the name of the pod network.
const Network = "sluice-devcluster"

// Config describes one node.
type Config struct {
	// Name is the node's name in the cluster.
	Name string
	// Dir is the cluster's folder, in which the node keeps everything.
	Dir string
	// Address is the node's address.
	Address net.IP
	// Pods is the network of the node's pods.
	Pods net.IPNet
	// DNS is the Service address at which pods ask the cluster's name server.
	DNS net.IP
	// ForwardDNS is a file in the form of resolv.conf with the name servers for names outside the cluster; empty
	// means that such names do not exist.
	ForwardDNS string
	// CgroupRoot is the cgroup of the node's pods, relative to each hierarchy, with a leading slash.
	CgroupRoot string
	// SandboxImage is the image of pods' sandboxes, which must have been imported.
	SandboxImage string
	// RestrictOOMScore says that this host does not let root make a process less likely to be killed when
	// memory is short, as where CAP_SYS_RESOURCE is missing.
	RestrictOOMScore bool
	// RuncPath and CNIBin are the OCI runtime and the folder of the CNI plugins.
	RuncPath, CNIBin string
	// CAPath, KubeletCert and KubeletKey are the cluster's authority and the kubelet's serving certificate.
	CAPath, KubeletCert, KubeletKey string
	// KubeletKubeconfig, ProxyKubeconfig and DNSKubeconfig are what the programs log in with.
	KubeletKubeconfig, ProxyKubeconfig, DNSKubeconfig string
}

// path returns a path in the cluster's folder.
func (c Config) path(elements ...string) string {
	return filepath.Join(append([]string{c.Dir}, elements...)...)
}

// ContainerdSocket is the socket of containerd.
func (c Config) ContainerdSocket() string { return c.path("containerd", "containerd.sock") }

// Validate reports a folder that no node can live in.
func (c Config) Validate() error {
	// The kernel's limit for a Unix socket's path, without its final zero.
	const limit = 107
	longest := filepath.Join(c.shimSockets(), strings.Repeat("x", 64))
	if excess := len(longest) - limit; excess > 0 {
		return fmt.Errorf("folder %s is %d characters too long for the sockets in it: choose a shorter name or folder", c.Dir, excess)
	}
	return nil
}

// Files returns the content of every configuration file by its path in the cluster's folder.
func (c Config) Files() (map[string][]byte, error) {
	files := map[string][]byte{fileContainerd: c.containerdConfig(), fileDNS: c.dnsConfig()}
	for file, render := range map[string]func() ([]byte, error){
		fileCNI:     c.cniConfig,
		fileKubelet: c.kubeletConfig,
		fileProxy:   c.proxyConfig,
	} {
		data, err := render()
		if err != nil {
			return nil, err
		}
		files[file] = data
	}
	return files, nil
}

// Configuration files, relative to the cluster's folder.
const (
	fileContainerd = "config/containerd.toml"
	fileCNI        = "config/cni/10-sluice.conflist"
	fileKubelet    = "config/kubelet.json"
	fileProxy      = "config/kube-proxy.json"
	fileDNS        = "config/Corefile"
)

// ContainerdFile is the path of containerd's configuration.
func (c Config) ContainerdFile() string { return c.path(fileContainerd) }

// KubeletFile is the path of the kubelet's configuration.
func (c Config) KubeletFile() string { return c.path(fileKubelet) }

// ProxyFile is the path of kube-proxy's configuration.
func (c Config) ProxyFile() string { return c.path(fileProxy) }

// DNSFile is the path of the name server's configuration.
func (c Config) DNSFile() string { return c.path(fileDNS) }
