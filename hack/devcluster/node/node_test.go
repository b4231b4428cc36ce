package node

import (
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata")

func exampleConfig() Config {
	return Config{
		Name: "dev-node", Dir: "/d", Address: net.IPv4(192, 0, 2, 2),
		Pods: net.IPNet{IP: net.IPv4(10, 244, 0, 0), Mask: net.CIDRMask(24, 32)},
		DNS:  net.IPv4(10, 96, 0, 10), ForwardDNS: "/etc/resolv.conf",
		CgroupRoot: "/pods-of-dev", SandboxImage: "registry.example/pause:1", RestrictOOMScore: true,
		RuncPath: "/usr/sbin/runc", CNIBin: "/usr/lib/cni",
		CAPath: "/d/pki/ca.crt", KubeletCert: "/d/pki/kubelet.crt", KubeletKey: "/d/pki/kubelet.key",
		KubeletKubeconfig: "/d/kubeconfig/kubelet.yaml", ProxyKubeconfig: "/d/kubeconfig/kube-proxy.yaml",
		DNSKubeconfig: "/d/kubeconfig/coredns.yaml",
	}
}

// TestFiles compares every configuration file with the one in testdata; -update rewrites them.
func TestFiles(t *testing.T) {
	files, err := exampleConfig().Files()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for file, got := range files {
		golden := filepath.Join("testdata", filepath.Base(file))
		seen[golden] = true
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
	kept, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, golden := range kept {
		if !seen[golden] {
			t.Errorf("%s belongs to no configuration file: remove it", golden)
		}
	}
}

// TestEverythingIsInTheFolder checks that no program is told to write outside the cluster's folder.
func TestEverythingIsInTheFolder(t *testing.T) {
	config := exampleConfig()
	files, err := config.Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"/var/lib/containerd", "/run/containerd", "/opt/containerd", "/var/lib/cni", "/var/log/pods", "/etc/cni"} {
		for file, data := range files {
			if strings.Contains(string(data), folder) {
				t.Errorf("%s names %s", file, folder)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name, reason, dir string
		ok                bool
	}{
		{"default", "the default folder with the longest name", "/var/lib/sluice-devcluster/" + strings.Repeat("n", 13), true},
		{"long", "sockets would not open, which no program says plainly", "/" + strings.Repeat("d", 60), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config := exampleConfig()
			config.Dir = test.dir
			if err := config.Validate(); (err == nil) != test.ok {
				t.Errorf("got %v, want ok %t: %s", err, test.ok, test.reason)
			}
		})
	}
}

func TestV1Hierarchies(t *testing.T) {
	const mountinfo = `40 30 0:33 / /sys/fs/cgroup ro - tmpfs tmpfs ro
42 40 0:35 / /sys/fs/cgroup/pids rw shared:3 - cgroup cgroup rw,pids
41 40 0:34 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
43 40 0:36 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
broken
`
	want := []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/pids"}
	if diff := cmp.Diff(want, v1Hierarchies(mountinfo)); diff != "" {
		t.Errorf("only hierarchies of v1 count (-want +got):\n%s", diff)
	}
}

func TestMissing(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "there"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "not-executable"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	in := []string{folder}
	programs, packages := missing([]requirement{
		{"there", in, "a"}, {"absent", in, "b"}, {"not-executable", in, "b"}, {"no-such-program-in-path", nil, "c"},
	})
	want := [][]string{{"absent", "not-executable", "no-such-program-in-path"}, {"b", "c"}}
	if diff := cmp.Diff(want, [][]string{programs, packages}); diff != "" {
		t.Errorf("each package is named once (-want +got):\n%s", diff)
	}
}

func TestNamesServer(t *testing.T) {
	tests := []struct {
		name, reason, text string
		want               bool
	}{
		{"server", "the plain case", "search x\nnameserver 192.0.2.53\n", true},
		{"comment", "a comment names none", "# nameserver 192.0.2.53\n", false},
		{"no address", "an empty entry is none", "nameserver\n", false},
		{"empty", "a host without network", "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := namesServer(test.text); got != test.want {
				t.Errorf("got %t, want %t: %s", got, test.want, test.reason)
			}
		})
	}
}
