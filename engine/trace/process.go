package trace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// Process is the tracing of one process: the level of requests that begin, and the export. A nil Process traces nothing, and
// all its methods may be called. Safe for concurrent use.
type Process struct {
	cfg   Config
	clock ledger.Clock
	out   *exporter
	level atomic.Int64 // >= 0

	host string
	pid  int
}

// Open begins the tracing of a process by a valid configuration; nil when that is off. clock is the one of the timelines.
// lost, if any, is told how many spans no collector gets, as they are given up; it is called on the goroutine that exports.
// Nobody has to listen at the endpoint yet, or ever.
func Open(cfg Config, clock ledger.Clock, log *slog.Logger, lost func(spans int64)) (*Process, error) {
	if !cfg.Enabled {
		return nil, nil
	}
	client, err := newClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("--otlp-traces-endpoint: %w", err)
	}
	if err := client.Start(context.Background()); err != nil {
		return nil, fmt.Errorf("--otlp-traces-endpoint %s: %w", cfg.Endpoint, err)
	}
	p := &Process{cfg: cfg, clock: clock, out: newExporter(client, QueueSize, cfg, clock, log, lost), host: thisHost(), pid: os.Getpid()}
	p.level.Store(int64(cfg.Level))
	return p, nil
}

// Close exports what is there until ctx ends; what is left then is lost, and counted.
func (p *Process) Close(ctx context.Context) error {
	if p == nil {
		return nil
	}
	if err := p.out.close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("end the export of spans: %w", err)
	}
	return nil
}

// Level is that of requests that begin now.
func (p *Process) Level() int {
	if p == nil {
		return LevelOff
	}
	return int(p.level.Load())
}

// SetLevel changes the level of requests that begin from now on, level >= 0; false when the process traces nothing.
func (p *Process) SetLevel(level int) (set bool) {
	if p == nil {
		return false
	}
	p.level.Store(int64(level))
	return true
}

// Lost counts the spans that no collector got: the queue was full, or the collector took no batch of theirs.
func (p *Process) Lost() int64 {
	if p == nil {
		return 0
	}
	return p.out.lost.Load()
}
