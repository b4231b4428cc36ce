package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/spf13/cobra"
)

// rankCommand is one rank process. `serve` starts it and tells it when to end, so signals that reach the whole group are
// not for it.
func rankCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "rank",
		Short:  "Run one rank; serve starts it",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
			return rank.Child(context.WithoutCancel(c.Context()), os.Stdin, rank.ReportFile())
		},
	}
}
