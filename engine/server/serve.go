package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/dp"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/tokenizer"
	"github.com/sluice-dev/sluice/engine/trace"
)

// Runtime is what Serve is given besides its configuration.
type Runtime struct {
	// StartRank starts the replica's rank: as a process, or in this one in tests.
	StartRank func(ctx context.Context, cfg rank.Config) (rank.Client, error)
	// Backends make the series of some roles elsewhere than in the stores that /metrics reads. Those of ranks need ranks
	// in this process.
	Backends map[metrics.Source]metrics.Backend
	Clock    ledger.Clock // nil: the system's
	Log      *slog.Logger // nil: slog.Default
	// Listening is told the addresses as soon as they answer; bootstrap is nil but on a prefill engine. Nil: nobody asks.
	Listening func(api, bootstrap net.Addr)
}

func (r Runtime) withDefaults() Runtime {
	if r.Log == nil {
		r.Log = slog.Default()
	}
	if r.Clock == nil {
		r.Clock = ledger.System()
	}
	return r
}

const (
	deathGrace    = time.Second     // for clients to get their errors after the rank died
	abortGrace    = 5 * time.Second // for requests that were aborted at the end of the drain to end
	shutdownGrace = 3 * time.Second // for answers that are on their way out, and for the rank to end

	// endGrace is what an engine takes after the drain's time-out, at most: what was aborted ends, answers go out, the rank
	// ends. A node that is asked to end waits so long for node 0.
	endGrace = abortGrace + 2*shutdownGrace
	// DrainOverrun is what any process of a replica takes after --drain-timeout, at most: a node other than 0 that waited for
	// node 0 in vain ends its ranks and its answers then. Who stops engines has to give them --drain-timeout and this.
	DrainOverrun = endGrace + 2*shutdownGrace
)

// Serve runs one replica: it listens at once, starts the rank, serves until ctx ends, and drains. It returns nil after a
// drain, and a named error when the replica could not start or its rank died. Nothing that it started is left behind.
func Serve(ctx context.Context, cfg Config, run Runtime) (err error) {
	cfg, err = cfg.Validate()
	if err != nil {
		return err
	}
	run = run.withDefaults()
	cfg.Rank.Metrics.Backends = run.Backends
	for _, name := range cfg.overwrittenLabels() {
		run.Log.Warn("--extra-metric-labels overwrites a label that tells series apart: those that differ in nothing else become one", "label", name,
			"counters", "add up", "gauges", "the last one written")
	}
	metrics.RemoveLeftOver(cfg.MetricsDir)
	rank.RemoveLeftOver()
	if cfg.NodeRank > 0 {
		return serveNode(ctx, cfg, run)
	}
	observer, err := newObserver(cfg, run)
	if err != nil {
		return err
	}
	defer observer.end(run.Log)

	tracing, err := openTracing(cfg, run.Clock, run.Log, observer.spansLost)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeTracing(tracing)) }()

	s := New(cfg, Options{Events: observer.events, Metrics: observer.exposition, Clock: run.Clock, Log: run.Log, Tracing: tracing})
	api, err := listen("--port", cfg.Host, cfg.Port, s, run.Log)
	if err != nil {
		return err
	}
	defer api.close()
	bootstrap, bootstrapURL, err := s.listenBootstrap(run.Log)
	if err != nil {
		return err
	}
	defer bootstrap.close()
	if run.Listening != nil {
		run.Listening(api.addr(), bootstrap.addr())
	}
	log := run.Log.With("address", api.addr().String())
	if bootstrapURL != "" {
		log = log.With("bootstrap", bootstrap.addr().String())
	}
	log.Info("listening", "engine_type", cfg.Rank.Disagg.Mode.EngineType(), "model", cfg.ServedModelName)

	rankCfg := cfg.Rank
	rankCfg.Metrics.Dir, rankCfg.Disagg.BootstrapURL = observer.dir, bootstrapURL
	if cfg.Rank.Disagg.Mode != rank.ModeUnified && cfg.Rank.Disagg.Secret == "" {
		run.Log.Warn("no secret is set: any process on this machine can act as a peer", "remedy", "--disaggregation-secret-file or SLUICE_PD_SECRET")
	}

	client, err := s.bringUp(ctx, run, rankCfg)
	switch {
	case err != nil && ctx.Err() != nil:
		run.Log.Info("ended before it served", "cause", err)
		return nil
	case err != nil:
		return err
	}
	run.Log.Info("serving", "address", api.addr().String(), "model", cfg.ServedModelName,
		"max_total_num_tokens", client.Info().MaxTotalNumTokens, "context_length", client.Info().ContextLength)

	select {
	case <-ctx.Done():
		return s.drain(client, api)
	case <-client.Done():
		return s.mourn(client, api)
	case err := <-api.failed:
		s.profiles.Close()
		return errors.Join(err, closeRank(context.Background(), client))
	case err := <-bootstrap.failed:
		s.profiles.Close()
		return errors.Join(err, closeRank(context.Background(), client))
	}
}

