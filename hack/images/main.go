// Command images builds container images of this repository's programs without a container engine.
//
//	go run ./hack/images --out DIR [--version VERSION] [NAME...]
//
// It writes DIR/NAME.tar for each named image, or for all of them, and prints two names and the file of each. The
// images are called sluice.dev/NAME:dev, and the same with a tag made from their content; no registry of that name
// exists, so import them: with "go run ./hack/devcluster load-image FILE.tar", "docker load --input FILE.tar" or
// "ctr images import FILE.tar".
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-dev/sluice/hack/images/image"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	out := flags.String("out", "bin/images", "folder that the tar files are written to")
	version := flags.String("version", "", "version that the programs report, for example v0.1.0")
	if err := flags.Parse(args); err != nil {
		return err
	}
	specs := image.Specs()
	if flags.NArg() > 0 {
		specs = nil
		for _, name := range flags.Args() {
			spec, err := image.Lookup(name)
			if err != nil {
				return err
			}
			specs = append(specs, spec)
		}
	}
	root, err := buildcache.FindRoot(".")
	if err != nil {
		return err
	}
	for _, spec := range specs {
		spec.Version = *version
		built, err := image.Build(ctx, root, spec, *out)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s\t%s\t%s\n", built.Reference, built.Pinned, built.Path)
	}
	return nil
}
