package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/fleet"
	"github.com/sluice-dev/sluice/router/metrics"
	"github.com/sluice-dev/sluice/router/policy"
	"github.com/sluice-dev/sluice/router/proxy"
)

// run serves until ctx ends, then drains.
func run(ctx context.Context, o options, log *slog.Logger) error {
	if err := o.validate(); err != nil {
		return err
	}
	source, err := o.source()
	if err != nil {
		return err
	}
	pick, err := policy.Parse(o.policy)
	if err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	m := metrics.New(logged{log})
	f, err := fleet.New(fleet.Config{
		Policy: pick, Quarantine: o.quarantine, MaxWaiting: o.maxWaiting, Turn: rand.Uint64(), Now: time.Now, Listener: m,
		Wake: o.wake,
	})
	if err != nil {
		return err
	}
	m.Watch(f.Waiting)
	o.proxy.Room, o.proxy.Now, o.proxy.Log, o.proxy.Metrics = room, time.Now, log, m.Handler()
	p, err := proxy.New(o.proxy, f, m)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(o.host, strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("--host and --port: %w", err)
	}
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	o.listening(ln.Addr())

	// Discovery goes on while the router drains: requests that are left may need another engine.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, work := errgroup.WithContext(work)
	group.Go(func() error { return source.Run(work, f.Update) })
	group.Go(func() error {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		defer stop()
		select {
		case <-work.Done():
			return server.Close()
		case <-ctx.Done():
		}
		return drain(work, o, log, m, p, server)
	})
	err = group.Wait()
	p.Close()
	return err
}

// drain lets load balancers notice, then stops accepting and waits for the requests that are left.
func drain(ctx context.Context, o options, log *slog.Logger, m *metrics.Metrics, p *proxy.Proxy, server *http.Server) error {
	log.Info("draining", "accept", o.drainAccept, "timeout", o.drainTimeout)
	p.Drain()
	m.Draining()
	ctx, cancel := context.WithTimeout(ctx, o.drainTimeout)
	defer cancel()
	accept := time.NewTimer(min(o.drainAccept, o.drainTimeout))
	defer accept.Stop()
	select {
	case <-accept.C:
	case <-ctx.Done():
	}
	server.SetKeepAlivesEnabled(false)
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests were left after --drain-timeout %v: %w", o.drainTimeout, err), server.Close())
	}
	log.Info("drained")
	return nil
}

// room draws a bootstrap room; engines count on from it for batches, so the very largest are left out.
func room() int64 { return 1 + rand.Int64N(1<<63-1<<20-1) }

// logged writes what happens to engines to the log.
type logged struct{ log *slog.Logger }

func (l logged) Changed(e discovery.Engine, from, to discovery.State) {
	l.log.Info("engine", "name", e.Name, "role", e.Role, "url", e.URL, "from", string(from), "to", string(to), "reason", e.Reason)
}

func (l logged) Quarantined(e discovery.Engine) {
	l.log.Warn("an engine failed and gets no request for a moment", "name", e.Name, "role", e.Role)
}

func (l logged) Picked(discovery.Engine) {}
