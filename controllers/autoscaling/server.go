package autoscaling

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"
	generatedcore "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/core"
	generatedcustommetrics "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/custommetrics"
	generatedexternalmetrics "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/externalmetrics"
	metricsprovider "sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
)

// lookInterval is how often the Secret and the APIServices are looked at. A look is three reads and, as long as nothing
// changed, no write.
const lookInterval = 10 * time.Second

// retryInterval is the pause after a failed look or start.
const retryInterval = 2 * time.Second

// MetricsServerConfig says where custom.metrics.k8s.io is served.
type MetricsServerConfig struct {
	// REST reaches the API server, for token and access reviews, the Secret and the APIServices.
	REST *rest.Config
	// Pools reads EnginePools, from the manager's cache.
	Pools client.Reader
	// Store has the samples.
	Store Samples
	Clock clock.Clock
	Log   logr.Logger

	// Port to listen on, on all addresses; by default 6443. Listener, when set, is used instead; the server owns it.
	Port     int
	Listener net.Listener

	// External serves external.metrics.k8s.io too.
	External bool

	// Namespace of the operator, its Service for the metrics API, and the Secret with the certificate.
	Namespace string
	Service   string
	Secret    string
}

func (c MetricsServerConfig) withDefaults() (MetricsServerConfig, error) {
	if c.Port == 0 {
		c.Port = 6443
	}
	switch {
	case c.Port < 0 || c.Port > 65535:
		return c, fmt.Errorf("port is %d, want 1 to 65535", c.Port)
	case c.Namespace == "" || c.Service == "" || c.Secret == "":
		return c, errors.New("namespace, service and secret are all needed")
	case c.REST == nil || c.Pools == nil || c.Store == nil || c.Clock == nil:
		return c, errors.New("REST, pools, store and clock are all needed")
	}
	return c, nil
}

// MetricsServer serves custom.metrics.k8s.io, versions v1beta1 and v1beta2, and where asked for
// external.metrics.k8s.io, over TLS with a certificate that it makes,
// renews and registers itself. It is a manager.Runnable that runs on every replica of the operator.
type MetricsServer struct {
	cfg       MetricsServerConfig
	client    kubernetes.Interface
	vault     *vault
	registrar *registrar
	serving   *serving

	mu            sync.Mutex
	notReady      error // why it does not serve; nil when it does
	registrations map[string]Registration
}

// NewMetricsServer makes the server; Start runs it.
func NewMetricsServer(cfg MetricsServerConfig) (*MetricsServer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("metrics API: %w", err)
	}
	core, err := kubernetes.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("metrics API: make a client: %w", err)
	}
	registrations, err := aggregatorclient.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("metrics API: make a client: %w", err)
	}
	host := cfg.Service + "." + cfg.Namespace
	return &MetricsServer{
		cfg:    cfg,
		client: core,
		vault: &vault{
			secrets:   core.CoreV1().Secrets(cfg.Namespace),
			namespace: cfg.Namespace,
			name:      cfg.Secret,
			dnsNames:  []string{host + ".svc", host + ".svc.cluster.local", host},
			clock:     cfg.Clock,
		},
		registrar:     &registrar{apiServices: registrations.APIServices(), namespace: cfg.Namespace, service: cfg.Service},
		serving:       &serving{},
		notReady:      errors.New("the metrics API has not started"),
		registrations: map[string]Registration{},
	}, nil
}

// NeedLeaderElection is false: every replica polls and so may answer.
func (s *MetricsServer) NeedLeaderElection() bool { return false }

// Ready is a health check: nil while the server answers.
func (s *MetricsServer) Ready(*http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notReady
}

// Registrations gives the state of each APIService, in the order of their names.
func (s *MetricsServer) Registrations() []Registration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Registration
	for _, name := range apiServiceNames(s.cfg.External) {
		r, ok := s.registrations[name]
		if !ok {
			r = Registration{APIService: name, State: RegistrationUnknown}
		}
		all = append(all, r)
	}
	return all
}

// Start serves until ctx ends. What the cluster refuses, it tries again; it fails when it cannot listen.
func (s *MetricsServer) Start(ctx context.Context) error {
	listener := s.cfg.Listener
	if listener == nil {
		var err error
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(s.cfg.Port)))
		if err != nil {
			return fmt.Errorf("metrics API: %w", err)
		}
	}
	defer func() { _ = listener.Close() }() // closed already when it was served

	ctx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel()

	// 1. A certificate, before anybody can connect.
	if !s.until(ctx, "Get the certificate of the metrics API", s.look) {
		return nil
	}

	// 2. From then on it is kept fresh and registered.
	keeping.Add(1)
	go func() {
		defer keeping.Done()
		s.keep(ctx)
	}()

	// 3. The cluster's authentication settings, and the server.
	var server *genericapiserver.GenericAPIServer
	if !s.until(ctx, "Start the metrics API", func(ctx context.Context) (err error) {
		server, err = s.build(ctx, listener)
		return err
	}) {
		return nil
	}

	// 4. Serve.
	s.setReady(nil)
	s.cfg.Log.Info("The metrics API serves", "address", listener.Addr().String())
	err := server.PrepareRun().RunWithContext(ctx)
	s.setReady(errors.New("the metrics API has stopped"))
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("metrics API: %w", err)
	}
	return nil
}