// bringUp loads the tokenizer, starts the rank and begins to serve, and tells how long each took.
func (s *Server) bringUp(ctx context.Context, run Runtime, cfg rank.Config) (rank.Client, error) {
	watch := s.newStopwatch()
	t, err := tokenizer.Load(s.cfg.ModelPath)
	if err != nil {
		return nil, fmt.Errorf("load the tokenizer of --model-path %s: %w", s.cfg.ModelPath, err)
	}
	tokenizerNanos := watch.step(stepTokenizer)
	client, err := s.startReplica(ctx, run, cfg)
	if err != nil {
		return nil, err
	}
	watch.step(stepRanks)
	s.tellStartup(tokenizerNanos, client.Info().Startup)
	if err := s.Attach(client, t); err != nil {
		return nil, errors.Join(err, closeRank(context.Background(), client))
	}
	watch.step(stepAttach)
	return client, nil
}

// startRanks starts the rank, or the DP ranks, at the same time, and the controller before them. When one does not start,
// none stays.
func (s *Server) startRanks(ctx context.Context, run Runtime, cfg rank.Config) (rank.Client, error) {
	clients, err := startAll(ctx, run, dataParallel(cfg, s.cfg.DPSize))
	if err != nil {
		return nil, err
	}
	client, err := s.control(clients)
	if err != nil {
		return nil, errors.Join(err, closeRanks(clients))
	}
	return client, nil
}

// control puts the DP controller before several DP ranks.
func (s *Server) control(clients []rank.Client) (rank.Client, error) {
	if len(clients) == 1 {
		return clients[0], nil
	}
	method, err := dp.ParseMethod(s.cfg.LoadBalanceMethod) // Validate has read it
	if err != nil {
		return nil, err
	}
	tracer := s.tracing.Tracer(trace.Place{Label: trace.DPController, Role: string(s.cfg.Rank.Disagg.Mode)})
	return dp.New(clients, method.Resolve(s.cfg.Rank.Disagg.Mode), dp.Options{Clock: s.clock, Tracer: tracer})
}

// dataParallel gives the configurations of n DP ranks, by DP rank.
func dataParallel(cfg rank.Config, n int) []rank.Config {
	all := make([]rank.Config, n)
	for i := range all {
		all[i] = cfg
		if n > 1 {
			all[i].DPRank, all[i].DPSize, all[i].Seed = &i, n, cfg.Seed+uint64(i)
		}
	}
	return all
}

// startAll starts ranks at the same time. When one does not start, none stays.
func startAll(ctx context.Context, run Runtime, cfgs []rank.Config) ([]rank.Client, error) {
	ctx, cancel := context.WithCancel(ctx) // the others need not go on when one has failed
	defer cancel()
	clients, errs := make([]rank.Client, len(cfgs)), make([]error, len(cfgs))
	var (
		wait  sync.WaitGroup
		first sync.Once
		cause error
	)
	for i, cfg := range cfgs {
		wait.Go(func() {
			if clients[i], errs[i] = run.StartRank(ctx, cfg); errs[i] != nil {
				first.Do(func() { cause = errs[i] })
				cancel()
			}
		})
	}
	wait.Wait()
	if cause == nil {
		return clients, nil
	}
	started := clients[:0]
	for i, client := range clients {
		if errs[i] == nil {
			started = append(started, client)
		}
	}
	return nil, errors.Join(fmt.Errorf("start the ranks: %w", cause), closeRanks(started))
}

