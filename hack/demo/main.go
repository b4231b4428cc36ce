package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-dev/sluice/internal/buildcache"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	down := flags.Bool("down", false, "remove what the demo made, the dev cluster included")
	local := flags.Bool("local", false, "show the request through local processes, without a cluster")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", flags.Arg(0))
	}
	root, err := buildcache.FindRoot(".")
	if err != nil {
		return err
	}
	s := &story{root: root, out: out, start: time.Now()}
	switch why := noCluster(); {
	case *down:
		return s.remove(ctx)
	case *local:
		return s.local(ctx)
	case why != "":
		fmt.Fprintf(out, "No containers here: %s. Showing the same request through local processes instead.\n", why)
		return s.local(ctx)
	default:
		return s.cluster(ctx)
	}
}

// noCluster says why no cluster can be used, or nothing.
func noCluster() string {
	if os.Getenv("KUBECONFIG") != "" {
		return ""
	}
	if runtime.GOOS != "linux" {
		return "the dev cluster needs Linux, this is " + runtime.GOOS
	}
	if os.Geteuid() != 0 {
		return "the dev cluster needs root"
	}
	return ""
}

// story prints the demo's steps.
type story struct {
	root  string
	out   io.Writer
	start time.Time
	step  int
}

func (s *story) title(format string, args ...any) {
	s.step++
	fmt.Fprintf(s.out, "\n[%3.0fs] %d. %s\n", time.Since(s.start).Seconds(), s.step, fmt.Sprintf(format, args...))
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, "  "+format+"\n", args...) }

func (s *story) indent(text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Fprint(s.out, "    ", line)
	}
	fmt.Fprintln(s.out)
}
