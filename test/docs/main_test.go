package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	// What sluice-bench is built from, so that the cached result of a test is not that of another one.
	_ "github.com/sluice-dev/sluice/bench"

	"github.com/sluice-dev/sluice/hack/docrun"
	"github.com/sluice-dev/sluice/test/harness"
)

const root = "../.."

var programs *harness.Programs

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(p *harness.Programs) error {
		programs = p
		out, err := exec.Command("go", "build", "-o", filepath.Join(p.Dir, "sluice-bench"), "github.com/sluice-dev/sluice/cmd/bench").CombinedOutput()
		if err != nil {
			return fmt.Errorf("build sluice-bench: %w\n%s", err, out)
		}
		return nil
	}))
}

func pages(t *testing.T) []docrun.Page {
	t.Helper()
	list, err := docrun.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 10 {
		t.Fatalf("there are %d pages; the rules would hold for nothing", len(list))
	}
	return list
}
