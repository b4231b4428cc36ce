package controlplane

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sluice-dev/sluice/hack/devcluster/pki"
)

// Users that get a kubeconfig.
const (
	// UserAdmin may do everything.
	UserAdmin = "admin"
	// UserControllerManager is kube-controller-manager.
	UserControllerManager = "kube-controller-manager"
	// UserScheduler is kube-scheduler.
	UserScheduler = "kube-scheduler"
	// UserProxy is kube-proxy.
	UserProxy = "kube-proxy"
	// UserDNS is the cluster's name server.
	UserDNS = "coredns"
)

// Files in the folder of certificates that other packages need by name.
const (
	// FileCA is the certificate of the cluster's authority.
	FileCA = "ca.crt"
	// FileGeneration changes whenever credentials do.
	FileGeneration = "generation"
)

// CertPath is the path of a file in the folder of certificates.
func (c Config) CertPath(file string) string { return c.Path("pki", file) }

// Node is what a kubelet needs credentials for.
type Node struct {
	Name    string
	Address net.IP
}

// user is the identity behind a kubeconfig.
type user struct {
	name    string
	subject pki.Subject
}

// EnsureCredentials writes the certificates, keys and kubeconfigs of the control plane and of its nodes, unless
// all of it was written before for the same addresses. FileGeneration, which names them, is written last, so that
// credentials that were written by half are made anew. The authorities and the key that signs tokens stay once
// they are there: what pods were given remains good when the host's address changes.
func (c Config) EnsureCredentials(now time.Time, nodes ...Node) error {
	want := c.fingerprint(nodes)
	if have, err := os.ReadFile(c.CertPath(FileGeneration)); err == nil && string(have) == want {
		return nil
	}
	for _, folder := range []string{c.Path("pki"), c.Path("kubeconfig")} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("make a folder for credentials: %w", err)
		}
	}
	if err := c.writeCredentials(now, nodes); err != nil {
		return fmt.Errorf("write credentials in %s: %w", c.Dir, err)
	}
	return writeFile(c.CertPath(FileGeneration), []byte(want))
}

// fingerprint names everything that the certificates depend on.
func (c Config) fingerprint(nodes []Node) string {
	text := fmt.Sprintf("%s %s\n", c.URL(), c.ServiceRange.String())
	for _, user := range users(nodes) {
		text += fmt.Sprintf("user %s %s %s\n", user.name, user.subject.CommonName, user.subject.Organizations)
	}
	for _, node := range nodes {
		text += fmt.Sprintf("node %s %s\n", node.Name, node.Address)
	}
	return text
}

func (c Config) writeCredentials(now time.Time, nodes []Node) error {
	authority, err := c.ensureAuthority("ca", now)
	if err != nil {
		return err
	}
	// The front proxy has its own authority: a client certificate of the cluster must not be able to speak for
	// other users.
	front, err := c.ensureAuthority("front-proxy-ca", now)
	if err != nil {
		return err
	}
	if err := c.ensureSigningKey(); err != nil {
		return err
	}
	kubernetes, err := c.ServiceAddress(1)
	if err != nil {
		return err
	}
	server, err := authority.Issue(pki.Subject{
		CommonName: "kube-apiserver",
		DNSNames:   []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + Domain},
		IPs:        []net.IP{c.Address, kubernetes, net.IPv4(127, 0, 0, 1)},
	}, now)
	if err != nil {
		return err
	}
	kubeletClient, err := authority.Issue(pki.Subject{CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}, Client: true}, now)
	if err != nil {
		return err
	}
	frontClient, err := front.Issue(pki.Subject{CommonName: frontProxyUser, Client: true}, now)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	addPair := func(name string, pair pki.Pair) {
		files[name+".crt"], files[name+".key"] = pair.CertPEM, pair.KeyPEM
	}
	addPair("apiserver", server)
	addPair("apiserver-kubelet-client", kubeletClient)
	addPair("front-proxy-client", frontClient)

	for _, node := range nodes {
		kubelet, err := authority.Issue(pki.Subject{CommonName: node.Name, DNSNames: []string{node.Name}, IPs: []net.IP{node.Address}}, now)
		if err != nil {
			return err
		}
		addPair("kubelet-"+node.Name, kubelet)
	}
	for name, data := range files {
		if err := writeFile(c.CertPath(name), data); err != nil {
			return err
		}
	}
	for _, user := range users(nodes) {
		pair, err := authority.Issue(user.subject, now)
		if err != nil {
			return err
		}
		data, err := c.kubeconfig(user.name, authority.CertPEM, pair)
		if err != nil {
			return err
		}
		if err := writeFile(c.KubeconfigPath(user.name), data); err != nil {
			return err
		}
	}
	return nil
}

// users returns everyone who gets a kubeconfig.
func users(nodes []Node) []user {
	all := []user{
		{UserAdmin, pki.Subject{CommonName: "sluice-admin", Organizations: []string{"system:masters"}, Client: true}},
		{UserControllerManager, pki.Subject{CommonName: "system:kube-controller-manager", Client: true}},
		{UserScheduler, pki.Subject{CommonName: "system:kube-scheduler", Client: true}},
		{UserProxy, pki.Subject{CommonName: "system:kube-proxy", Client: true}},
		{UserDNS, pki.Subject{CommonName: "system:coredns", Client: true}},
	}
	for _, node := range nodes {
		all = append(all, user{"kubelet-" + node.Name, pki.Subject{
			CommonName: "system:node:" + node.Name, Organizations: []string{"system:nodes"}, Client: true,
		}})
	}
	return all
}

// ensureAuthority reads the authority of the given file name, or makes it.
func (c Config) ensureAuthority(file string, now time.Time) (*pki.Authority, error) {
	certPath, keyPath := c.CertPath(file+".crt"), c.CertPath(file+".key")
	cert, certErr := os.ReadFile(certPath)
	key, keyErr := os.ReadFile(keyPath)
	if certErr == nil && keyErr == nil {
		return pki.ParseAuthority(pki.Pair{CertPEM: cert, KeyPEM: key})
	}
	authority, err := pki.NewAuthority("sluice-devcluster-"+file, now)
	if err != nil {
		return nil, err
	}
	return authority, errors.Join(writeFile(certPath, authority.CertPEM), writeFile(keyPath, authority.KeyPEM))
}

// ensureSigningKey makes the key pair that signs service accounts' tokens unless it is there.
func (c Config) ensureSigningKey() error {
	publicPath := c.CertPath("service-account.pub")
	if _, err := os.Stat(publicPath); err == nil {
		return nil
	}
	private, public, err := pki.NewSigningKey()
	if err != nil {
		return err
	}
	// The public key is written last: it stands for both.
	if err := writeFile(c.CertPath("service-account.key"), private); err != nil {
		return err
	}
	return writeFile(publicPath, public)
}

// kubeconfig renders a self-contained kubeconfig.
func (c Config) kubeconfig(user string, authority []byte, pair pki.Pair) ([]byte, error) {
	const cluster = "sluice-devcluster"
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{cluster: {Server: c.URL(), CertificateAuthorityData: authority}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{cluster: {Cluster: cluster, AuthInfo: user}},
		CurrentContext: cluster,
	})
	if err != nil {
		return nil, fmt.Errorf("render the kubeconfig of %s: %w", user, err)
	}
	return data, nil
}

// writeFile writes a file that only its owner may read. It appears whole or not at all.
func writeFile(path string, data []byte) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}
