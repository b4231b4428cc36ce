package harness

import (
	"errors"
	"fmt"
	"net/http"
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

// Model is a seeded model that tests of a package share.
type Model struct {
	Dir   *string // gets its folder
	Name  string
	Flags []string // of init-model, after those of Small
}

// Small are the flags of a model that computes a step in well under a millisecond and has the tokens of Tokens.
func Small() []string {
	return []string{"--seed", "7", "--hidden-size", "64", "--layers", "2", "--heads", "4", "--vocab-size", "512", "--context-length", "1024"}
}

// Main builds the programs and the models, lets prepare, which may be nil, do the rest, runs the tests and removes all that
// was made. It gives the exit code; TestMain ends with it.
func Main(m *testing.M, prepare func(*Programs) error, models ...Model) (code int) {
	http.DefaultClient.Timeout = Patience // what answers no more must not hold the tests up
	p, err := Build()
	if err == nil {
		for _, model := range models {
			var made error
			*model.Dir, made = p.Model(model.Name, append(Small(), model.Flags...)...)
			err = errors.Join(err, made)
		}
		if prepare != nil {
			err = errors.Join(err, prepare(p))
		}
	}
	code = 1
	if err == nil {
		code = m.Run()
	}
	if p != nil {
		err = errors.Join(err, p.Remove())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
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
