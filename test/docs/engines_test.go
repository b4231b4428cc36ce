package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/hack/docrun"
	"github.com/sluice-dev/sluice/test/harness"
)

// commandLimit is how long one command of a page may take.
const commandLimit = 2 * time.Minute

// TestPagesOfEngines types what the pages say about engines without a cluster, each page into a shell of its own: with other ports
// and folders, and with programs that are built already.
func TestPagesOfEngines(t *testing.T) {
	harness.NoteSources(t, root, "bench")
	run := 0
	for _, page := range pages(t) {
		blocks := page.Run(engineRunner)
		if len(blocks) == 0 {
			continue
		}
		run++
		t.Run(filepath.Base(page.File), func(t *testing.T) { typePage(t, blocks) })
	}
	if run < 4 {
		t.Errorf("%d pages were run, want more", run)
	}
}

func typePage(t *testing.T, blocks []docrun.Block) {
	dir := t.TempDir()
	for from, to := range map[string]string{"bin": programs.Dir, "tmp": ""} {
		link := filepath.Join(dir, from)
		var err error
		if to == "" {
			err = os.Mkdir(link, 0o755)
		} else {
			err = os.Symlink(to, link)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pairs := []string{"make build", "test -x bin/sluice-engine", "/tmp/", filepath.Join(dir, "tmp") + "/"}
	written := []string{"30000", "30001", "31000", "31001", "31002", "8998"}
	for i, port := range harness.FreePorts(t, len(written)) {
		pairs = append(pairs, written[i], fmt.Sprint(port))
	}
	session, err := docrun.Open(dir, t.TempDir(), append(os.Environ(), "PATH="+programs.Dir+":"+os.Getenv("PATH"), "TMPDIR="+filepath.Join(dir, "tmp")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	})
	runner := docrun.Runner{Session: session, Replace: strings.NewReplacer(pairs...).Replace, Limit: commandLimit, Log: t.Logf}
	for _, block := range blocks {
		if err := runner.Run(t.Context(), block); err != nil {
			t.Fatal(err)
		}
	}
}
