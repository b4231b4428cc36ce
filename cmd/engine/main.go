// Command sluice-engine serves a model. It holds flags and signals only; engine/server and engine/rank do the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sluice-dev/sluice/internal/version"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	root := command()
	root.SetArgs(joinLists(os.Args[1:], takesList(root)))
	if err := root.ExecuteContext(ctx); err != nil {
		if !errors.Is(err, errReported) {
			fmt.Fprintln(os.Stderr, "sluice-engine:", short(err.Error()))
		}
		os.Exit(1)
	}
}

// maxErrorBytes bounds what is printed of an error: some repeat what stands on the command line, which may be long.
const maxErrorBytes = 16 << 10

// short takes out the middle of a text that is too long: what is at fault comes first, and the remedy last.
func short(text string) string {
	if len(text) <= maxErrorBytes {
		return text
	}
	const half = maxErrorBytes / 2
	return strings.ToValidUTF8(text[:half], "") + " … " + strings.ToValidUTF8(text[len(text)-half:], "")
}

// command is the whole command line.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice-engine",
		Short:         "Serve a large language model over the OpenAI and SGLang HTTP APIs",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, c.CommandPath())
	})
	root.Version = version.Version // for --version, as the other programs have it
	root.AddCommand(serveCommand(), rankCommand(), initModelCommand(), versionCommand())
	return root
}

// takesList says which flags of the commands take several words.
func takesList(root *cobra.Command) func(name string) bool {
	return func(name string) bool {
		for _, c := range root.Commands() {
			if f := c.Flags().Lookup(name); f != nil && f.Value.Type() == (&words{}).Type() {
				return true
			}
		}
		return false
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), "sluice-engine", version.Version)
			return err
		},
	}
}
