package buildcache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// testRoot makes a checkout whose go.mod of etcd requires the given version.
func testRoot(t *testing.T, version string) string {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "go.mod"), "module "+rootModule+"\n")
	write(t, filepath.Join(root, "hack", "etcd", "go.mod"), "module m\n\nrequire go.etcd.io/etcd/server/v3 "+version+"\n")
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPathBuildsOnce lets many callers with caches of their own, as in many processes, ask for one tool.
func TestPathBuildsOnce(t *testing.T) {
	root, dir := testRoot(t, "v3.6.16"), t.TempDir()
	var builds atomic.Int32
	compile := func(_ context.Context, _ *Cache, tool Tool, version, out string) error {
		builds.Add(1)
		return os.WriteFile(out, []byte(tool.Name+" "+version), 0o755)
	}
	const callers = 8
	paths := make([]string, callers)
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			path, err := (&Cache{Dir: dir, Root: root, compile: compile}).Path(t.Context(), "etcd")
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	group.Wait()
	want := filepath.Join(dir, "bin", "etcd-v3.6.16", "etcd")
	for _, path := range paths {
		if path != want {
			t.Errorf("got path %s, want %s", path, want)
		}
	}
	if builds.Load() != 1 {
		t.Errorf("%d callers made %d builds, want 1", callers, builds.Load())
	}
	if data, err := os.ReadFile(want); err != nil || string(data) != "etcd v3.6.16" {
		t.Errorf("executable holds %q, %v", data, err)
	}
}

// TestFailedBuild checks that a failed build is no build: it leaves no file, and the next try builds again.
func TestFailedBuild(t *testing.T) {
	failure := errors.New("compiler says no")
	fail := true
	var log strings.Builder
	cache := &Cache{Dir: t.TempDir(), Root: testRoot(t, "v3.6.16"), Log: &log}
	cache.compile = func(_ context.Context, _ *Cache, _ Tool, _, out string) error {
		if err := os.WriteFile(out, []byte("half"), 0o755); err != nil {
			return err
		}
		if fail {
			return failure
		}
		return nil
	}
	if _, err := cache.Path(t.Context(), "etcd"); !errors.Is(err, failure) {
		t.Fatalf("got error %v, want %v", err, failure)
	}
	entries, err := os.ReadDir(filepath.Join(cache.Dir, "bin", "etcd-v3.6.16"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != ".etcd.lock" {
			t.Errorf("failed build left %s", entry.Name())
		}
	}
	fail = false
	if _, err := cache.Path(t.Context(), "etcd"); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
		words := strings.Fields(line)
		lines = append(lines, strings.Join(words[:len(words)-1], " "))
	}
	want := []string{"building etcd", "building etcd v3.6.16 failed after", "building etcd", "built etcd v3.6.16 in"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("log, without the last word of each line (-want +got):\n%s", diff)
	}
}

// TestWaitForLockEnds checks that a caller whose context ends does not wait for another's build.
func TestWaitForLockEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path, func() { t.Error("waited for a free lock") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	told := 0
	if _, err := lockFile(ctx, path, func() { told++; cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if told != 1 {
		t.Errorf("told %d times to wait, want once", told)
	}
	unlock()
	again, err := lockFile(t.Context(), path, func() { t.Error("waited for a released lock") })
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestRequiredVersion(t *testing.T) {
	tests := []struct{ name, reason, gomod, want string }{
		{"required", "the plain case", "module m\nrequire example.com/a v1.2.3\n", "v1.2.3"},
		{"indirect", "tools are indirect requirements", "module m\nrequire (\n\texample.com/b v1.0.0\n\texample.com/a v1.2.3 // indirect\n)\n", "v1.2.3"},
		{"replaced", "what is built is the replacement", "module m\nrequire example.com/a v1.2.3\nreplace example.com/a => example.com/fork v1.9.0\n", "v1.9.0"},
		{"missing", "nothing to build", "module m\nrequire example.com/b v1.0.0\n", ""},
		{"broken", "not a go.mod", "modul m\n", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := requiredVersion([]byte(test.gomod), "example.com/a")
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q, %v, want %q: %s", got, err, test.want, test.reason)
			}
		})
	}
}

func TestFindRoot(t *testing.T) {
	const tree = `
-- go.mod --
module github.com/sluice-dev/sluice
-- deep/inside/x --
-- hack/etcd/go.mod --
module github.com/sluice-dev/sluice/hack/etcd
`
	root := t.TempDir()
	for _, file := range txtar.Parse([]byte(tree)).Files {
		write(t, filepath.Join(root, file.Name), string(file.Data))
	}
	tests := []struct {
		name, reason, dir string
		found             bool
	}{
		{"root", "the root itself", root, true},
		{"package", "a test runs in its package's folder", filepath.Join(root, "deep", "inside"), true},
		{"nested module", "a nested module is not the root", filepath.Join(root, "hack", "etcd"), true},
		{"elsewhere", "no checkout around it", t.TempDir(), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := FindRoot(test.dir)
			if want := map[bool]string{true: root}[test.found]; got != want || (err == nil) != test.found {
				t.Errorf("got %q, %v, want %q: %s", got, err, want, test.reason)
			}
		})
	}
}

// TestTable checks the table of tools against the modules of this checkout.
func TestTable(t *testing.T) {
	root, err := FindRoot(".")
	if err != nil {
		t.Fatal(err)
	}
	cache := &Cache{Root: root}
	seen := map[string]bool{}
	for _, name := range Tools() {
		if seen[name] {
			t.Errorf("two tools are called %s", name)
		}
		seen[name] = true
		if _, err := cache.Version(name); err != nil {
			t.Errorf("tool %s has no pinned version: %v", name, err)
		}
	}
	if _, err := cache.Version("no-such-tool"); err == nil {
		t.Errorf("a tool that does not exist has a version")
	}
}

func TestKubernetesVersionFlags(t *testing.T) {
	const pkg = "-X k8s.io/component-base/version."
	want := pkg + "gitVersion=v1.36.3 " + pkg + "gitMajor=1 " + pkg + "gitMinor=36"
	if diff := cmp.Diff(want, kubernetesVersionFlags("v1.36.3")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
