package trace

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"

	"github.com/sluice-dev/sluice/engine/ledger"
)

const (
	// A batch that the collector does not take is tried again, first after retryFirst and then in ever longer intervals up to
	// retryMost, until retryFor is over. Meanwhile the queue fills.
	retryFirst = 250 * time.Millisecond
	retryMost  = 2 * time.Second
	retryFor   = 8 * time.Second

	// sayAgain is how often a collector that stays away is complained about.
	sayAgain = time.Minute
)

// newClient makes the client of the collector. It connects when it has something to say.
func newClient(cfg Config) (otlptrace.Client, error) {
	t, err := cfg.target()
	if err != nil {
		return nil, err
	}
	if cfg.Protocol == HTTPProtobuf {
		options := []otlptracehttp.Option{
			otlptracehttp.WithEndpoint(t.address), otlptracehttp.WithURLPath(t.path),
			otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: retryFirst, MaxInterval: retryMost, MaxElapsedTime: retryFor}),
		}
		if !t.secure {
			options = append(options, otlptracehttp.WithInsecure())
		}
		return otlptracehttp.NewClient(options...), nil
	}
	options := []otlptracegrpc.Option{
		otlptracegrpc.WithEndpoint(t.address),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: true, InitialInterval: retryFirst, MaxInterval: retryMost, MaxElapsedTime: retryFor}),
	}
	if !t.secure {
		options = append(options, otlptracegrpc.WithInsecure())
	}
	return otlptracegrpc.NewClient(options...), nil
}

// exporter sends spans to a collector on a goroutine of its own.
type exporter struct {
	queue  *queue
	client otlptrace.Client
	delay  time.Duration
	clock  ledger.Clock
	log    *slog.Logger
	tell   func(spans int64) // of those that are lost; nil: nobody

	life context.Context // of uploads
	kill context.CancelFunc
	done chan struct{} // closed when the goroutine has ended
	lost atomic.Int64  // spans that no collector got
}

// newExporter begins to export. The client is started already, and becomes the exporter's.
func newExporter(client otlptrace.Client, size int, cfg Config, clock ledger.Clock, log *slog.Logger, lost func(spans int64)) *exporter {
	e := &exporter{
		queue: newQueue(size, cfg.BatchSize), client: client, delay: cfg.Delay, clock: clock, log: log, tell: lost, done: make(chan struct{}),
	}
	e.life, e.kill = context.WithCancel(context.Background())
	go e.run()
	return e
}

func (e *exporter) run() {
	defer close(e.done)
	tick := time.NewTicker(e.delay)
	defer tick.Stop()
	trouble := trouble{clock: e.clock}
	for {
		select {
		case <-tick.C:
		case <-e.queue.ready:
		}
		for more := true; more; {
			spans, left, dropped, closed := e.queue.take()
			more = left
			e.lose(dropped)
			err := e.upload(spans)
			if err != nil {
				e.lose(int64(len(spans)))
			}
			trouble.note(e.log, dropped, len(spans), err)
			e.queue.giveBack(spans)
			if closed && !left {
				trouble.end(e.log)
				return
			}
		}
	}
}

// lose counts spans that no collector gets.
func (e *exporter) lose(spans int64) {
	if spans == 0 {
		return
	}
	e.lost.Add(spans)
	if e.tell != nil {
		e.tell(spans)
	}
}

func (e *exporter) upload(spans []span) error {
	if len(spans) == 0 {
		return nil
	}
	if err := e.client.UploadTraces(e.life, message(spans)); err != nil {
		return fmt.Errorf("export %d spans: %w", len(spans), err)
	}
	return nil
}

// close sends what is left until ctx ends, and then gives up.
func (e *exporter) close(ctx context.Context) error {
	e.queue.close()
	select {
	case <-e.done:
	case <-ctx.Done():
		e.kill()
		<-e.done
	}
	e.kill()
	return e.client.Stop(context.WithoutCancel(ctx)) // it only lets go of its connection: nothing is under way
}

// trouble is what the log has to be told about spans that get lost: at once when it begins, and then now and then.
type trouble struct {
	clock ledger.Clock // is read only while spans get lost
	lost  int64        // since it was said
	bad   bool         // spans get lost, which was said
	said  ledger.Instant
}

// note books one export: so many spans had been dropped before it, so many were sent, with an error or without.
func (t *trouble) note(log *slog.Logger, dropped int64, sent int, err error) {
	t.lost += dropped
	if err != nil {
		t.lost += int64(sent)
	}
	switch {
	case t.lost > 0 && t.due():
		args := []any{"spans", t.lost}
		if dropped > 0 {
			args = append(args, "queue_full", dropped)
		}
		if err != nil {
			args = append(args, "error", err)
		}
		log.Warn("spans are lost; requests are not affected", args...)
		t.lost = 0
	case err == nil && sent > 0 && dropped == 0 && t.bad:
		log.Info("spans reach the collector again", "lost_since", t.lost)
		t.lost, t.bad = 0, false
	}
}

// due reports whether it is time to say that spans are lost, and takes that as said.
func (t *trouble) due() bool {
	now := t.clock.Now()
	if t.bad && now.Sub(t.said) <= int64(sayAgain) {
		return false
	}
	t.bad, t.said = true, now
	return true
}

// end says what has not been said.
func (t *trouble) end(log *slog.Logger) {
	if t.lost > 0 {
		log.Warn("spans were lost", "spans", t.lost)
	}
}