// until tries a step until it succeeds; false when ctx ended first.
func (s *MetricsServer) until(ctx context.Context, what string, step func(context.Context) error) bool {
	for {
		err := step(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.setReady(fmt.Errorf("%s: %w", what, err))
		if !errors.Is(err, errOutpaced) {
			s.cfg.Log.Error(err, what)
		}
		if !s.sleep(ctx, retryInterval) {
			return false
		}
	}
}

// keep looks at the certificate and the registrations until ctx ends.
func (s *MetricsServer) keep(ctx context.Context) {
	pause := lookInterval
	for s.sleep(ctx, pause) {
		pause = lookInterval
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			pause = retryInterval
			if !errors.Is(err, errOutpaced) {
				s.cfg.Log.Error(err, "Keep the certificate of the metrics API")
			}
		}
	}
}

// look brings the certificate and the registrations up to date. It fails when there is no usable certificate; what goes
// wrong with a registration is told and tried again at the next look.
func (s *MetricsServer) look(ctx context.Context) error {
	current, reason, err := s.vault.refresh(ctx)
	if err != nil {
		return err
	}
	if reason != "" {
		s.cfg.Log.Info("Made a new certificate for the metrics API", "reason", reason)
	}
	s.serving.set(current)

	for _, name := range apiServiceNames(s.cfg.External) {
		registration, wrote, err := s.registrar.register(ctx, name, current.AuthorityBundle)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			registration.Message = err.Error()
		}
		if wrote {
			s.cfg.Log.Info("Wrote the CA bundle", "apiService", name)
		}
		s.setRegistration(registration)
	}
	return nil
}

// setRegistration logs what changed.
func (s *MetricsServer) setRegistration(r Registration) {
	s.mu.Lock()
	old, known := s.registrations[r.APIService]
	s.registrations[r.APIService] = r
	s.mu.Unlock()
	if known && old == r {
		return
	}
	s.cfg.Log.Info("Registration of the metrics API", "apiService", r.APIService, "state", r.State, "message", r.Message)
}

func (s *MetricsServer) setReady(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notReady = err
}

// sleep waits by the configured clock; false when ctx ended first.
func (s *MetricsServer) sleep(ctx context.Context, d time.Duration) bool {
	timer := s.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// build assembles the API server around the provider.
func (s *MetricsServer) build(ctx context.Context, listener net.Listener) (*genericapiserver.GenericAPIServer, error) {
	config := genericapiserver.NewConfig(apiserver.Codecs)
	config.SecureServing = &genericapiserver.SecureServingInfo{Listener: listener, Cert: s.serving}
	config.LoopbackClientConfig = &rest.Config{Host: "https://" + listener.Addr().String()}
	config.EnableIndex = false
	config.EnableProfiling = false
	config.EnableMetrics = false
	// Not the check of klog's flush, which starts a goroutine that never ends.
	for _, checks := range []*[]healthz.HealthChecker{&config.HealthzChecks, &config.LivezChecks, &config.ReadyzChecks} {
		*checks = []healthz.HealthChecker{healthz.PingHealthz}
	}

	definitions := func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		all := generatedcore.GetOpenAPIDefinitions(ref)
		maps.Copy(all, generatedcustommetrics.GetOpenAPIDefinitions(ref))
		maps.Copy(all, generatedexternalmetrics.GetOpenAPIDefinitions(ref))
		return all
	}
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIConfig.Info.Title = "sluice-metrics-api"
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIV3Config.Info.Title = "sluice-metrics-api"

	if err := delegate(ctx, s.client, config); err != nil {
		return nil, err
	}
	adapter := &apiserver.Config{GenericConfig: config}
	custom := &provider{store: s.cfg.Store, pools: s.cfg.Pools, clock: s.cfg.Clock}
	var external metricsprovider.ExternalMetricsProvider
	if s.cfg.External {
		external = externalProvider{custom}
	}
	server, err := adapter.Complete(nil).New("sluice-metrics-api", custom, external)
	if err != nil {
		return nil, fmt.Errorf("assemble the API server: %w", err)
	}
	return server.GenericAPIServer, nil
}
