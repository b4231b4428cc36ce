package controllers

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/autoscaling"
	"github.com/sluice-dev/sluice/controllers/enginepool"
	"github.com/sluice-dev/sluice/controllers/inferenceservice"
	"github.com/sluice-dev/sluice/controllers/metrics"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/monitoring/dashboards"
	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/internal/scrapers"
)

// +kubebuilder:rbac:groups=apiregistration.k8s.io,resources=apiservices,resourceNames=v1beta1.custom.metrics.k8s.io;v1beta2.custom.metrics.k8s.io;v1beta1.external.metrics.k8s.io,verbs=get;patch

// leaderElectionID names the Lease of the leader.
const leaderElectionID = "sluice-operator.inference.sluice.dev"

// Config is everything that the operator is started with.
type Config struct {
	// EngineImage and RouterImage are for services that name none.
	EngineImage string
	RouterImage string
	// AllowHostAccess lets services read directories of their nodes (hostpath://) and have templates that reach into them.
	AllowHostAccess bool

	// Namespace of the operator: of its Lease, and of the Secret and Service of the metrics API.
	Namespace string
	// WatchNamespaces limits the operator to these; empty means all.
	WatchNamespaces []string

	// MetricsAddress serves the operator's own metrics, ProbeAddress its health; "0" turns one off.
	MetricsAddress string
	ProbeAddress   string
	LeaderElect    bool

	// ObserveInterval is the time between two polls of an engine.
	ObserveInterval time.Duration

	// ScrapeInterval is the time between two scrapes of an engine by the operator, as the proof that its metrics are there; 0
	// turns them off. Where PrometheusURL is set, Prometheus is asked too; the token and the authorities are those of Prometheus.
	ScrapeInterval time.Duration
	Prometheus     observe.PrometheusConfig

	// MetricsAPI turns the custom metrics API on, MetricsAPIExternal the external one beside it.
	MetricsAPI         bool
	MetricsAPIExternal bool
	MetricsAPIPort     int
	MetricsAPIService  string
	MetricsAPISecret   string

	// PrometheusURL is the base URL of the cluster's Prometheus, for KEDA's triggers and the proof that metrics
	// are stored; empty where there is none.
	PrometheusURL string

	// Monitors are the installation's part of monitors.
	Monitors monitoring.Options
	// Rules are the installation's part of recording rules and alerts.
	Rules rules.Options
	// Dashboards are the installation's part of tenants' dashboards; nil makes none.
	Dashboards *dashboards.Options

	Log   logr.Logger
	Clock clock.Clock
	// Registry takes the operator's own series.
	Registry prometheus.Registerer
}

// Validate names the field that cannot be, with the remedy.
func (c Config) Validate() error {
	var faults []error
	need := func(value, flag, example string) {
		if value == "" {
			faults = append(faults, fmt.Errorf("%s is empty; give one, for example %s", flag, example))
		}
	}
	need(c.EngineImage, "--engine-image", "registry.example/sluice-engine:v1")
	need(c.RouterImage, "--router-image", "registry.example/sluice-router:v1")
	for i, namespace := range c.WatchNamespaces {
		switch {
		case namespace == "": // which would be all
			faults = append(faults, errors.New("--watch-namespaces has an empty name; give names with commas between, or leave it out for all namespaces"))
		case slices.Contains(c.WatchNamespaces[:i], namespace):
			faults = append(faults, fmt.Errorf("--watch-namespaces has %q twice; name it once", namespace))
		}
	}
	if c.LeaderElect || c.MetricsAPI {
		need(c.Namespace, "--namespace", "sluice-system (by default $POD_NAMESPACE)")
	}
	if c.ObserveInterval < 100*time.Millisecond || c.ObserveInterval > time.Minute {
		faults = append(faults, fmt.Errorf("--observe-interval %s is out of range; give 100ms to 1m, for example 2s", c.ObserveInterval))
	}
	if c.ScrapeInterval != 0 && (c.ScrapeInterval < time.Second || c.ScrapeInterval > 5*time.Minute) {
		faults = append(faults, fmt.Errorf("--scrape-interval %s is out of range; give 1s to 5m, for example 15s, or 0", c.ScrapeInterval))
	}
	if c.MetricsAPI {
		need(c.MetricsAPIService, "--metrics-api-service", "sluice-metrics-api")
		need(c.MetricsAPISecret, "--metrics-api-secret", "sluice-metrics-api")
		if c.MetricsAPIPort < 1 || c.MetricsAPIPort > 65535 {
			faults = append(faults, fmt.Errorf("--metrics-api-port %d is no port; give 1 to 65535, for example 6443", c.MetricsAPIPort))
		}
	}
	if u, err := url.Parse(c.PrometheusURL); c.PrometheusURL != "" && (err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
		faults = append(faults, fmt.Errorf("--prometheus-url %q is no URL; give for example http://prometheus.monitoring:9090", c.PrometheusURL))
	}
	return errors.Join(faults...)
}