func closeRanks(clients []rank.Client) error {
	errs := make([]error, len(clients))
	var wait sync.WaitGroup
	for i, client := range clients {
		wait.Go(func() { errs[i] = closeRank(context.Background(), client) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// drain ends the replica without failing a request: health says 503, routing moves away, what runs goes on, and only what
// is left at the end of the time is aborted.
func (s *Server) drain(client rank.Client, api *listener) error {
	s.log.Info("draining: health checks fail, requests are still taken", "accept", s.cfg.DrainAccept, "timeout", s.cfg.DrainTimeout)
	end, over := context.WithTimeout(context.Background(), s.cfg.DrainTimeout+endGrace)
	defer over()
	ctx, cancel := context.WithTimeout(end, s.cfg.DrainTimeout)
	defer cancel()
	s.Leave()
	accept := time.NewTimer(s.cfg.DrainAccept)
	defer accept.Stop()
	select {
	case <-accept.C:
	case <-client.Done():
		return s.mourn(client, api)
	}
	s.Refuse()
	api.server.SetKeepAlivesEnabled(false)
	drained := make(chan error, 1)
	go func() { drained <- s.Drained(ctx) }()
	select {
	case err := <-drained:
		if err != nil {
			s.log.Warn("the drain timed out: what still runs is aborted", "timeout", s.cfg.DrainTimeout)
			s.abortRest(end, client)
		}
	case <-client.Done():
		return s.mourn(client, api)
	}
	api.shutdown(end)
	s.profiles.Close() // before the steps end that it may go by
	if err := closeRank(end, client); err != nil {
		return err
	}
	s.log.Info("drained")
	return nil
}

func (s *Server) abortRest(end context.Context, client rank.Client) {
	s.doom("")
	if err := client.AbortAll(""); err != nil {
		s.log.Warn("abort what still runs", "error", err)
	} else {
		s.events.Aborted()
	}
	ctx, cancel := context.WithTimeout(end, abortGrace)
	defer cancel()
	if err := s.Drained(ctx); err != nil {
		s.log.Warn("requests did not end after their abort", "grace", abortGrace)
	}
}

// mourn ends the replica after its rank: clients get their errors, then the named error ends the process.
func (s *Server) mourn(client rank.Client, api *listener) error {
	s.Refuse()
	s.log.Error("the rank ended, so the replica ends", "error", client.Err())
	ctx, cancel := context.WithTimeout(context.Background(), deathGrace)
	defer cancel()
	if err := s.Drained(ctx); err != nil {
		s.log.Warn("clients did not take their errors in time", "grace", deathGrace)
	}
	api.shutdown(context.Background())
	s.profiles.Close()
	if err := client.Err(); err != nil {
		return err
	}
	return errors.New("the rank ended although nobody asked it to")
}

// closeRank ends a rank within shutdownGrace, and before end ends.
func closeRank(end context.Context, client rank.Client) error {
	ctx, cancel := context.WithTimeout(end, shutdownGrace)
	defer cancel()
	if err := client.Close(ctx); err != nil {
		return fmt.Errorf("end the rank: %w", err)
	}
	return nil
}

// listener is one HTTP server on one address. A nil listener has none.
type listener struct {
	server *http.Server
	socket net.Listener
	failed chan error // gets the error that ended the server, if any
}

// listen begins to serve. An error names the flag of the port.
func listen(flag, host string, port int, handler http.Handler, log *slog.Logger) (*listener, error) {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s (--host and %s): %w", address, flag, err)
	}
	l := &listener{
		server: &http.Server{
			Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
		socket: socket, failed: make(chan error, 1),
	}
	go func() {
		if err := l.server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			l.failed <- fmt.Errorf("serve %s: %w", address, err)
		}
	}()
	return l, nil
}

// shutdown lets answers that are on their way out finish, for a moment, and not after end has ended.
func (l *listener) shutdown(end context.Context) {
	ctx, cancel := context.WithTimeout(end, shutdownGrace)
	defer cancel()
	_ = l.server.Shutdown(ctx) // the only error is the timeout; close follows
}

func (l *listener) close() {
	if l.server != nil {
		_ = l.server.Close()
	}
}

func (l *listener) addr() net.Addr {
	if l.socket == nil {
		return nil
	}
	return l.socket.Addr()
}

// listenBootstrap serves the bootstrap server of a prefill engine, before its rank registers there. url is where.
func (s *Server) listenBootstrap(log *slog.Logger) (l *listener, url string, err error) {
	if !s.prefillOnly() {
		return &listener{}, "", nil
	}
	b := disagg.NewBootstrap(disagg.BootstrapConfig{Secret: []byte(s.cfg.Rank.Disagg.Secret)})
	if m := s.cfg.Rank.Disagg.LoadBalance; m != "" && m != disagg.FollowRoom {
		s.rooms = b
	}
	l, err = listen("--disaggregation-bootstrap-port", s.cfg.Host, s.cfg.BootstrapPort, b, log)
	if err != nil {
		return nil, "", err
	}
	port := l.socket.Addr().(*net.TCPAddr).Port
	return l, "http://" + net.JoinHostPort(dialable(s.cfg.Host), strconv.Itoa(port)), nil
}
