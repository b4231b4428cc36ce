package footprint

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMentions(t *testing.T) {
	const dir = "/var/lib/sluice-devcluster/dev"
	tests := []struct {
		name, reason, cmdline string
		want                  bool
	}{
		{"flag", "the usual way to name a file", "kubelet\x00--root-dir=" + dir + "/kubelet\x00", true},
		{"argument", "a shim has it as an argument of its own", "shim\x00-address\x00" + dir + "/containerd.sock\x00", true},
		{"URL", "sockets are named as URLs", "x\x00--endpoint=unix://" + dir + "/containerd.sock\x00", true},
		{"another cluster", "a longer name is another cluster's", "x\x00--root-dir=" + dir + "2/kubelet\x00", false},
		{"the folder", "du and ls of a person", "du\x00" + dir + "\x00", false},
		{"administrator", "a person's kubectl", "kubectl\x00--kubeconfig=" + dir + "/kubeconfig/admin.yaml\x00", false},
		{"program's kubeconfig", "the scheduler has nothing else", "x\x00--kubeconfig=" + dir + "/kubeconfig/kube-scheduler.yaml\x00", true},
		{"log", "a person's tail", "tail\x00-f\x00" + dir + "/logs/etcd.log\x00", false},
		{"script", "a shell script that speaks of it", "sh\x00-c\x00rm " + dir + "/x\x00", false},
		{"kernel thread", "it has no arguments", "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := mentions(test.cmdline, dir); got != test.want {
				t.Errorf("got %t, want %t: %s", got, test.want, test.reason)
			}
		})
	}
}

func TestInCgroup(t *testing.T) {
	const root = "/sluice-devcluster-dev"
	tests := []struct {
		name, reason, lines string
		want                bool
	}{
		{"v1", "any hierarchy counts", "12:memory:/\n11:pids:" + root + "/kubepods/a\n", true},
		{"v2", "the only line", "0::" + root + "/kubepods/a\n", true},
		{"root itself", "the group itself", "0::" + root + "\n", true},
		{"another cluster", "a longer name", "0::" + root + "2/a\n", false},
		{"outside", "the host's", "0::/init.scope\n", false},
		{"colon", "a path may hold colons", "0::" + root + "/a:b\n", true},
		{"empty", "the process ended", "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := inCgroup(test.lines, root); got != test.want {
				t.Errorf("got %t, want %t: %s", got, test.want, test.reason)
			}
		})
	}
}

func TestMountsInside(t *testing.T) {
	const mountinfo = `25 1 254:0 / / rw - ext4 /dev/root rw
30 25 0:26 / /d/kubelet rw shared:1 - tmpfs tmpfs rw
31 30 0:27 / /d/kubelet/pods/a/volumes/with\040space rw - tmpfs tmpfs rw
32 25 0:28 / /d2/kubelet rw - tmpfs tmpfs rw
33 25 0:29 / /d rw - tmpfs tmpfs rw
34 25 0:30 / /d/s rw - tmpfs tmpfs rw
short line
`
	want := []string{"/d/kubelet/pods/a/volumes/with space", "/d/kubelet", "/d/s"}
	if diff := cmp.Diff(want, mountsInside(mountinfo, "/d")); diff != "" {
		t.Errorf("the folder's own mount and other folders' stay; the deepest come first (-want +got):\n%s", diff)
	}
}

func FuzzUnescape(f *testing.F) {
	f.Add(`a\040b\\`)
	f.Add(`\999\04`)
	f.Fuzz(func(t *testing.T, text string) {
		if got := unescape(text); len(got) > len(text) {
			t.Errorf("%q grew to %q", text, got)
		}
	})
}

func TestChangedSysctls(t *testing.T) {
	before := map[string]string{"kept": "1", "changed": "0", "gone": "5"}
	now := map[string]string{"kept": "1", "changed": "1", "new": "7"}
	if diff := cmp.Diff(map[string]string{"changed": "1"}, changedSysctls(before, now)); diff != "" {
		t.Errorf("only settings that were known before are restored (-want +got):\n%s", diff)
	}
}

// TestAncestors checks that a process that removes the cluster spares itself and what started it.
func TestAncestors(t *testing.T) {
	found := ancestors(os.Getpid())
	for _, pid := range []int{os.Getpid(), os.Getppid()} {
		if !found[pid] {
			t.Errorf("process %d is missing in %v", pid, found)
		}
	}
}

func TestExisting(t *testing.T) {
	dir := t.TempDir()
	dangling := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	want := []string{dir, dangling}
	if diff := cmp.Diff(want, existing([]string{dir, filepath.Join(dir, "missing"), dangling})); diff != "" {
		t.Errorf("a link that leads nowhere exists too (-want +got):\n%s", diff)
	}
}

func TestRoutesFor(t *testing.T) {
	const header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	services := net.IPNet{IP: net.IPv4(10, 96, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}
	// The kernel prints numbers of the machine's byte order.
	column := func(a, b, c, d byte) string {
		return fmt.Sprintf("%08X", binary.NativeEndian.Uint32([]byte{a, b, c, d}))
	}
	line := func(network, mask string) string {
		return "lo\t" + network + "\t00000000\t0001\t0\t0\t0\t" + mask + "\t0\t0\t0\n"
	}
	tests := []struct {
		name, reason, table string
		want                []string
	}{
		{"ours", "exactly the Services' network", header + line(column(10, 96, 0, 0), column(255, 255, 0, 0)), []string{"10.96.0.0/16"}},
		{"wider", "a route of the host that covers it too stays", header + line(column(10, 96, 0, 0), column(255, 240, 0, 0)), nil},
		{"other", "another network", header + line(column(10, 97, 0, 0), column(255, 255, 0, 0)), nil},
		{"default", "the default route", header + line(column(0, 0, 0, 0), column(0, 0, 0, 0)), nil},
		{"none", "a host without routes", header, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, routesFor(test.table, services)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}