// NewScheme holds the types that the operator reads and writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	return scheme, nil
}

// NewManager puts the operator together. Start runs it.
func NewManager(restConfig *rest.Config, operator Config) (manager.Manager, error) {
	if err := operator.Validate(); err != nil {
		return nil, err
	}
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}
	restConfig = rest.CopyConfig(restConfig)
	restConfig.UserAgent = "sluice-operator"
	// The API server has priority and fairness; the client's own limit would only add delay.
	restConfig.QPS = -1
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:                        scheme,
		Logger:                        operator.Log,
		Cache:                         cacheOptions(operator.WatchNamespaces),
		Metrics:                       metricsserver.Options{BindAddress: operator.MetricsAddress, FilterProvider: limitScrapes},
		HealthProbeBindAddress:        operator.ProbeAddress,
		LeaderElection:                operator.LeaderElect,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       operator.Namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       new(20 * time.Second),
		Controller:                    config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	counts, err := addMetrics(mgr, operator)
	if err != nil {
		return nil, err
	}
	store, err := addPoller(mgr, operator)
	if err != nil {
		return nil, err
	}
	ready := healthz.Ping
	if operator.MetricsAPI {
		if ready, err = addMetricsAPI(mgr, restConfig, operator, store); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ready", ready)); err != nil {
		return nil, fmt.Errorf("add health checks: %w", err)
	}
	proofs, err := addScraper(mgr, operator)
	if err != nil {
		return nil, err
	}
	return mgr, errors.Join(addWaker(mgr, operator, store, counts), addControllers(mgr, restConfig, operator, store, proofs, counts))
}

// addMetrics registers the operator's own series that no other part makes.
func addMetrics(mgr manager.Manager, operator Config) (*metrics.Metrics, error) {
	counts, err := metrics.New(operator.Registry)
	if err != nil {
		return nil, err
	}
	return counts, metrics.RegisterObjects(operator.Registry, metrics.ObjectsConfig{
		Reader: mgr.GetClient(), Elected: mgr.Elected(), Log: operator.Log.WithName("metrics"),
	})
}

// cacheOptions keep only what is ours in memory.
func cacheOptions(namespaces []string) cache.Options {
	// Both values are constants, so the requirement is right.
	engineOrRouter, _ := labels.NewRequirement(v1alpha1.LabelComponent, selection.In, []string{v1alpha1.ComponentEngine, v1alpha1.ComponentRouter})
	managed := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{"app.kubernetes.io/managed-by": "sluice-operator"})}
	ours := cache.ByObject{Label: labels.NewSelector().Add(*engineOrRouter)}
	options := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}:                      managed,
			&corev1.Pod{}:                            ours,
			&corev1.Service{}:                        managed,
			&corev1.ServiceAccount{}:                 managed,
			&rbacv1.Role{}:                           managed,
			&rbacv1.RoleBinding{}:                    managed,
			&appsv1.Deployment{}:                     managed,
			&autoscalingv2.HorizontalPodAutoscaler{}: managed,
		},
	}
	if len(namespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{}
		for _, namespace := range namespaces {
			options.DefaultNamespaces[namespace] = cache.Config{}
		}
	}
	return options
}

