package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/hack/docrun"
)

// Runners are who runs blocks: this package, test/monitoring and, by two names, test/e2e.
const (
	engineRunner     = "engine"
	monitoringRunner = "monitoring"
	clusterRunner    = "cluster"
	adapterRunner    = "adapter"
)

// shortestReason is how many letters a reason why a block is not run has at least.
const shortestReason = 20

// TestEveryBlockIsRun: what a reader would type is typed by a test, or the page says why not; and what is typed can be taken apart.
func TestEveryBlockIsRun(t *testing.T) {
	runners := []string{engineRunner, monitoringRunner, clusterRunner, adapterRunner}
	count := map[string]int{}
	for _, page := range pages(t) {
		for _, block := range page.Blocks {
			if !block.Runnable() {
				if looksTyped(block) {
					t.Errorf("%s: the block has prompts and is no block for a shell; open it with ```console", block.Where())
				}
				continue
			}
			switch mark := block.Mark; {
			case slices.Contains(runners, mark.Runner):
				count[mark.Runner]++
				if steps, err := block.Steps(); err != nil {
					t.Error(err)
				} else if len(steps) == 0 {
					t.Errorf("%s: the block has no command", block.Where())
				}
			case len(mark.Reason) >= shortestReason:
				t.Logf("%s is not run: %s", block.Where(), mark.Reason)
			case mark.Runner != "":
				t.Errorf("%s: no runner is called %s; there are %s", block.Where(), mark.Runner, strings.Join(runners, ", "))
			default:
				t.Errorf("%s: nobody runs this block; put <!-- run: RUNNER --> or <!-- not run: REASON --> before it (hack/docrun)", block.Where())
			}
		}
	}
	for _, runner := range runners {
		if count[runner] == 0 {
			t.Errorf("runner %s has no block", runner)
		}
	}
}

// looksTyped says whether a block without a shell's language has commands behind prompts.
func looksTyped(block docrun.Block) bool {
	return strings.HasPrefix(block.Text, "$ ") || strings.Contains(block.Text, "\n$ ")
}

// TestRepeatedFiles: a block that says which file it repeats is like it.
func TestRepeatedFiles(t *testing.T) {
	found := 0
	for _, page := range pages(t) {
		for _, block := range page.Blocks {
			if block.Mark.SameAs == "" {
				continue
			}
			found++
			text, err := os.ReadFile(filepath.Join(root, block.Mark.SameAs))
			if err != nil {
				t.Errorf("%s: %v", block.Where(), err)
				continue
			}
			if string(text) != block.Text {
				t.Errorf("%s is not the same as %s:\n%s", block.Where(), block.Mark.SameAs, text)
			}
		}
	}
	if found == 0 {
		t.Error("no block repeats a file")
	}
}

// TestSamplesAreExplained: every sample is named in a page of docs/.
func TestSamplesAreExplained(t *testing.T) {
	samples, err := filepath.Glob(filepath.Join(root, "config", "samples", "*.yaml"))
	if err != nil || len(samples) == 0 {
		t.Fatalf("samples %v: %v", samples, err)
	}
	var text strings.Builder
	for _, page := range pages(t) {
		if !strings.HasPrefix(page.File, "docs/") {
			continue
		}
		body, err := os.ReadFile(filepath.Join(root, page.File))
		if err != nil {
			t.Fatal(err)
		}
		text.Write(body)
	}
	for _, sample := range samples {
		if !strings.Contains(text.String(), filepath.Base(sample)) {
			t.Errorf("no page of docs/ says what %s shows", sample)
		}
	}
}
