package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/version"
	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/proxy"
)

// The variables that have the keys where no flag does: arguments of a process can be read by others.
const (
	keyVariable      = "SLUICE_ROUTER_API_KEY"
	adminKeyVariable = "SLUICE_ROUTER_ADMIN_API_KEY"
)

// options are the flags.
type options struct {
	host string
	port int

	service, namespace, kubeconfig string
	prefill, decode, worker        []string
	healthInterval                 time.Duration

	policy       string
	quarantine   time.Duration
	maxWaiting   int
	wake         time.Duration
	drainAccept  time.Duration
	drainTimeout time.Duration
	proxy        proxy.Config

	listening func(net.Addr) // called once, when requests are taken
}

func command(log *slog.Logger) *cobra.Command {
	o := options{listening: func(a net.Addr) { log.Info("the router listens", "address", a.String()) }}
	c := &cobra.Command{
		Use:   "sluice-router",
		Short: "Pair prefill with decode engines and stream their answers",
		Long: "sluice-router sends each request to a prefill and a decode engine, which hand over the prompt's KV, and streams the\n" +
			"decode engine's answer. Engines are the pods of --service in --namespace, or those given by --prefill, --decode\n" +
			"and --worker. Unified engines (--worker) answer alone.",
		Args:          cobra.NoArgs,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			o.keys(os.Getenv)
			return run(c.Context(), o, log)
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, c.CommandPath())
	})
	f := c.Flags()
	f.StringVar(&o.host, "host", "127.0.0.1", "address to listen on")
	f.IntVar(&o.port, "port", v1alpha1.DefaultRouterPort, "port to listen on; 0 takes a free one, which is logged")
	f.StringVar(&o.service, "service", "", "InferenceService whose engine pods get the requests")
	f.StringVar(&o.namespace, "namespace", "", "namespace of the engine pods; by default that of the router's own service account")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; by default the pod's service account, then $KUBECONFIG")
	f.StringArrayVar(&o.prefill, "prefill", nil, "prefill engine without Kubernetes: http://host:port,bootstrapPort (repeatable)")
	f.StringArrayVar(&o.decode, "decode", nil, "decode engine without Kubernetes: http://host:port (repeatable)")
	f.StringArrayVar(&o.worker, "worker", nil, "unified engine without Kubernetes: http://host:port (repeatable)")
	f.DurationVar(&o.healthInterval, "health-interval", 2*time.Second, "time between two health checks of an engine given by flags")
	f.StringVar(&o.policy, "policy", "least-load", "how engines are picked: least-load or round-robin")
	f.IntVar(&o.proxy.MaxRetries, "max-retries", 2, "other pairs that are tried before the first byte")
	f.DurationVar(&o.proxy.QueueTimeout, "queue-timeout", 5*time.Second, "wait of a request for a usable engine")
	f.IntVar(&o.maxWaiting, "max-waiting", 4096, "requests that may wait for a usable engine at once")
	f.DurationVar(&o.wake, "wake-timeout", 0, "wait of a request while prefill and decode, or unified, have no ready engine at all: for pools that may be empty; 0: --queue-timeout")
	f.DurationVar(&o.proxy.RequestTimeout, "request-timeout", 30*time.Minute, "longest time of a request; 0: no limit")
	f.DurationVar(&o.proxy.ReadTimeout, "read-timeout", time.Minute, "longest time until a client has sent its body")
	f.DurationVar(&o.proxy.WriteTimeout, "write-timeout", time.Minute, "longest time until a client takes a piece of its answer")
	f.DurationVar(&o.proxy.DialTimeout, "dial-timeout", 2*time.Second, "longest time until an engine accepts a connection")
	f.StringVar(&o.proxy.APIKey, "api-key", "", "key that clients must send as a bearer token, by default $"+keyVariable+"; health and metrics stay open")
	f.StringVar(&o.proxy.AdminAPIKey, "admin-api-key", "", "key for /workers and /debug/requests, by default $"+adminKeyVariable+", then the API key")
	f.IntVar(&o.proxy.DebugRequests, "debug-requests", 1024, "ended requests whose times and engines /debug/requests has; 0: none")
	f.Int64Var(&o.proxy.MaxBodyBytes, "max-body-bytes", 8<<20, "largest body of a request")
	f.DurationVar(&o.quarantine, "quarantine", time.Second, "time without requests for an engine that failed; doubles with each failure in a row")
	f.DurationVar(&o.drainAccept, "drain-accept", 2*time.Second, "after SIGTERM, time in which new requests are still served while /health says 503")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 5*time.Minute, "after SIGTERM, longest time for requests to finish")
	return c
}

// keys takes the keys that no flag gives from the environment. They are not the flags' defaults, which --help shows.
func (o *options) keys(getenv func(string) string) {
	o.proxy.APIKey = cmp.Or(o.proxy.APIKey, getenv(keyVariable))
	o.proxy.AdminAPIKey = cmp.Or(o.proxy.AdminAPIKey, getenv(adminKeyVariable))
}

// validate names the first flag of the process itself that is wrong; the others are checked by what they are for.
func (o options) validate() error {
	switch {
	case o.port < 0 || o.port > 65535:
		return fmt.Errorf("--port is %d: give a port from 1 to 65535, or 0 for a free one", o.port)
	case o.drainAccept < 0:
		return fmt.Errorf("--drain-accept is %v: give 0s or more", o.drainAccept)
	case o.drainTimeout < 0:
		return fmt.Errorf("--drain-timeout is %v: give 0s or more", o.drainTimeout)
	}
	return nil
}

// source makes the discovery that the flags ask for.
func (o options) source() (discovery.Source, error) {
	static := len(o.prefill) + len(o.decode) + len(o.worker)
	switch {
	case static > 0 && o.service != "":
		return nil, fmt.Errorf("--service finds engines by itself: leave out --prefill, --decode and --worker, or leave out --service")
	case static > 0:
		return o.static()
	case o.service == "":
		return nil, fmt.Errorf("no engines: give --service and --namespace, or --prefill and --decode, or --worker")
	}
	config, namespace, err := o.kubernetes()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(config, "sluice-router"))
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return discovery.NewPods(client, namespace, o.service)
}

func (o options) kubernetes() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig() // the pod's service account when there is no kubeconfig
	if err != nil {
		return nil, "", fmt.Errorf("find the Kubernetes API (--kubeconfig): %w", err)
	}
	if o.namespace != "" {
		return config, o.namespace, nil
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("find the namespace (--namespace): %w", err)
	}
	return config, namespace, nil
}

func (o options) static() (discovery.Source, error) {
	if (len(o.prefill) == 0) != (len(o.decode) == 0) {
		return nil, fmt.Errorf("--prefill and --decode belong together: give at least one of each")
	}
	var engines []discovery.Engine
	for _, group := range []struct {
		flag   string
		role   discovery.Role
		values []string
	}{{"--prefill", discovery.Prefill, o.prefill}, {"--decode", discovery.Decode, o.decode}, {"--worker", discovery.Unified, o.worker}} {
		for _, value := range group.values {
			e, err := discovery.ParseStatic(group.role, value, v1alpha1.DefaultBootstrapPort)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", group.flag, err)
			}
			engines = append(engines, e)
		}
	}
	return discovery.NewStatic(engines, o.healthInterval)
}
