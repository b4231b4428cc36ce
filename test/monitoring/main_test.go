package monitoring

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs *harness.Programs

	tiny, windowed string // model folders
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if programs, err = harness.Build(); err == nil {
		size := []string{"--seed", "7", "--hidden-size", "64", "--layers", "2", "--vocab-size", "512", "--context-length", "1024"}
		var errs [2]error
		tiny, errs[0] = programs.Model("tiny", size...)
		windowed, errs[1] = programs.Model("windowed", append(size, "--arch", "ministral", "--sliding-window", "32")...)
		err = errors.Join(errs[:]...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		return 1
	}
	code := m.Run()
	if err := errors.Join(err, programs.Remove()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
