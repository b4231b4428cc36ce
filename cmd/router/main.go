// Command sluice-router pairs prefill with decode engines and streams their answers. It holds flags and signals only.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := command(log).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-router:", err)
		os.Exit(1)
	}
}
