//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/hack/docrun"
	"github.com/sluice-dev/sluice/test/harness"
)

// docsRunner is what pages call this suite in their marks.
const docsRunner = "cluster"

// commandLimit is how long one command of a page may take.
const commandLimit = 5 * time.Minute

// Pages that look at a service that is there: before a load, under it and after it. TestPlugin runs them beside its own.
var (
	pagesBeforeLoad = []string{"docs/kubectl-sluice.md"}
	pagesUnderLoad  = []string{"README.md", "docs/scaling.md"}
	pagesAfterLoad  = []string{"docs/tracing.md"}
)

// pagesWithService begin where docs/first-service.md has its service.
var pagesWithService = []string{"docs/multi-tenant.md", upgradePage}

// nextEngine is the engine's image under another name, as that of another release. Only the dev cluster has it, so on another one
// nothing can be upgraded to.
const (
	nextEngine  = "sluice.dev/sluice-engine:dev"
	upgradePage = "docs/upgrade.md"
)

// lastPages come after all others, in this order: the second takes the operator away and the third brings it back.
var lastPages = []string{upgradePage, "docs/uninstall.md", "docs/install.md"}

// TestDocs types what the pages tell their readers to type, each page into a shell of its own.
func TestDocs(t *testing.T) {
	typist := newTypist(t)
	pages, err := docrun.Pages(cluster.Root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if os.Getenv(keepVariable) == "" {
			if err := cluster.Install(context.Background()); err != nil {
				t.Errorf("install what the other tests want: %v", err)
			}
		}
	})
	slices.SortStableFunc(pages, func(a, b docrun.Page) int {
		return slices.Index(lastPages, a.File) - slices.Index(lastPages, b.File)
	})
	run := 0
	for _, page := range pages {
		if len(page.Run(docsRunner)) == 0 || slices.Contains(slices.Concat(pagesBeforeLoad, pagesUnderLoad, pagesAfterLoad), page.File) {
			continue
		}
		run++
		t.Run(filepath.Base(page.File), func(t *testing.T) {
			if page.File == upgradePage && !strings.HasPrefix(cluster.Images["sluice-engine"], "sluice.dev/") {
				t.Skip("the cluster of KUBECONFIG has one name of the engine's image, and an upgrade needs two")
			}
			typist.namespaces(t, "team-a", "team-b")
			if slices.Contains(pagesWithService, page.File) {
				serve(t, "team-a")
			}
			typist.page(t, page)
		})
	}
	if run < len(lastPages)+1 {
		t.Errorf("%d pages were run, want more", run)
	}
}

// serve makes a namespace, its model and the service of docs/first-service.md, and waits until that is ready.
func serve(t *testing.T, namespace string) {
	t.Helper()
	sample, err := os.ReadFile(filepath.Join(cluster.Root, "config", "samples", "chat.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cluster.EnsureNamespace(t.Context(), namespace), cluster.EnsureModel(t.Context(), namespace)); err != nil {
		t.Fatal(err)
	}
	apply(t, namespace, "chat", strings.Replace(string(sample), "namespace: team-a", "namespace: "+namespace, 1))
}

// typist types pages: it has the programs that readers have.
type typist struct {
	folder string // of programs, first on PATH
	files  string // for what pages write
	env    []string
}

func newTypist(t *testing.T) *typist {
	t.Helper()
	o := &typist{folder: t.TempDir(), files: t.TempDir()}
	if out, err := exec.CommandContext(t.Context(), "make", "-C", cluster.Root, "build").CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	kubectl, err := cluster.KubectlPath(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	helm, err := cluster.HelmPath(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(cluster.Root, "bin")
	for _, program := range []string{kubectl, helm, filepath.Join(bin, "kubectl-sluice"), filepath.Join(bin, "kubectl_complete-sluice")} {
		if err := os.Symlink(program, filepath.Join(o.folder, filepath.Base(program))); err != nil {
			t.Fatal(err)
		}
	}
	own := t.TempDir() // not HOME, where go keeps what was built
	o.env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig, "PATH="+o.folder+":"+os.Getenv("PATH"),
		"KUBECACHEDIR="+own, "HELM_CACHE_HOME="+own, "HELM_CONFIG_HOME="+own, "HELM_DATA_HOME="+own)
	return o
}

// namespaces offers volumes in namespaces that a page makes, and removes all of that when the page is done.
func (o *typist) namespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		t.Cleanup(func() {
			ctx := context.Background()
			if t.Failed() {
				describe(ctx, t, name)
			}
			_, err := cluster.Kubectl(ctx, "delete", "namespace", name, "--ignore-not-found", "--timeout=2m")
			if err = errors.Join(err, cluster.RemoveVolume(ctx, name)); err != nil {
				t.Error(err)
			}
		})
		if err := cluster.OfferVolume(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// page types a page. pairs are what stands in the page and what is typed and expected instead.
func (o *typist) page(t *testing.T, page docrun.Page, pairs ...string) {
	t.Helper()
	session, err := docrun.Open(cluster.Root, t.TempDir(), o.env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	})
	runner := docrun.Runner{Session: session, Replace: o.replacer(t, pairs...).Replace, Limit: commandLimit, Log: t.Logf}
	for _, block := range page.Run(docsRunner) {
		if err := runner.Run(t.Context(), block); err != nil {
			t.Fatal(err)
		}
	}
}

// replacer gives the images of this cluster for those of the pages, and ports and folders that nobody else has.
func (o *typist) replacer(t *testing.T, pairs ...string) *strings.Replacer {
	t.Helper()
	pairs = append(pairs, "REGISTRY/sluice-engine:next", nextEngine, "sluice-engine:next", nextEngine)
	for name, reference := range cluster.Images {
		pairs = append(pairs, "REGISTRY/"+name+":dev", reference)
	}
	for _, port := range []string{"8000", "30000"} {
		free := fmt.Sprint(harness.FreePorts(t, 1)[0])
		for _, at := range []string{"service/chat-router ", "pod/chat-decode-0-0 "} {
			pairs = append(pairs, at+port, at+free+":"+port)
		}
		pairs = append(pairs, "localhost:"+port, "localhost:"+free)
	}
	pairs = append(pairs, "/tmp/", o.files+"/", "/usr/local/bin/", o.folder+"/")
	return strings.NewReplacer(append(pairs, "config/samples/model.yaml", o.modelSample(t))...)
}

// modelSample is the sample with the image of this cluster.
func (o *typist) modelSample(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root, "config", "samples", "model.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const image = "sluice.dev/sluice-engine:dev"
	if !strings.Contains(string(text), image) {
		t.Fatalf("the sample does not name the image %s", image)
	}
	file := filepath.Join(o.files, "model.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), image, cluster.Images["sluice-engine"])), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// readPage reads one page.
func readPage(t *testing.T, file string) docrun.Page {
	t.Helper()
	page, err := docrun.Read(cluster.Root, file)
	if err != nil {
		t.Fatal(err)
	}
	return page
}
