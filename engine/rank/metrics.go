package rank

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// store is a rank's file in the replica's metrics directory.
type store struct {
	file *metrics.Store
	to   report.Reporter
}

func (s store) reporter() report.Reporter { return s.to }
func (s store) close() error              { return s.file.Close() }

// openMetrics opens the store that cfg names, or one that forgets when metrics are off.
func openMetrics(cfg Config, clock ledger.Clock) (metricsStore, error) {
	tpRank, ppRank := cfg.Rank%max(1, cfg.TPSize), cfg.Rank/max(1, cfg.TPSize)
	if !cfg.Metrics.Enabled || tpRank > 0 && !cfg.Metrics.AllRanks {
		return noMetrics{}, nil
	}
	name := fmt.Sprintf("rank-%d", cfg.Rank)
	if cfg.DPRank != nil {
		name = fmt.Sprintf("dp-%d-%s", *cfg.DPRank, name)
	}
	file, err := metrics.OpenStore(cfg.Metrics.Dir, name)
	if err != nil {
		return nil, fmt.Errorf("open the metrics of %s: %w", cfg.name(), err)
	}
	return store{file: file, to: metrics.NewScheduler(file, metrics.RankLabels{
		ModelName: cfg.ServedModelName, EngineType: cfg.Disagg.Mode.EngineType(), Priority: cfg.Priority.Enabled, TPRank: tpRank, PPRank: ppRank,
		DPRank: cfg.DPRank, Extra: cfg.Metrics.Labels,
	}, clock)}, nil
}
