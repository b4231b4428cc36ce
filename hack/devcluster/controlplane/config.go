package controlplane

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
)

// Domain is the cluster's DNS domain.
const Domain = "cluster.local"

// Config describes one control plane.
type Config struct {
	// Dir holds everything that is written: credentials, etcd's data and its socket. Programs run in it.
	Dir string
	// Address is where the API server listens and what it tells pods to connect to.
	Address net.IP
	// Port is the API server's.
	Port int
	// ServiceRange is the network of Service addresses.
	ServiceRange net.IPNet
	// ServiceAccounts makes each pod get a service account and its token. It needs kube-controller-manager.
	ServiceAccounts bool
}

// URL is the API server's address.
func (c Config) URL() string {
	return (&url.URL{Scheme: "https", Host: net.JoinHostPort(c.Address.String(), strconv.Itoa(c.Port))}).String()
}

// Path returns the path of a file in Dir.
func (c Config) Path(elements ...string) string {
	return filepath.Join(append([]string{c.Dir}, elements...)...)
}

// KubeconfigPath is the path of the kubeconfig of a user of Credentials.
func (c Config) KubeconfigPath(user string) string { return c.Path("kubeconfig", user+".yaml") }

// ServiceAddress returns the n-th address of the Service network; the first one is that of the Service
// "kubernetes".
func (c Config) ServiceAddress(n byte) (net.IP, error) {
	base := c.ServiceRange.IP.To4()
	if base == nil {
		return nil, fmt.Errorf("service range %s is not IPv4", c.ServiceRange.String())
	}
	address := net.IPv4(base[0], base[1], base[2], base[3]+n).To4()
	if !c.ServiceRange.Contains(address) {
		return nil, fmt.Errorf("service range %s has no address number %d", c.ServiceRange.String(), n)
	}
	return address, nil
}
