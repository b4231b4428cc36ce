package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-dev/sluice/internal/version"
	"github.com/sluice-dev/sluice/plugin"
	"github.com/sluice-dev/sluice/plugin/cluster"
	"github.com/sluice-dev/sluice/plugin/reach"
	"github.com/sluice-dev/sluice/plugin/view"
)

// options are the flags of every command.
type options struct {
	loading   *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	all       bool
	output    string
	keyFile   string
	limits    reach.Limits

	out, err io.Writer
}

func command(out, err io.Writer) *cobra.Command {
	o := &options{loading: clientcmd.NewDefaultClientConfigLoadingRules(), limits: reach.DefaultLimits(), out: out, err: err}
	root := &cobra.Command{
		Use:   "kubectl-sluice",
		Short: "See and explain InferenceServices: their state, their load and their slow requests",
		Long: "kubectl sluice shows InferenceServices down to their ranks, follows one request through router, prefill and decode, and\n" +
			"says what is behind a complaint, with the numbers that led there. It reaches pods through the API server's port-forward.",
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sluice"},
	}
	root.SetOut(out)
	root.SetErr(err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, c.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&o.loading.ExplicitPath, "kubeconfig", "", "kubeconfig file; by default $KUBECONFIG, then ~/.kube/config")
	clientcmd.BindOverrideFlags(&o.overrides, f, clientcmd.RecommendedConfigOverrideFlags(""))
	f.StringVarP(&o.output, "output", "o", "", "json for the documented schema, wide for more columns; by default a text for people")
	f.StringVar(&o.keyFile, "api-key-file", "", "file with the key of engines and routers that want one (--api-key or --admin-api-key)")
	f.IntVar(&o.limits.Tunnels, "max-connections", o.limits.Tunnels, "pods that are asked at once")
	f.DurationVar(&o.limits.Timeout, "pod-timeout", o.limits.Timeout, "longest wait for an answer of a pod")
	for flag, complete := range map[string]func(context.Context, *plugin.Plugin) ([]string, error){
		"namespace": func(ctx context.Context, p *plugin.Plugin) ([]string, error) { return p.Namespaces(ctx) },
		"output": func(context.Context, *plugin.Plugin) ([]string, error) {
			var values []string
			for _, value := range plugin.Outputs() {
				values = append(values, string(value))
			}
			return values, nil
		},
	} {
		if err := root.RegisterFlagCompletionFunc(flag, o.complete(complete)); err != nil {
			panic(err) // the flag is not there: a mistake of this file
		}
	}
	root.AddCommand(statusCommand(o), topCommand(o), ranksCommand(o), diagnoseCommand(o), traceCommand(o), logsCommand(o), scaleCommand(o), rolloutCommand(o))
	for _, c := range root.Commands() {
		c.SetFlagErrorFunc(root.FlagErrorFunc())
	}
	return root
}

// connect makes the plugin that the flags ask for.
func (o *options) connect() (*plugin.Plugin, error) {
	output, err := plugin.ParseOutput(o.output)
	if err != nil {
		return nil, err
	}
	switch {
	case o.limits.Tunnels < 1 || o.limits.Tunnels > 256:
		return nil, fmt.Errorf("--max-connections is %d: give 1 to 256", o.limits.Tunnels)
	case o.limits.Timeout <= 0:
		return nil, fmt.Errorf("--pod-timeout is %s: give more than 0s", o.limits.Timeout)
	}
	key := ""
	if o.keyFile != "" {
		text, err := os.ReadFile(o.keyFile)
		if err != nil {
			return nil, fmt.Errorf("read --api-key-file: %w", err)
		}
		if key = strings.TrimSpace(string(text)); key == "" || strings.ContainsAny(key, "\r\n") {
			return nil, fmt.Errorf("--api-key-file %s: want one line with the key", o.keyFile)
		}
	}
	c, err := cluster.Connect(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.loading, &o.overrides))
	if err != nil {
		return nil, err
	}
	pods, err := reach.New(c.Config, key, o.limits)
	if err != nil {
		return nil, err
	}
	file, isFile := o.out.(*os.File)
	return &plugin.Plugin{
		Cluster: c, Pods: pods, AllNamespaces: o.all, Output: output, Out: o.out, Err: o.err,
		Screen: isFile && term.IsTerminal(int(file.Fd())) && output != plugin.JSON, Now: time.Now, After: time.After,
	}, nil
}

