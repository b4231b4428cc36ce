package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Build compiles the program of spec in the checkout at root and writes the image to dir/NAME.tar, whose path
// it returns. The file appears whole or not at all.
func Build(ctx context.Context, root string, spec Spec, dir string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	work, err := os.MkdirTemp(dir, "."+spec.Name+"-")
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	executable := filepath.Join(work, spec.Name)
	if err := compile(ctx, root, spec.Package, executable); err != nil {
		return "", fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	program, err := os.ReadFile(executable)
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	image, err := assemble(spec.Name, runtime.GOARCH, program)
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	tag, err := name.NewTag(spec.Reference(), name.StrictValidation)
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	written := filepath.Join(work, "image.tar")
	if err := tarball.WriteToFile(written, tag, image); err != nil {
		return "", fmt.Errorf("build image %s: write %s: %w", spec.Name, written, err)
	}
	path = filepath.Join(dir, spec.Name+".tar")
	if err := os.Rename(written, path); err != nil {
		return "", fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	return path, nil
}

// compile makes a static Linux executable that holds neither paths nor revision of this checkout.
func compile(ctx context.Context, root, pkg, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", pkg, root, err, strings.TrimSpace(string(output)))
	}
	return nil
}
