// Command sluice-bench sends load to servers that speak OpenAI's API and measures their answers. It holds flags, signals and
// the order of a run only; bench does the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// interruptedStatus is the exit status after Ctrl-C, as a shell reports it.
const interruptedStatus = 130

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	columns := 0
	if width, _, err := term.GetSize(int(os.Stderr.Fd())); err == nil {
		columns = width
	}
	err := command(terminal{out: os.Stdout, err: os.Stderr, columns: columns}).ExecuteContext(ctx)
	switch {
	case errors.Is(err, errInterrupted):
		os.Exit(interruptedStatus)
	case err != nil:
		fmt.Fprintln(os.Stderr, "sluice-bench:", err)
		os.Exit(1)
	}
}