func addPoller(mgr manager.Manager, operator Config) (*observe.Store, error) {
	store := observe.NewStore(operator.Clock, operator.ObserveInterval)
	series, err := observe.NewMetrics(operator.Registry, store, operator.Clock)
	if err != nil {
		return nil, fmt.Errorf("register the poller's series: %w", err)
	}
	poller, err := observe.NewPoller(observe.PollerConfig{
		Interval: operator.ObserveInterval,
		Pods:     mgr.GetClient(),
		Latency:  latencyPools(mgr.GetClient(), operator.MetricsAPI && operator.MetricsAPIExternal),
		Store:    store,
		Metrics:  series,
		Clock:    operator.Clock,
		Random:   mathrand.Float64,
		Log:      operator.Log.WithName("observe"),
	})
	if err != nil {
		return nil, fmt.Errorf("make the poller: %w", err)
	}
	if err := mgr.Add(poller); err != nil {
		return nil, fmt.Errorf("add the poller: %w", err)
	}
	return store, nil
}

// addScraper adds what proves that metrics arrive; nil when that is off.
func addScraper(mgr manager.Manager, operator Config) (*observe.Proofs, error) {
	if operator.ScrapeInterval == 0 {
		return nil, nil
	}
	proofs := observe.NewProofs(operator.Clock, operator.ScrapeInterval)
	series, err := observe.NewProofMetrics(operator.Registry, proofs)
	if err != nil {
		return nil, fmt.Errorf("register the proof's series: %w", err)
	}
	config := observe.ScraperConfig{
		Interval: operator.ScrapeInterval,
		Pods:     mgr.GetClient(),
		Proofs:   proofs,
		Metrics:  series,
		Clock:    operator.Clock,
		Random:   mathrand.Float64,
		Log:      operator.Log.WithName("proof"),
	}
	if operator.PrometheusURL != "" {
		operator.Prometheus.URL = operator.PrometheusURL
		if config.Prometheus, err = observe.NewPrometheus(operator.Prometheus); err != nil {
			return nil, fmt.Errorf("make the client of Prometheus: %w", err)
		}
	}
	scraper, err := observe.NewScraper(config)
	if err != nil {
		return nil, fmt.Errorf("make the scraper: %w", err)
	}
	if err := mgr.Add(scraper); err != nil {
		return nil, fmt.Errorf("add the scraper: %w", err)
	}
	return proofs, nil
}

// latencyPools lists the pools that scale on latency; external: others may ask for it.
func latencyPools(pools client.Reader, external bool) func(context.Context) (map[types.NamespacedName]bool, error) {
	return func(ctx context.Context) (map[types.NamespacedName]bool, error) {
		var list v1alpha1.EnginePoolList
		if err := pools.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list EnginePools: %w", err)
		}
		latency := map[types.NamespacedName]bool{}
		for i := range list.Items {
			if autoscaling.ReadsLatency(&list.Items[i], external) {
				latency[client.ObjectKeyFromObject(&list.Items[i])] = true
			}
		}
		return latency, nil
	}
}

func addMetricsAPI(mgr manager.Manager, restConfig *rest.Config, operator Config, store *observe.Store) (healthz.Checker, error) {
	server, err := autoscaling.NewMetricsServer(autoscaling.MetricsServerConfig{
		REST:      restConfig,
		Pools:     mgr.GetClient(),
		Store:     store,
		Clock:     operator.Clock,
		Log:       operator.Log.WithName("metrics-api"),
		Port:      operator.MetricsAPIPort,
		External:  operator.MetricsAPIExternal,
		Namespace: operator.Namespace,
		Service:   operator.MetricsAPIService,
		Secret:    operator.MetricsAPISecret,
	})
	if err != nil {
		return nil, fmt.Errorf("make the metrics API: %w", err)
	}
	if err := server.RegisterMetrics(operator.Registry); err != nil {
		return nil, err
	}
	if err := mgr.Add(server); err != nil {
		return nil, fmt.Errorf("add the metrics API: %w", err)
	}
	return server.Ready, nil
}

// addWaker adds who moves pools between no replica and some.
func addWaker(mgr manager.Manager, operator Config, store *observe.Store, counts *metrics.Metrics) error {
	waker, err := autoscaling.NewWaker(autoscaling.WakerConfig{
		Client: mgr.GetClient(), Samples: store, Recorder: counts.Recorder(mgr.GetEventRecorder("autoscaling")), Clock: operator.Clock, Log: operator.Log.WithName("waker"),
	})
	if err != nil {
		return fmt.Errorf("make the waker: %w", err)
	}
	if err := mgr.Add(waker); err != nil {
		return fmt.Errorf("add the waker: %w", err)
	}
	return nil
}

