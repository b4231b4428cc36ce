package rank

import (
	"fmt"
	"log/slog"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/runner"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// store is a rank's file in the replica's metrics directory.
type store struct {
	file  *metrics.Store
	to    report.Reporter
	spans func(spans int64) // nil: nothing is traced
}

func (s store) reporter() report.Reporter { return s.to }
func (s store) spansLost() func(int64)    { return s.spans }
func (s store) close() error              { return s.file.Close() }

// exports reports whether this rank writes metrics: of the ranks that share layers the first, of every stage, or all.
func (c Config) exports() bool {
	return c.Metrics.Enabled && (c.Rank%max(1, c.TPSize) == 0 || c.Metrics.AllRanks)
}

// features is what this rank has of the table of metrics besides what its mode has.
func (c Config) features(made runner.Info) (f metrics.Features) {
	for _, x := range []struct {
		there bool
		bit   metrics.Features
	}{
		{made.WindowTokens > 0, metrics.WithSlidingWindow}, {c.EnableStreamingSession, metrics.WithSessions},
		{c.Metrics.DeviceTimer, metrics.WithDeviceTimer}, {c.Metrics.MFU, metrics.WithMFU},
	} {
		if x.there {
			f |= x.bit
		}
	}
	return f
}

// openMetrics opens the store that cfg names, or one that forgets where metrics are off. Where another rank writes the metrics,
// this one counts its own breaches of conservation laws and lost spans alone.
func openMetrics(cfg Config, made runner.Info, clock ledger.Clock, log *slog.Logger) (metricsStore, error) {
	tpRank, ppRank := cfg.Rank%max(1, cfg.TPSize), cfg.Rank/max(1, cfg.TPSize)
	if !cfg.Metrics.Enabled {
		return noMetrics{}, nil
	}
	name := fmt.Sprintf("rank-%d", cfg.Rank)
	if cfg.DPRank != nil {
		name = fmt.Sprintf("dp-%d-%s", *cfg.DPRank, name)
	}
	file, err := metrics.OpenStore(cfg.Metrics.Dir, name, log)
	if err != nil {
		return nil, fmt.Errorf("open the metrics of %s: %w", cfg.name(), err)
	}
	backend := metrics.ByRole(file, cfg.Metrics.Backends)
	s := store{file: file}
	if cfg.Trace.Enabled {
		s.spans = metrics.NewSpansLost(backend)
	}
	if !cfg.exports() {
		s.to = metrics.NewBreaches(backend, cfg.Disagg.Mode.EngineType())
		return s, nil
	}
	s.to = metrics.NewScheduler(backend, metrics.RankLabels{
		ModelName: cfg.ServedModelName, EngineType: cfg.Disagg.Mode.EngineType(), Priority: cfg.Priority.Enabled, TPRank: tpRank, PPRank: ppRank,
		DPRank: cfg.DPRank, Extra: cfg.Metrics.Labels, MaxValues: cfg.Metrics.MaxLabelValues,
		Features: cfg.features(made), EvictionBuckets: cfg.Metrics.EvictionBuckets,
	}, clock)
	return s, nil
}
