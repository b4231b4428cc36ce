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
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Built is an image that was written to a file.
type Built struct {
	Path string // dir/NAME.tar

	// Reference is the image's name with the tag of a checkout, which the next build takes over.
	Reference string
	// Pinned is the same image under a tag made from its content, so that a changed image has another name and
	// what runs the old one is replaced.
	Pinned string
}

// Build compiles the program of spec in the checkout at root, or takes its executable, and writes the image to dir/NAME.tar under both of its
// names. The file appears whole or not at all.
func Build(ctx context.Context, root string, spec Spec, dir string) (built Built, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Built{}, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	work, err := os.MkdirTemp(dir, "."+spec.Name+"-")
	if err != nil {
		return Built{}, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	executable := spec.Executable
	if executable == "" {
		executable = filepath.Join(work, spec.Name)
		if err := compile(ctx, root, spec, executable); err != nil {
			return Built{}, fmt.Errorf("build image %s: %w", spec.Name, err)
		}
	}
	program, err := os.ReadFile(executable)
	if err != nil {
		return Built{}, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	image, err := assemble(spec, runtime.GOARCH, program)
	if err != nil {
		return Built{}, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	built, refs, err := names(spec, image)
	if err != nil {
		return Built{}, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	written := filepath.Join(work, "image.tar")
	if err := tarball.MultiRefWriteToFile(written, refs); err != nil {
		return Built{}, fmt.Errorf("build image %s: write %s: %w", spec.Name, written, err)
	}
	built.Path = filepath.Join(dir, spec.Name+".tar")
	if err := os.Rename(written, built.Path); err != nil {
		return Built{}, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	return built, nil
}

// names gives the two names of an image, without a path, and the image by name.
func names(spec Spec, image v1.Image) (Built, map[name.Reference]v1.Image, error) {
	digest, err := image.Digest()
	if err != nil {
		return Built{}, nil, err
	}
	built := Built{
		Reference: spec.Reference(),
		Pinned:    fmt.Sprintf("%s/%s:%s", Registry, spec.Name, digest.Hex[:16]),
	}
	refs := map[name.Reference]v1.Image{}
	for _, text := range []string{built.Reference, built.Pinned} {
		tag, err := name.NewTag(text, name.StrictValidation)
		if err != nil {
			return Built{}, nil, err
		}
		refs[tag] = image
	}
	return built, refs, nil
}

// compile makes a static Linux executable that holds no path of this checkout, and its revision only as spec.Version.
func compile(ctx context.Context, root string, spec Spec, out string) error {
	flags := "-s -w"
	if spec.Version != "" {
		flags += " -X github.com/sluice-dev/sluice/internal/version.Version=" + spec.Version
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", out, spec.Package)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", spec.Package, root, err, strings.TrimSpace(string(output)))
	}
	return nil
}
