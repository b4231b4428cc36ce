// Command kubectl-sluice is the kubectl plugin: kubectl sluice status, top, ranks, trace, scale, rollout, diagnose and logs. It
// holds flags and signals only; package plugin does the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/sluice-dev/sluice/plugin/view"
)

// exitInterrupted is what shells expect of a program that Ctrl-C ended.
const exitInterrupted = 130

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	klog.LogToStderr(false)      // client-go's warnings are no part of an answer
	klog.SetOutput(io.Discard)
	err := command(os.Stdout, os.Stderr).ExecuteContext(ctx)
	switch {
	case err == nil, errors.Is(err, syscall.EPIPE): // the reader has enough
		return
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		os.Exit(exitInterrupted)
	}
	fmt.Fprintln(os.Stderr, "kubectl-sluice:", view.Plain(strings.Join(strings.Fields(err.Error()), " ")))
	os.Exit(1)
}