func addControllers(mgr manager.Manager, restConfig *rest.Config, operator Config, store *observe.Store, proofs *observe.Proofs, counts *metrics.Metrics) error {
	heard := hearMonitoring(counts)
	monitors, err := monitoring.NewApplierForConfig(restConfig, monitoring.ApplierConfig{
		Resources:  []monitoring.Resource{monitoring.ServiceMonitors, monitoring.PodMonitors, monitoring.PrometheusRules, dashboards.Folders, dashboards.Dashboards},
		Namespaces: operator.WatchNamespaces,
		Clock:      operator.Clock,
		Log:        operator.Log.WithName("monitoring"),
		Heard:      heard,
	})
	if err != nil {
		return fmt.Errorf("make the monitors' applier: %w", err)
	}
	if err := mgr.Add(monitors); err != nil {
		return fmt.Errorf("add the monitors' applier: %w", err)
	}
	var shown *dashboards.Applier
	if operator.Dashboards != nil {
		shown = &dashboards.Applier{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Options: *operator.Dashboards}
	}
	scalers, err := monitoring.NewApplierForConfig(restConfig, monitoring.ApplierConfig{
		Resources:  []monitoring.Resource{enginepool.ScaledObjects},
		Namespaces: operator.WatchNamespaces,
		Clock:      operator.Clock,
		Log:        operator.Log.WithName("scalers"),
		Heard:      heard,
	})
	if err != nil {
		return fmt.Errorf("make the scalers' applier: %w", err)
	}
	if err := mgr.Add(scalers); err != nil {
		return fmt.Errorf("add the scalers' applier: %w", err)
	}
	services := inferenceservice.Config{
		Client:         mgr.GetClient(),
		Live:           mgr.GetAPIReader(),
		Recorder:       counts.Recorder(mgr.GetEventRecorder("inferenceservice")),
		Monitors:       monitors,
		MonitorOptions: operator.Monitors,
		RuleOptions:    operator.Rules,
		Dashboards:     shown,
		Clock:          operator.Clock,
		Router:         plan.RouterDefaults{Image: operator.RouterImage},
		NewSecret:      newSecret,
		Counts:         counts,
	}
	pools := enginepool.Config{
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Recorder: counts.Recorder(mgr.GetEventRecorder("enginepool")),
		Samples:  store,
		Clock:    operator.Clock,
		Engine:   plan.EngineDefaults{Image: operator.EngineImage, AllowHostAccess: operator.AllowHostAccess},
		Scalers:  scalers, PrometheusURL: operator.PrometheusURL,
		Counts: counts,
	}
	if proofs != nil {
		services.Proofs, pools.Proofs = proofs, proofs
	}
	return errors.Join(inferenceservice.New(services).SetupWithManager(mgr), enginepool.New(pools).SetupWithManager(mgr))
}

// hearMonitoring counts what became of objects of other operators' kinds.
func hearMonitoring(counts *metrics.Metrics) func(kind string, outcome monitoring.Outcome) {
	changes := map[monitoring.Outcome]metrics.Change{
		monitoring.Applied: metrics.Applied, monitoring.Restored: metrics.Restored, monitoring.Unchanged: metrics.Unchanged,
		monitoring.Failed: metrics.Failed, monitoring.Removed: metrics.Deleted,
	}
	return func(kind string, outcome monitoring.Outcome) {
		if change, ok := changes[outcome]; ok { // what the cluster has no resource for is no change
			counts.Changed(kind, change)
		}
	}
}

// newSecret makes 32 random bytes as hex digits.
func newSecret() (string, error) {
	var value [32]byte
	if _, err := rand.Read(value[:]); err != nil {
		return "", fmt.Errorf("read random bytes: %w", err)
	}
	return hex.EncodeToString(value[:]), nil
}

// Run runs the operator until ctx ends.
func Run(ctx context.Context, restConfig *rest.Config, operator Config) error {
	mgr, err := NewManager(restConfig, operator)
	if err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

// limitScrapes bounds what readers of the operator's own metrics cost.
func limitScrapes(*rest.Config, *http.Client) (metricsserver.Filter, error) {
	return func(_ logr.Logger, next http.Handler) (http.Handler, error) {
		return scrapers.Limit(next, scrapers.Most), nil
	}, nil
}
