// Command devcluster runs a real one-node Kubernetes on this Linux host, built from source, without a container
// engine. See "go run ./hack/devcluster --help".
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
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sluice-dev/sluice/hack/devcluster/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A shell that was not a login shell may lack the folders of iptables and its like.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		os.Exit(1)
	}
	if err := command(os.Stdout, os.Stderr, os.Getenv("KUBECONFIG")).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		os.Exit(1)
	}
}

const help = `A real one-node Kubernetes on this Linux host: etcd, kube-apiserver, kube-controller-manager,
kube-scheduler, containerd, kubelet, kube-proxy and CoreDNS, built once from their Go modules into the cache
($SLUICE_CACHE, else the user's cache folder plus sluice); runc, the CNI plugins and iptables come from
Debian packages, which "up" installs where they are missing. It needs root.

With KUBECONFIG set to another cluster's file, that cluster is used: "up" only checks that it answers,
"down" leaves it alone, "kubeconfig" prints the variable, and "load-image" explains why it cannot help.

The autoscaler of this cluster looks every 5 s and scales in after 15 s.`

// run is one run of the program.
type run struct {
	stdout, stderr io.Writer
	options        cluster.Options
	kubeconfig     string
}

// command returns the command line. kubeconfig is the value of KUBECONFIG.
func command(stdout, stderr io.Writer, kubeconfig string) *cobra.Command {
	r := &run{stdout: stdout, stderr: stderr, kubeconfig: kubeconfig, options: cluster.Options{Log: stderr}}
	root := &cobra.Command{
		Use: "devcluster", Short: "A real one-node Kubernetes on this host", Long: help,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	name := os.Getenv("SLUICE_DEVCLUSTER_NAME")
	if name == "" {
		name = cluster.DefaultName
	}
	base := os.Getenv("SLUICE_DEVCLUSTER_DIR")
	if base == "" {
		base = cluster.DefaultBase
	}
	root.PersistentFlags().StringVar(&r.options.Name, "name", name, "the cluster's name ($SLUICE_DEVCLUSTER_NAME)")
	root.PersistentFlags().StringVar(&r.options.Base, "dir", base, "folder of the clusters' folders ($SLUICE_DEVCLUSTER_DIR)")

	down := &cobra.Command{Use: "down", Short: "Remove the cluster and every trace of it", Args: cobra.NoArgs}
	force := down.Flags().Bool("force", false, "work without the cluster's records: take every iptables chain of Kubernetes for the cluster's")
	down.RunE = func(cmd *cobra.Command, _ []string) error { return r.down(cmd.Context(), *force) }

	status := &cobra.Command{Use: "status", Short: "Say what runs and whether the cluster can be used", Args: cobra.NoArgs}
	leaks := status.Flags().Bool("leaks", false, "list every trace on the host instead; fail if the cluster was removed and there is one")
	status.RunE = func(cmd *cobra.Command, _ []string) error {
		if *leaks {
			return r.leaks(cmd.Context())
		}
		return r.status(cmd.Context())
	}
	root.AddCommand(
		&cobra.Command{
			Use: "up", Short: "Start the cluster, or repair it; seconds if it runs", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return r.up(cmd.Context()) },
		},
		down, status,
		&cobra.Command{
			Use: "load-image FILE.tar...", Short: "Import images into the node", Args: cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return r.loadImages(cmd.Context(), args) },
		},
		&cobra.Command{
			Use: "kubeconfig", Short: "Print the path of the administrator's kubeconfig", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return r.printKubeconfig() },
		},
	)
	return root
}

// open returns the dev cluster, and the other cluster that KUBECONFIG names, if any.
func (r *run) open() (*cluster.Cluster, *cluster.External, error) {
	own, err := cluster.New(r.options)
	if err != nil {
		return nil, nil, err
	}
	external, err := own.FindExternal(r.kubeconfig)
	return own, external, err
}

func (r *run) up(ctx context.Context) error {
	own, external, err := r.open()
	if err != nil {
		return err
	}
	if external == nil {
		return own.Up(ctx)
	}
	if err := external.Check(ctx); err != nil {
		return err
	}
	fmt.Fprintf(r.stderr, "KUBECONFIG=%s is set: using its cluster at %s; nothing was started\n", external.Kubeconfig, external.Server)
	return nil
}

func (r *run) down(ctx context.Context, force bool) error {
	own, external, err := r.open()
	if err != nil {
		return err
	}
	if external != nil {
		fmt.Fprintf(r.stderr, "KUBECONFIG=%s is set: its cluster at %s is left alone; unset it to remove the dev cluster\n", external.Kubeconfig, external.Server)
		return nil
	}
	return own.Down(ctx, force)
}

func (r *run) status(ctx context.Context) error {
	own, external, err := r.open()
	if err != nil {
		return err
	}
	if external != nil {
		if err := external.Check(ctx); err != nil {
			return err
		}
		fmt.Fprintf(r.stdout, "KUBECONFIG=%s: its cluster at %s answers\n", external.Kubeconfig, external.Server)
		return nil
	}
	status, err := own.Status(ctx)
	if err != nil {
		return err
	}
	if !status.Exists {
		return errors.New("the cluster does not exist: make it with up")
	}
	table := tabwriter.NewWriter(r.stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "PROGRAM\tPROCESS\tLOG")
	for _, program := range status.Programs {
		process := "-"
		if program.PID != 0 {
			process = fmt.Sprint(program.PID)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", program.Name, process, program.Log)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if status.Unready != nil {
		return fmt.Errorf("the cluster cannot be used: %w; repair it with up", status.Unready)
	}
	fmt.Fprintf(r.stdout, "ready; KUBECONFIG=%s\n", own.KubeconfigPath())
	return nil
}

func (r *run) leaks(ctx context.Context) error {
	own, err := cluster.New(r.options)
	if err != nil {
		return err
	}
	status, err := own.Status(ctx)
	if err != nil {
		return err
	}
	left, err := own.Leaks(ctx)
	if err != nil {
		return err
	}
	for _, line := range left {
		fmt.Fprintln(r.stdout, line)
	}
	if len(left) > 0 && !status.Exists {
		return fmt.Errorf("%d traces of a cluster that does not exist: remove them with down --force", len(left))
	}
	return nil
}

func (r *run) loadImages(ctx context.Context, paths []string) error {
	own, external, err := r.open()
	if err != nil {
		return err
	}
	if external != nil {
		return fmt.Errorf("KUBECONFIG=%s is set: how images get into its cluster at %s is that cluster's affair (a registry, or its own load command); files: %s",
			external.Kubeconfig, external.Server, strings.Join(paths, ", "))
	}
	for _, path := range paths {
		if err := own.LoadImage(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) printKubeconfig() error {
	own, external, err := r.open()
	if err != nil {
		return err
	}
	path := own.KubeconfigPath()
	if external != nil {
		path = external.Kubeconfig
	}
	_, err = fmt.Fprintln(r.stdout, path)
	return err
}
