// Command sluice-operator turns InferenceServices into engine pods, routers, monitors and scaling. It holds flags and
// signals only; package controllers does the work.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sluice-dev/sluice/controllers"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/monitoring/dashboards"
	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-operator:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var (
		operator   controllers.Config
		disableAPI bool
		shown      = dashboards.DefaultOptions()
		showNone   bool
		logLevel   string
		kubeconfig string
	)
	root := &cobra.Command{
		Use:           "sluice-operator",
		Short:         "Run large language models on Kubernetes from InferenceServices",
		Version:       version.Version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			var level slog.Level
			if err := level.UnmarshalText([]byte(logLevel)); err != nil {
				return fmt.Errorf("--log-level %q: give debug, info, warn or error", logLevel)
			}
			log := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			ctrl.SetLogger(log)
			klog.SetLogger(log.WithName("client-go"))
			operator.Log, operator.Clock, operator.Registry = log, clock.RealClock{}, metrics.Registry
			operator.MetricsAPI = !disableAPI
			if !showNone {
				shown.Docs = operator.Rules.Runbooks
				operator.Dashboards = &shown
			}
			if err := operator.Validate(); err != nil {
				return err
			}
			if kubeconfig != "" {
				if err := os.Setenv("KUBECONFIG", kubeconfig); err != nil {
					return fmt.Errorf("use --kubeconfig %s: %w", kubeconfig, err)
				}
			}
			restConfig, err := config.GetConfig()
			if err != nil {
				return fmt.Errorf("find the cluster: %w; run in a pod or give --kubeconfig", err)
			}
			log.Info("Start", "version", version.Version, "engineImage", operator.EngineImage, "routerImage", operator.RouterImage)
			return controllers.Run(c.Context(), restConfig, operator)
		},
	}
	flags := root.Flags()
	flags.StringVar(&operator.EngineImage, "engine-image", "", "image of sluice-engine for services that name none")
	flags.StringVar(&operator.RouterImage, "router-image", "", "image of sluice-router for services that name none")
	flags.BoolVar(&operator.AllowHostAccess, "allow-host-access", false, "let engine pods reach into their nodes: model.uri hostpath://, and host paths, host networks and privileges in templates")
	flags.StringVar(&operator.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the operator; by default $POD_NAMESPACE")
	flags.StringSliceVar(&operator.WatchNamespaces, "watch-namespaces", nil, "namespaces to work in; by default all")
	flags.StringVar(&operator.MetricsAddress, "metrics-bind-address", ":8080", "address of the operator's own metrics; 0 turns them off")
	flags.StringVar(&operator.ProbeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 turns them off")
	flags.BoolVar(&operator.LeaderElect, "leader-elect", false, "let only one of several operators work")
	flags.DurationVar(&operator.ObserveInterval, "observe-interval", 2*time.Second, "time between two polls of an engine's load")
	flags.DurationVar(&operator.ScrapeInterval, "scrape-interval", 15*time.Second, "time between two scrapes of an engine by the operator, as the proof that its metrics are there; 0 turns them off")
	flags.StringVar(&operator.Prometheus.BearerTokenFile, "prometheus-bearer-token-file", "", "file with a token for --prometheus-url")
	flags.StringVar(&operator.Prometheus.CAFile, "prometheus-ca-file", "", "file with the certificates of authorities that --prometheus-url may have its own from")
	flags.BoolVar(&disableAPI, "disable-metrics-api", false, "do not serve custom.metrics.k8s.io")
	flags.BoolVar(&operator.MetricsAPIExternal, "metrics-api-external", false, "serve external.metrics.k8s.io too, beside custom.metrics.k8s.io")
	flags.IntVar(&operator.MetricsAPIPort, "metrics-api-port", 6443, "port of custom.metrics.k8s.io")
	flags.StringVar(&operator.MetricsAPIService, "metrics-api-service", "sluice-metrics-api", "Service of custom.metrics.k8s.io in the operator's namespace")
	flags.StringVar(&operator.MetricsAPISecret, "metrics-api-secret", "sluice-metrics-api", "Secret for the certificate of custom.metrics.k8s.io in the operator's namespace")
	flags.StringVar(&operator.PrometheusURL, "prometheus-url", "", "base URL of the cluster's Prometheus, for example http://prometheus.monitoring:9090: KEDA's triggers ask it, and the operator proves that the engines' metrics are stored there")
	flags.StringToStringVar(&operator.Monitors.Labels, "monitor-labels", nil, "labels to add to monitors, for example release=prometheus")
	flags.StringVar(&operator.Monitors.Interval, "monitor-interval", monitoring.DefaultInterval, "time between two scrapes, where a service says none")
	flags.StringToStringVar(&operator.Rules.Labels, "rule-labels", nil, "labels to add to PrometheusRules, for example release=prometheus")
	flags.StringVar(&operator.Rules.Runbooks, "runbook-url", rules.DefaultRunbooks, "URL under which the pages of docs/ are, for the links of alerts and dashboards")
	flags.BoolVar(&showNone, "disable-dashboards", false, "make no dashboards for tenants")
	flags.StringToStringVar(&shown.Labels, "dashboard-labels", shown.Labels, "labels of ConfigMaps with dashboards, by which Grafana's sidecar finds them")
	flags.StringVar(&shown.FolderAnnotation, "dashboard-folder-annotation", shown.FolderAnnotation, "annotation by which Grafana's sidecar finds a dashboard's folder")
	flags.StringVar(&shown.Datasource, "dashboard-datasource", "", "uid of the Prometheus data source of dashboards; by default the reader chooses")
	flags.StringToStringVar(&shown.Instances, "dashboard-instances", shown.Instances, "labels of the Grafanas to which grafana-operator gives the dashboards")
	flags.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; by default that of the pod, or $KUBECONFIG")
	refuseRepeated(flags)
	return root
}