// run makes what cobra calls of a function of a command.
func (o *options) run(f func(context.Context, *plugin.Plugin, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		p, err := o.connect()
		if err != nil {
			return err
		}
		if err := f(c.Context(), p, args); err != nil {
			if c.Context().Err() != nil {
				return c.Context().Err()
			}
			return err
		}
		return nil
	}
}

// arguments says how many arguments a command takes, by their names.
func arguments(least int, names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= len(names) {
			return nil
		}
		if len(args) < least {
			return fmt.Errorf("give %s: %s", names[len(args)], c.UseLine())
		}
		return fmt.Errorf("%q is too much: %s", args[len(names)], c.UseLine())
	}
}

func one(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

func (o *options) allFlag(c *cobra.Command) {
	c.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "show the services of all namespaces")
}

func statusCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "status [SERVICE]",
		Short: "Show services as trees: pools, replicas and ranks with their load, and conditions in words",
		Args:  arguments(0, "SERVICE"), ValidArgsFunction: o.completeService(false),
		RunE: o.run(func(ctx context.Context, p *plugin.Plugin, args []string) error { return p.Status(ctx, one(args, 0)) }),
	}
	o.allFlag(c)
	return c
}

func ranksCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "ranks SERVICE",
		Short: "Show every rank of a service with its load",
		Args:  arguments(1, "SERVICE"), ValidArgsFunction: o.completeService(false),
		RunE: o.run(func(ctx context.Context, p *plugin.Plugin, args []string) error { return p.Ranks(ctx, args[0]) }),
	}
}

func topCommand(o *options) *cobra.Command {
	var top plugin.TopOptions
	c := &cobra.Command{
		Use:   "top [SERVICE]",
		Short: "Show the load of pools or ranks, again and again",
		Args:  arguments(0, "SERVICE"), ValidArgsFunction: o.completeService(false),
		RunE: o.run(func(ctx context.Context, p *plugin.Plugin, args []string) error { return p.Top(ctx, one(args, 0), top) }),
	}
	f := c.Flags()
	f.BoolVar(&top.Once, "once", false, "show it once")
	f.DurationVar(&top.Interval, "interval", 2*time.Second, "time between two tables")
	f.StringVar(&top.Sort, "sort", view.SortKeys()[0], "what to sort by: "+strings.Join(view.SortKeys(), ", "))
	f.BoolVar(&top.ByRank, "by-rank", false, "a row for each rank instead of each pool")
	o.allFlag(c)
	mustComplete(c, "sort", view.SortKeys())
	return c
}

func mustComplete(c *cobra.Command, flag string, values []string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is not there: a mistake of this file
	}
}

func diagnoseCommand(o *options) *cobra.Command {
	var d plugin.DiagnoseOptions
	c := &cobra.Command{
		Use:   "diagnose SERVICE",
		Short: "Look at a service for a while and say what is behind a complaint, with the numbers",
		Args:  arguments(1, "SERVICE"), ValidArgsFunction: o.completeService(false),
		RunE: o.run(func(ctx context.Context, p *plugin.Plugin, args []string) error { return p.Diagnose(ctx, args[0], d) }),
	}
	f := c.Flags()
	f.DurationVar(&d.Interval, "interval", 10*time.Second, "how long to look")
	f.IntVar(&d.Polls, "polls", 10, "how often to ask for the load meanwhile")
	f.BoolVar(&d.All, "all", false, "show every number that was looked at; -o wide does too")
	return c
}

func traceCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "trace RID [SERVICE]",
		Short: "Show one request in the router, the prefill and the decode engine, as a waterfall",
		Args:  arguments(1, "RID", "SERVICE"),
		ValidArgsFunction: func(c *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
			if len(args) != 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return o.completeService(false)(c, nil, text)
		},
		RunE: o.run(func(ctx context.Context, p *plugin.Plugin, args []string) error {
			return p.Trace(ctx, args[0], one(args, 1))
		}),
	}
}

func logsCommand(o *options) *cobra.Command {
	var l plugin.LogOptions
	var since time.Duration
	c := &cobra.Command{
		Use:   "logs SERVICE [POOL]",
		Short: "Show the logs of a service's engines together, each line after the name of its pod",
		Args:  arguments(1, "SERVICE", "POOL"), ValidArgsFunction: o.completeService(true),
		RunE: o.run(func(ctx context.Context, p *plugin.Plugin, args []string) error {
			if since > 0 {
				l.Since = max(1, int64(since.Seconds()))
			}
			return p.Logs(ctx, args[0], one(args, 1), l)
		}),
	}
	f := c.Flags()
	f.BoolVarP(&l.Follow, "follow", "f", false, "go on with what is written from now on")
	f.Int64Var(&l.Tail, "tail", -1, "last lines of each pod; -1: all")
	f.DurationVar(&since, "since", 0, "only what was written that long ago or later; 0s: all")
	f.BoolVar(&l.Router, "router", false, "the router's logs too")
	return c
}

func scaleCommand(o *options) *cobra.Command {
	c := &cobra.Command{Use: "scale", Short: "Explain the number of replicas"}
	c.AddCommand(&cobra.Command{
		Use:   "explain SERVICE [POOL]",
		Short: "Show the arithmetic behind the number of replicas: the autoscaler's newest values and the last decisions",
		Args:  arguments(1, "SERVICE", "POOL"), ValidArgsFunction: o.completeService(true),
		RunE: o.run(func(ctx context.Context, p *plugin.Plugin, args []string) error {
			return p.ScaleExplain(ctx, args[0], one(args, 1))
		}),
	})
	return c
}

func rolloutCommand(o *options) *cobra.Command {
	root := &cobra.Command{Use: "rollout", Short: "Follow, hold, go on with and undo changes of a service"}
	sub := func(use, short string, run func(context.Context, *plugin.Plugin, []string) error) *cobra.Command {
		c := &cobra.Command{Use: use + " SERVICE", Short: short, Args: arguments(1, "SERVICE"), ValidArgsFunction: o.completeService(false), RunE: o.run(run)}
		root.AddCommand(c)
		return c
	}
	status := plugin.RolloutOptions{Interval: 2 * time.Second}
	c := sub("status", "Show how far the roll-out is", func(ctx context.Context, p *plugin.Plugin, args []string) error {
		return p.RolloutStatus(ctx, args[0], status)
	})
	c.Flags().BoolVar(&status.Wait, "wait", false, "wait until it is done")
	c.Flags().DurationVar(&status.Timeout, "timeout", 10*time.Minute, "longest wait, after which it is an error")
	sub("history", "List the revisions that the service can go back to", func(ctx context.Context, p *plugin.Plugin, args []string) error {
		return p.RolloutHistory(ctx, args[0])
	})
	sub("pause", "Hold changes of model, engine and shapes, and a roll-out that is under way", func(ctx context.Context, p *plugin.Plugin, args []string) error {
		return p.RolloutPause(ctx, args[0], true)
	})
	sub("resume", "Let roll-outs go on", func(ctx context.Context, p *plugin.Plugin, args []string) error {
		return p.RolloutPause(ctx, args[0], false)
	})
	var revision int64
	c = sub("undo", "Make the service what it was before its newest change", func(ctx context.Context, p *plugin.Plugin, args []string) error {
		return p.RolloutUndo(ctx, args[0], revision)
	})
	c.Flags().Int64Var(&revision, "to-revision", 0, "revision to go back to, of rollout history; 0: the one before")
	return root
}
