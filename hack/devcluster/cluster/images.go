package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/sluice-dev/sluice/hack/devcluster/node"
	"github.com/sluice-dev/sluice/hack/images/image"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

// imageNamespace is the namespace of containerd in which the kubelet looks for images.
const imageNamespace = "k8s.io"

// LoadImage imports images from a tar file, as "docker save" and hack/images write it, into the cluster's node.
// Pods find them with imagePullPolicy Never or IfNotPresent.
func (c *Cluster) LoadImage(ctx context.Context, path string) error {
	if err := requireRoot("load-image"); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("load an image: %w", err)
	}
	if err := c.died(componentContainerd); err != nil {
		return fmt.Errorf("load an image: cluster %s is not up: %w", c.name, err)
	}
	cache, err := buildcache.Open(c.log)
	if err != nil {
		return err
	}
	ctr, err := cache.Path(ctx, "ctr")
	if err != nil {
		return err
	}
	return c.importImage(ctx, ctr, path)
}

func (c *Cluster) importImage(ctx context.Context, ctr, path string) error {
	output, err := c.ctr(ctx, ctr, "images", "import", path)
	if err != nil {
		return fmt.Errorf("import %s: %w", path, err)
	}
	for _, reference := range imported(output) {
		c.logf("loaded %s", reference)
	}
	return nil
}

// imported returns the names of images from the output of "ctr images import": lines "NAME saved".
func imported(output string) []string {
	var references []string
	for _, line := range strings.Split(output, "\n") {
		if fields := strings.Fields(line); len(fields) == 2 && fields[1] == "saved" {
			references = append(references, fields[0])
		}
	}
	return references
}

// ensureSandboxImage waits for the container runtime and imports the image of pods' sandboxes unless it has it.
func (c *Cluster) ensureSandboxImage(ctx context.Context, ctr string, machine node.Config, programs []component) error {
	have := ""
	err := c.waitFor(ctx, "containerd", programs, func(ctx context.Context) error {
		var err error
		have, err = c.ctr(ctx, ctr, "images", "list", "--quiet")
		return err
	})
	if err != nil {
		return err
	}
	for _, reference := range strings.Fields(have) {
		if reference == machine.SandboxImage {
			return nil
		}
	}
	root, err := buildcache.FindRoot(".")
	if err != nil {
		return err
	}
	pause, err := image.Build(ctx, root, image.Pause(), c.path("images"))
	if err != nil {
		return err
	}
	return c.importImage(ctx, ctr, pause.Path)
}

// ctr runs containerd's client against the cluster's containerd and returns its output.
func (c *Cluster) ctr(ctx context.Context, ctr string, args ...string) (string, error) {
	socket := node.Config{Dir: c.dir}.ContainerdSocket()
	cmd := exec.CommandContext(ctx, ctr, append([]string{"--address", socket, "--namespace", imageNamespace}, args...)...)
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("ctr %s: %w", strings.Join(args, " "), err)
	}
	return string(output), nil
}
