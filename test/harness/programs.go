package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	// What the programs are built from, so that the cached result of a test is not that of other programs.
	_ "github.com/sluice-dev/sluice/engine/model"
	_ "github.com/sluice-dev/sluice/engine/rank"
	_ "github.com/sluice-dev/sluice/engine/server"
	_ "github.com/sluice-dev/sluice/router/proxy"
)

// Programs are built binaries and the models made with them, in one temporary folder.
type Programs struct {
	Dir    string
	Engine string
	Router string
}

// Build builds the programs. The caller removes Dir.
func Build() (*Programs, error) {
	dir, err := os.MkdirTemp("", "sluice-test-")
	if err != nil {
		return nil, err
	}
	p := &Programs{Dir: dir, Engine: filepath.Join(dir, "sluice-engine"), Router: filepath.Join(dir, "sluice-router")}
	for path, pkg := range map[string]string{p.Engine: "engine", p.Router: "router"} {
		if err := run("go", "build", "-o", path, "github.com/sluice-dev/sluice/cmd/"+pkg); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	return p, nil
}

// Model makes a seeded model with the flags of init-model and gives its folder.
func (p *Programs) Model(name string, flags ...string) (dir string, err error) {
	dir = filepath.Join(p.Dir, name)
	return dir, run(p.Engine, append([]string{"init-model", "--out", dir}, flags...)...)
}

// Remove deletes the folder.
func (p *Programs) Remove() error { return os.RemoveAll(p.Dir) }

func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// NoteSources reads the sources of the main packages, inside a test: the test cache depends on what a test reads, and a
// main package can't be imported. root is the folder of the repository as seen from the test; more are programs that the
// test builds itself.
func NoteSources(t testing.TB, root string, more ...string) {
	t.Helper()
	for _, name := range append([]string{"engine", "router"}, more...) {
		files, err := filepath.Glob(filepath.Join(root, "cmd", name, "*.go"))
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("no sources of cmd/%s under %s", name, root)
		}
		for _, file := range files {
			if _, readErr := os.ReadFile(file); readErr != nil {
				err = readErr
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
