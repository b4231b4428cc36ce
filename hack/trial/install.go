package trial

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/hack/images/image"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

const (
	// Release is the name of the Helm release.
	Release = "sluice"
	// SystemNamespace is where the operator runs.
	SystemNamespace = "sluice-system"
	// imagePrefixVariable names where the images are when the cluster is not the dev cluster.
	imagePrefixVariable = "SLUICE_IMAGE_PREFIX"
)

// Up makes sure that there is a cluster with the product's images: the one of KUBECONFIG when that is set, else the dev
// cluster, which it starts if need be. It is safe to call again.
func Up(ctx context.Context, root string, log io.Writer) (*Trial, error) {
	kubeconfig, foreign, err := target(ctx, root)
	if err != nil {
		return nil, err
	}
	if foreign {
		_, err = output(ctx, root, "go", "run", "./hack/devcluster", "up") // only checks that it answers
	} else {
		err = run(ctx, root, log, "go", "run", "./hack/devcluster", "up")
	}
	if err != nil {
		return nil, err
	}
	t, err := Open(root, kubeconfig, log)
	if err != nil {
		return nil, err
	}
	if foreign {
		prefix := os.Getenv(imagePrefixVariable)
		if prefix == "" {
			return nil, fmt.Errorf("the cluster of KUBECONFIG needs the images from a registry: push those of `make images` and set %s, for example %s=registry.example/sluice", imagePrefixVariable, imagePrefixVariable)
		}
		for name := range t.Images {
			t.Images[name] = prefix + "/" + name + ":dev"
		}
		return t, nil
	}
	return t, t.loadImages(ctx)
}

// target gives the kubeconfig of the cluster to work on, and whether it is another one than the dev cluster.
func target(ctx context.Context, root string) (kubeconfig string, foreign bool, err error) {
	own, err := output(ctx, root, "env", "-u", "KUBECONFIG", "go", "run", "./hack/devcluster", "kubeconfig")
	if err != nil {
		return "", false, err
	}
	named := os.Getenv("KUBECONFIG")
	if named == "" || filepath.Clean(named) == own {
		return own, false, nil
	}
	if _, err := os.Stat(named); err != nil {
		return "", false, fmt.Errorf("KUBECONFIG must name one file that can be read (unset it to use the dev cluster): %w", err)
	}
	return named, true, nil
}

// Down removes what a trial made in the given namespaces, and the release. Of the dev cluster nothing is left; another
// cluster, that of KUBECONFIG, is kept.
func Down(ctx context.Context, root string, log io.Writer, namespaces ...string) error {
	kubeconfig, foreign, err := target(ctx, root)
	if err != nil {
		return err
	}
	if !foreign {
		if err := run(ctx, root, log, "go", "run", "./hack/devcluster", "down"); err != nil {
			return err
		}
		return os.RemoveAll(volumeRoot)
	}
	t, err := Open(root, kubeconfig, log)
	if err != nil {
		return err
	}
	for _, namespace := range namespaces {
		if err := t.RemoveNamespace(ctx, namespace); err != nil {
			return err
		}
	}
	return t.Uninstall(ctx)
}

// loadImages builds the images and loads them into the dev cluster. They are used by names made from their content, so
// that what runs an older build is replaced.
func (t *Trial) loadImages(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(t.Images)) {
		spec, err := image.Lookup(name)
		if err != nil {
			return err
		}
		t.logf("  build image %s", name)
		built, err := image.Build(ctx, t.Root, spec, filepath.Join(t.Root, "dist", "images"))
		if err != nil {
			return err
		}
		if err := run(ctx, t.Root, t.log, "go", "run", "./hack/devcluster", "load-image", built.Path); err != nil {
			return err
		}
		t.Images[name] = built.Pinned
	}
	return nil
}

// Install installs or upgrades the chart and waits until the operator is ready. set are further --set arguments.
func (t *Trial) Install(ctx context.Context, set ...string) error {
	args := []string{"upgrade", "--install", Release, filepath.Join(t.Root, "charts", "sluice"),
		"--namespace", SystemNamespace, "--create-namespace", "--wait", "--timeout", "3m"}
	for _, pair := range append([]string{
		"image.operator=" + t.Images["sluice-operator"],
		"image.engine=" + t.Images["sluice-engine"],
		"image.router=" + t.Images["sluice-router"],
	}, set...) {
		args = append(args, "--set", pair)
	}
	return t.helm(ctx, args...)
}

// Uninstall removes the release.
func (t *Trial) Uninstall(ctx context.Context) error {
	return t.helm(ctx, "uninstall", Release, "--namespace", SystemNamespace, "--wait", "--ignore-not-found")
}

func (t *Trial) helm(ctx context.Context, args ...string) error {
	helm, err := t.HelmPath(ctx)
	if err != nil {
		return err
	}
	_, err = output(ctx, t.Root, helm, append(args, "--kubeconfig", t.Kubeconfig)...)
	return err
}

// Kubectl runs kubectl and gives what it prints.
func (t *Trial) Kubectl(ctx context.Context, args ...string) (string, error) {
	kubectl, err := t.KubectlPath(ctx)
	if err != nil {
		return "", err
	}
	return output(ctx, t.Root, kubectl, append(args, "--kubeconfig", t.Kubeconfig)...)
}

// KubectlPath gives the path of kubectl.
func (t *Trial) KubectlPath(ctx context.Context) (string, error) { return t.toolPath(ctx, "kubectl") }

// HelmPath gives the path of helm.
func (t *Trial) HelmPath(ctx context.Context) (string, error) { return t.toolPath(ctx, "helm") }

func (t *Trial) toolPath(ctx context.Context, name string) (string, error) {
	cache, err := buildcache.Open(t.log)
	if err != nil {
		return "", err
	}
	return cache.Path(ctx, name)
}

// output runs a program and gives its standard output without the last newline.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, complaint(stderr.Bytes()))
	}
	return strings.TrimRight(stdout.String(), "\n"), nil
}
