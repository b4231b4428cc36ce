package rank

import (
	"log/slog"

	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// metricsStore is where a rank's metrics go.
type metricsStore interface {
	reporter() report.Reporter
	spansLost() func(spans int64) // counts spans that no collector got; nil: nobody does
	close() error
}

// noMetrics is the store of a rank whose metrics are off.
type noMetrics struct{}

func (noMetrics) reporter() report.Reporter { return report.Silent() }
func (noMetrics) spansLost() func(int64)    { return nil }
func (noMetrics) close() error              { return nil }

// logged passes reports on and writes them to the log.
type logged struct {
	report.Reporter
	log *slog.Logger
}

func logReports(to report.Reporter, log *slog.Logger) report.Reporter {
	return logged{Reporter: to, log: log}
}

func (l logged) Report(s report.Snapshot) {
	l.Reporter.Report(s)
	args := []any{
		"running", s.NumRunningReqs.Total, "queued", s.NumQueueReqs.Total, "used_tokens", s.NumUsedTokens, "token_usage", s.TokenUsage,
		"utilization", s.Utilization,
	}
	switch s.Kind {
	case report.Decode:
		l.log.Info("decode batch", append(args, "gen_throughput", s.GenThroughput)...)
	case report.Prefill:
		l.log.Info("prefill batch", args...)
	default:
		l.log.Debug("idle", args...)
	}
}
