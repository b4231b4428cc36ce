package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
)

func exampleConfig(dir string) Config {
	return Config{
		Dir: dir, Address: net.IPv4(192, 0, 2, 2), Port: 6443,
		ServiceRange: net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)},
	}
}

func TestServiceAddress(t *testing.T) {
	network := func(text string) net.IPNet {
		_, parsed, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		return *parsed
	}
	tests := []struct {
		name, reason string
		services     net.IPNet
		number       byte
		want         string
	}{
		{"first", "the Service kubernetes", network("10.96.0.0/16"), 1, "10.96.0.1"},
		{"tenth", "the name server", network("10.96.0.0/16"), 10, "10.96.0.10"},
		{"too small", "an address outside would never be routed", network("10.96.0.0/30"), 10, ""},
		{"IPv6", "not supported, and said so", network("fd00::/64"), 1, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Config{ServiceRange: test.services}.ServiceAddress(test.number)
			if text := map[bool]string{true: got.String()}[err == nil]; text != test.want {
				t.Errorf("got %q, %v, want %q: %s", text, err, test.want, test.reason)
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	now := time.Now()
	config := exampleConfig(t.TempDir())
	node := Node{Name: "node", Address: net.IPv4(192, 0, 2, 2)}
	if err := config.EnsureCredentials(now, node); err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(config.CertPath(FileCA))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)

	servers := map[string][]string{
		"apiserver":    {"192.0.2.2", "127.0.0.1", "10.96.0.1", "kubernetes.default.svc.cluster.local", "localhost"},
		"kubelet-node": {"192.0.2.2", "node"},
	}
	for file, names := range servers {
		cert := readCert(t, config.CertPath(file+".crt"), config.CertPath(file+".key"))
		for _, name := range names {
			options := x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}
			if _, err := cert.Verify(options); err != nil {
				t.Errorf("%s does not answer to %s: %v", file, name, err)
			}
		}
	}
	users := map[string]string{
		UserAdmin: "sluice-admin [system:masters]", UserControllerManager: "system:kube-controller-manager []",
		UserScheduler: "system:kube-scheduler []", UserProxy: "system:kube-proxy []", UserDNS: "system:coredns []",
		"kubelet-node": "system:node:node [system:nodes]",
	}
	for user, want := range users {
		loaded, err := clientcmd.BuildConfigFromFlags("", config.KubeconfigPath(user))
		if err != nil {
			t.Fatal(err)
		}
		if loaded.Host != "https://192.0.2.2:6443" {
			t.Errorf("kubeconfig of %s leads to %s", user, loaded.Host)
		}
		pair, err := tls.X509KeyPair(loaded.CertData, loaded.KeyData)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		got := cert.Subject.CommonName + " [" + strings.Join(cert.Subject.Organization, " ") + "]"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("user %s (-want +got):\n%s", user, diff)
		}
	}
}

func TestCredentialsAreKept(t *testing.T) {
	now := time.Now()
	config := exampleConfig(t.TempDir())
	moved := config
	moved.Address = net.IPv4(192, 0, 2, 3)
	var seen []map[string]string
	for _, step := range []struct {
		config Config
		nodes  []Node
	}{
		{config, nil},
		{config, nil},
		{moved, nil},
		{moved, []Node{{Name: "node", Address: moved.Address}}},
	} {
		if err := step.config.EnsureCredentials(now, step.nodes...); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		for _, file := range []string{FileCA, FileGeneration, "apiserver.crt", "front-proxy-ca.key", "service-account.key"} {
			data, err := os.ReadFile(config.CertPath(file))
			if err != nil {
				t.Fatal(err)
			}
			files[file] = string(data)
		}
		seen = append(seen, files)
	}
	var got []map[string]bool
	for i := 1; i < len(seen); i++ {
		kept := map[string]bool{}
		for file := range seen[i] {
			kept[file] = seen[i][file] == seen[i-1][file]
		}
		got = append(got, kept)
	}
	all := map[string]bool{FileCA: true, FileGeneration: true, "apiserver.crt": true, "front-proxy-ca.key": true, "service-account.key": true}
	trust := map[string]bool{FileCA: true, FileGeneration: false, "apiserver.crt": false, "front-proxy-ca.key": true, "service-account.key": true}
	if diff := cmp.Diff([]map[string]bool{all, trust, trust}, got); diff != "" {
		t.Errorf("certificates stay while addresses and nodes do; authorities and token keys stay always (-want +got):\n%s", diff)
	}
}

// TestNamedFilesExist checks that every file that a command line names was written.
func TestNamedFilesExist(t *testing.T) {
	config := exampleConfig(t.TempDir())
	if err := config.EnsureCredentials(time.Now()); err != nil {
		t.Fatal(err)
	}
	for program, args := range map[string][]string{
		"kube-apiserver": config.APIServerArgs(), "kube-controller-manager": config.ControllerManagerArgs(), "kube-scheduler": config.SchedulerArgs(),
	} {
		for _, arg := range args {
			flag, value, _ := strings.Cut(arg, "=")
			if !strings.HasPrefix(value, config.Dir) || strings.HasSuffix(flag, "-dir") {
				continue
			}
			if _, err := os.Stat(value); err != nil {
				t.Errorf("%s %s: %v", program, flag, err)
			}
		}
	}
}

func TestServiceAccounts(t *testing.T) {
	const off = "--disable-admission-plugins=ServiceAccount"
	for _, with := range []bool{true, false} {
		config := exampleConfig("/d")
		config.ServiceAccounts = with
		if has := strings.Contains(strings.Join(config.APIServerArgs(), " "), off); has == with {
			t.Errorf("with service accounts %t the admission plugin is off: %t", with, has)
		}
	}
}

func readCert(t *testing.T, certPath, keyPath string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certPath, keyPath)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
