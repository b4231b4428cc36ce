package rank

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/engine/trace"
)

// flushGrace is how long a rank that ends may take to export its last spans.
const flushGrace = time.Second

// tracing is a rank's part in the traces of requests; nil parts when it has none.
type tracing struct {
	process *trace.Process
	tracer  *trace.Tracer
}

// openTracing begins the export of a rank's spans, if requests are traced. lost, if any, is told of those that get lost.
func openTracing(cfg Config, clock ledger.Clock, log *slog.Logger, lost func(spans int64)) (tracing, error) {
	process, err := trace.Open(cfg.Trace, clock, log, lost)
	if err != nil {
		return tracing{}, err
	}
	tpRank, ppRank := cfg.Rank%max(1, cfg.TPSize), cfg.Rank/max(1, cfg.TPSize)
	return tracing{process, process.Tracer(trace.Place{
		Label: trace.Scheduler, Role: string(cfg.Disagg.Mode), TPRank: &tpRank, PPRank: &ppRank, DPRank: cfg.DPRank,
	})}, nil
}

// scheduler gives what the scheduler asks for spans; nil when nothing is traced.
func (t tracing) scheduler() scheduler.Tracer {
	if t.tracer == nil {
		return nil
	}
	return t
}

// Follow implements scheduler.Tracer.
func (t tracing) Follow(r *request.Request, started ledger.Instant) scheduler.Spans {
	if thread := t.tracer.Follow(r, started); thread != nil {
		return thread
	}
	return nil
}

// close exports the last spans; the scheduler has ended.
func (t tracing) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushGrace)
	defer cancel()
	return t.process.Close(ctx)
}
