package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func testCluster(t *testing.T) *Cluster {
	t.Helper()
	c, err := New(Options{Name: "test", Base: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(c.Dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEnsure changes one thing at a time about a program and checks whether it is started, kept or restarted.
func TestEnsure(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatalf("this test needs a shell: %v", err)
	}
	ctx := t.Context()
	c := testCluster(t)
	input := filepath.Join(c.Dir(), "input")
	program := component{name: "program", path: shell, args: []string{"-c", "exec sleep 1000"}, inputs: []string{input}}
	t.Cleanup(func() {
		if err := c.stop(context.Background(), program.name, time.Second); err != nil {
			t.Error(err)
		}
	})
	write := func(text string) {
		if err := os.WriteFile(input, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		name, reason string
		change       func()
		started      bool
	}{
		{"first", "nothing runs yet", func() { write("a") }, true},
		{"again", "the same program runs", func() {}, false},
		{"rewritten", "the same content is no change", func() { write("a") }, false},
		{"changed input", "it must read its configuration again", func() { write("b") }, true},
		{"changed arguments", "it must run with the new ones", func() { program.args = []string{"-c", "exec sleep 999"} }, true},
		{"died", "a dead program is started again", func() {
			running, err := c.readRecord(program.name)
			if err != nil {
				t.Fatal(err)
			}
			if err := running.Kill(ctx); err != nil {
				t.Fatal(err)
			}
		}, true},
	}
	pid := 0
	for _, step := range steps {
		step.change()
		started, err := c.ensure(ctx, program)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		running, err := c.readRecord(program.name)
		if err != nil {
			t.Fatal(err)
		}
		if !running.Alive() {
			t.Errorf("%s: the recorded process does not run", step.name)
		}
		if started != step.started || (running.PID != pid) != step.started {
			t.Errorf("%s: started is %t, want %t: %s", step.name, started, step.started, step.reason)
		}
		pid = running.PID
	}
	if err := c.stop(ctx, program.name, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := c.died(program.name); err == nil || !strings.Contains(err.Error(), program.name) {
		t.Errorf("a stopped program is reported as %v", err)
	}
}

func TestEnsureReportsMissingInput(t *testing.T) {
	c := testCluster(t)
	_, err := c.ensure(t.Context(), component{name: "program", path: "/bin/true", inputs: []string{filepath.Join(c.Dir(), "missing")}})
	if err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

func TestComponentEnv(t *testing.T) {
	got := componentEnv([]string{"HOME=/root", "PATH=/bin", "KUBECONFIG=/elsewhere", "https_proxy=http://proxy", "NO_PROXY=x", "EMPTY="}, "/cache/bin")
	want := []string{"HOME=/root", "EMPTY=", "PATH=/cache/bin:/bin:/usr/sbin:/sbin"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("programs must not find another cluster or a proxy (-want +got):\n%s", diff)
	}
}

func TestImported(t *testing.T) {
	const output = "sluice.dev/a:dev                    \tsaved\t\napplication/vnd.oci sha256:0123\nsluice.dev/b:dev saved\nImporting\telapsed: 0.1 s\ttotal: 0.0 B\n"
	if diff := cmp.Diff([]string{"sluice.dev/a:dev", "sluice.dev/b:dev"}, imported(output)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNew(t *testing.T) {
	tests := []struct {
		name, reason string
		options      Options
		want         string // The folder; "" is a refusal.
	}{
		{"defaults", "no choice is a good choice", Options{}, DefaultBase + "/" + DefaultName},
		{"chosen", "both can be chosen", Options{Name: "a-1", Base: "/b/"}, "/b/a-1"},
		{"path", "a name must not leave the folder", Options{Name: "../x"}, ""},
		{"upper case", "names become node names", Options{Name: "Dev"}, ""},
		{"long", "sockets have short paths", Options{Name: strings.Repeat("a", 21)}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := ""
			c, err := New(test.options)
			if err == nil {
				got = c.Dir()
			}
			if got != test.want {
				t.Errorf("got %q, %v, want %q: %s", got, err, test.want, test.reason)
			}
		})
	}
}

func TestState(t *testing.T) {
	c := testCluster(t)
	if _, found, err := c.loadState(); found || err != nil {
		t.Fatalf("a new cluster has a state: %t, %v", found, err)
	}
	want := state{Address: []byte{192, 0, 2, 2}, Port: 6443, BootID: "boot"}
	want.Before.Chains = []string{"ipv4/nat/KUBE-SERVICES"}
	want.Before.Sysctls = map[string]string{"net/ipv4/ip_forward": "0"}
	want.Before.Paths = []string{"/var/lib/cni"}
	if err := c.saveState(want); err != nil {
		t.Fatal(err)
	}
	got, found, err := c.loadState()
	if err != nil || !found {
		t.Fatalf("state is not found: %v", err)
	}
	got.Address = got.Address.To4()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if others, err := c.others(); err != nil || len(others) != 0 {
		t.Errorf("the cluster itself counts as another: %v, %v", others, err)
	}
	neighbour, err := New(Options{Name: "neighbour", Base: filepath.Dir(c.Dir())})
	if err != nil {
		t.Fatal(err)
	}
	if others, err := neighbour.others(); err != nil || len(others) != 1 || others[0] != "test" {
		t.Errorf("got other clusters %v, %v, want test", others, err)
	}
	if err := os.WriteFile(filepath.Join(c.Dir(), stateFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.loadState(); err == nil || !strings.Contains(err.Error(), "down --force") {
		t.Errorf("a broken state gives %v, want the remedy", err)
	}
}

// TestLock checks that a lock whose file was removed, as by the removal of the last cluster, is not taken for one.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := tryLock(path)
	if err != nil || first == nil {
		t.Fatalf("a free lock is not given: %v", err)
	}
	if second, err := tryLock(path); second != nil || err != nil {
		t.Fatalf("a taken lock is given: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	third, err := tryLock(path)
	if err != nil || third == nil {
		t.Fatalf("a lock with a new file is not given: %v", err)
	}
	for _, file := range []*os.File{first, third} {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestFindExternal(t *testing.T) {
	const kubeconfig = `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"https://192.0.2.9:6443"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u"}]}`
	c := testCluster(t)
	other := filepath.Join(t.TempDir(), "other")
	for _, path := range []string{other, c.KubeconfigPath()} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(c.KubeconfigPath(), link); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, reason, value string
		want                *External
		fails               bool
	}{
		{"unset", "the dev cluster is meant", "", nil, false},
		{"own", "exporting the dev cluster's kubeconfig changes nothing", c.KubeconfigPath(), nil, false},
		{"own by a link", "whatever the path to it", link, nil, false},
		{"other", "another cluster is used", other, &External{Kubeconfig: other, Server: "https://192.0.2.9:6443"}, false},
		{"missing", "a variable that leads nowhere must not start a cluster", filepath.Join(t.TempDir(), "missing"), nil, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := c.FindExternal(test.value)
			if (err != nil) != test.fails {
				t.Errorf("got error %v, want failure %t: %s", err, test.fails, test.reason)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}
