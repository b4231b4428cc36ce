package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-dev/sluice/plugin"
)

// completionTimeout is how long a shell may be kept waiting for names.
const completionTimeout = 3 * time.Second

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete asks for names; a cluster that does not answer gives none.
func (o *options) complete(list func(context.Context, *plugin.Plugin) ([]string, error)) completion {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return o.names(c, list), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeService completes the name of a service, and after it that of one of its pools where the command takes one.
func (o *options) completeService(pools bool) completion {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return o.names(c, func(ctx context.Context, p *plugin.Plugin) ([]string, error) { return p.ServiceNames(ctx) }), cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1 && pools:
			return o.names(c, func(ctx context.Context, p *plugin.Plugin) ([]string, error) { return p.PoolNames(ctx, args[0]) }), cobra.ShellCompDirectiveNoFileComp
		default:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
}

func (o *options) names(c *cobra.Command, list func(context.Context, *plugin.Plugin) ([]string, error)) []string {
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	p, err := o.connect()
	if err != nil {
		return nil
	}
	names, err := list(ctx, p)
	if err != nil {
		return nil
	}
	return names
}
