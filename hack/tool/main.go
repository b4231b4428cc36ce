// Command tool builds and runs the pinned programs of this repository.
//
//	go run ./hack/tool path NAME            build NAME if the cache lacks it and print its path
//	go run ./hack/tool run NAME [ARG...]    the same, then become that program
//	go run ./hack/tool build [NAME...]      build the named tools, or all of them
//	go run ./hack/tool list                 print every tool with its version
//
// Progress goes to standard error. Versions are pinned in hack/k8s, hack/containerd, hack/etcd and hack/tools.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"github.com/sluice-dev/sluice/internal/buildcache"
)

const usage = "usage: tool path NAME | run NAME [ARG...] | build [NAME...] | list"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "tool:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command given; %s", usage)
	}
	cache, err := buildcache.Open(stderr)
	if err != nil {
		return err
	}
	command, rest := args[0], args[1:]
	switch {
	case command == "path" && len(rest) == 1:
		path, err := cache.Path(ctx, rest[0])
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(stdout, path)
		return err
	case command == "run" && len(rest) >= 1:
		return become(ctx, cache, rest)
	case command == "build":
		if len(rest) == 0 {
			rest = buildcache.Tools()
		}
		_, err := cache.Paths(ctx, rest...)
		return err
	case command == "list" && len(rest) == 0:
		return list(cache, stdout)
	}
	return fmt.Errorf("cannot understand %q; %s", args, usage)
}

// become replaces this process by the tool, so that signals, terminal and exit status are the tool's own.
func become(ctx context.Context, cache *buildcache.Cache, args []string) error {
	path, err := cache.Path(ctx, args[0])
	if err != nil {
		return err
	}
	rest := args[1:]
	if len(rest) > 0 && rest[0] == "--" {
		rest = rest[1:]
	}
	if err := syscall.Exec(path, append([]string{args[0]}, rest...), os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}

func list(cache *buildcache.Cache, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 4, 2, ' ', 0)
	for _, name := range buildcache.Tools() {
		version, err := cache.Version(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%s\t%s\n", name, version)
	}
	return table.Flush()
}
