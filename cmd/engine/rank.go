package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/spf13/cobra"
)

// errReported is the end of a rank whose parent has been told why, and tells it.
var errReported = errors.New("the rank's parent knows why it ended")

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
			report := rank.ReportFile()
			err := rank.Child(context.WithoutCancel(c.Context()), os.Stdin, report, rank.LinkFile())
			if _, gone := report.Stat(); err != nil && gone == nil {
				return errReported
			}
			return err
		},
	}
}
