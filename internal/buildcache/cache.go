package buildcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// progressPeriod is the time between two progress lines of one build.
const progressPeriod = 15 * time.Second

// Cache builds tools and remembers them. The zero value is not usable; see Open. Several processes may share a
// folder: a file in it is either absent or complete.
type Cache struct {
	// Dir is the cache folder; executables lie in Dir/bin/GROUP-VERSION/NAME.
	Dir string
	// Root is the repository root, whose nested modules pin the versions.
	Root string
	// Log gets one line when a build starts, one every 15 s, and one when it ends. Nil means silence.
	Log io.Writer

	// compile builds a tool into a file; a field so that tests need no compiler.
	compile func(ctx context.Context, c *Cache, tool Tool, version, out string) error
}

// Open returns the cache for the checkout around the working directory. The folder is $SLUICE_CACHE, or
// "sluice" in the user's cache folder. Nothing is created until the first build.
func Open(log io.Writer) (*Cache, error) {
	root, err := FindRoot(".")
	if err != nil {
		return nil, err
	}
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	return &Cache{Dir: dir, Root: root, Log: log, compile: goBuild}, nil
}

// Dir returns the cache folder as the environment names it.
func Dir() (string, error) {
	if dir := os.Getenv("SLUICE_CACHE"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("resolve SLUICE_CACHE=%s: %w", dir, err)
		}
		return abs, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache folder (set SLUICE_CACHE or HOME): %w", err)
	}
	return filepath.Join(dir, "sluice"), nil
}

// Version returns the version of a tool that the checkout pins.
func (c *Cache) Version(name string) (string, error) {
	tool, err := Lookup(name)
	if err != nil {
		return "", err
	}
	return c.version(tool)
}

func (c *Cache) version(tool Tool) (string, error) {
	path := filepath.Join(c.Root, filepath.FromSlash(tool.Dir), "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the pinned version of %s: %w", tool.Name, err)
	}
	version, err := requiredVersion(data, tool.Module)
	if err != nil {
		return "", fmt.Errorf("read the pinned version of %s from %s: %w", tool.Name, path, err)
	}
	return version, nil
}

// Path returns the path of the named tool's executable, building it first if the cache lacks it. While another
// process builds the same tool, Path waits for that build.
func (c *Cache) Path(ctx context.Context, name string) (string, error) {
	tool, err := Lookup(name)
	if err != nil {
		return "", err
	}
	version, err := c.version(tool)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Dir, "bin", tool.Group+"-"+version, tool.Name)
	if present, err := isFile(path); err != nil || present {
		return path, err
	}
	if err := c.build(ctx, tool, version, path); err != nil {
		return "", fmt.Errorf("build %s %s: %w", tool.Name, version, err)
	}
	return path, nil
}

// Paths is Path for several tools; the result is keyed by name.
func (c *Cache) Paths(ctx context.Context, names ...string) (map[string]string, error) {
	paths := make(map[string]string, len(names))
	for _, name := range names {
		path, err := c.Path(ctx, name)
		if err != nil {
			return nil, err
		}
		paths[name] = path
	}
	return paths, nil
}

// build makes path under the tool's lock. The executable appears by rename, so that a reader never sees half
// of it and a builder that is killed leaves only a temporary file, which the next builder replaces.
func (c *Cache) build(ctx context.Context, tool Tool, version, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	waiting := func() { c.logf("waiting for another build of %s %s", tool.Name, version) }
	unlock, err := lockFile(ctx, filepath.Join(filepath.Dir(path), "."+tool.Name+".lock"), waiting)
	if err != nil {
		return err
	}
	defer unlock()
	if present, err := isFile(path); err != nil || present {
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "."+tool.Name+".tmp")
	done := c.progress(tool.Name + " " + version)
	err = c.compile(ctx, c, tool, version, temporary)
	done(err)
	if err != nil {
		return errors.Join(err, removeIfPresent(temporary))
	}
	return os.Rename(temporary, path)
}

// progress writes that a build has begun, then its elapsed time at intervals, until the returned function is
// called with the build's result.
func (c *Cache) progress(what string) func(error) {
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start).Round(time.Second) }
	c.logf("building %s", what)
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(progressPeriod)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				c.logf("building %s: %s so far", what, elapsed())
			}
		}
	}()
	return func(err error) {
		close(ended)
		<-stopped
		if err != nil {
			c.logf("building %s failed after %s", what, elapsed())
			return
		}
		c.logf("built %s in %s", what, elapsed())
	}
}

func (c *Cache) logf(format string, args ...any) {
	if c.Log != nil {
		fmt.Fprintf(c.Log, format+"\n", args...)
	}
}

// goBuild runs "go build" in the tool's module. The executable is static and holds no path of this machine.
func goBuild(ctx context.Context, c *Cache, tool Tool, version, out string) error {
	ldflags := "-s -w"
	if tool.ldflags != nil {
		ldflags += " " + tool.ldflags(version)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", ldflags, "-o", out, tool.Package)
	cmd.Dir = filepath.Join(c.Root, filepath.FromSlash(tool.Dir))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-buildvcs=false")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("go build %s in %s: %w\n%s", tool.Package, cmd.Dir, err, strings.TrimSpace(output.String()))
	}
	return nil
}

func isFile(path string) (present bool, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("%s is not a regular file: remove it", path)
	}
	return true, nil
}

func removeIfPresent(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
