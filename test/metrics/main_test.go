package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs       *harness.Programs
	tiny, windowed string // model folders; every second layer of windowed looks at a window
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	http.DefaultClient.Timeout = harness.Patience
	var err error
	if programs, err = harness.Build(); err == nil {
		shape := []string{"--seed", "7", "--hidden-size", "64", "--layers", "2", "--heads", "4", "--vocab-size", "512", "--context-length", "2048"}
		var errs [2]error
		tiny, errs[0] = programs.Model("tiny", shape...)
		windowed, errs[1] = programs.Model("windowed", append(shape, "--arch", "ministral", "--sliding-window", "32")...)
		err = errors.Join(errs[:]...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		return 1
	}
	code := m.Run()
	if err := programs.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
