package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/internal/folder"
)

// observer is the replica's side of the metrics: who listens to the server, what /metrics serves, and the directory where
// all processes of the replica write. All are empty while metrics are off.
type observer struct {
	events     Events
	spansLost  func(spans int64)
	exposition http.Handler
	dir        string

	private  *folder.Folder // that dir is the path of
	store    *metrics.Store
	gatherer *metrics.Gatherer
}

func newObserver(cfg Config, run Runtime) (*observer, error) {
	if !cfg.EnableMetrics {
		return &observer{}, nil
	}
	place := fmt.Sprintf("PROMETHEUS_MULTIPROC_DIR is %q", cfg.MetricsDir)
	if cfg.MetricsDir == "" {
		place = fmt.Sprintf("the temporary directory is %s: set TMPDIR or PROMETHEUS_MULTIPROC_DIR to one with space that can be written", os.TempDir())
	}
	private, err := metrics.PrivateDir(cfg.MetricsDir)
	if err != nil {
		return nil, fmt.Errorf("--enable-metrics: %s: %w", place, err)
	}
	dir := private.Path
	o := &observer{private: private, dir: dir}
	if o.store, err = metrics.OpenStore(dir, "api", run.Log); err != nil {
		return nil, errors.Join(fmt.Errorf("--enable-metrics: %s: %w", place, err), o.close())
	}
	backend := metrics.ByRole(o.store, run.Backends)
	o.spansLost = metrics.NewSpansLost(backend) // at 0 also while nothing is traced, as every counter of this process
	front := metrics.NewFront(backend, metrics.FrontLabels{
		ModelName: cfg.ServedModelName, EngineType: cfg.Rank.Disagg.Mode.EngineType(), Priority: cfg.Rank.Priority.Enabled,
		Custom: cfg.AllowedCustomLabels, Extra: cfg.ExtraMetricLabels, MaxValues: cfg.Rank.Metrics.MaxLabelValues,
	}, cfg.Buckets, run.Clock)
	o.events, o.gatherer = front, metrics.NewGatherer(dir)
	o.gatherer.Guard(o.store, front.Cut())
	o.exposition = metrics.Handler(o.gatherer)
	return o, nil
}

// end is close for a replica that has done its work: what can't be removed is told, and no reason to fail.
func (o *observer) end(log *slog.Logger) {
	if err := o.close(); err != nil {
		log.Warn("the files of the metrics may be left behind", "directory", o.dir, "error", err)
	}
}

// close removes the stores of all processes; call it when the rank has ended.
func (o *observer) close() error {
	var errs []error
	if o.gatherer != nil {
		errs = append(errs, o.gatherer.Close())
	}
	if o.store != nil {
		errs = append(errs, o.store.Close())
	}
	if o.private != nil {
		errs = append(errs, o.private.Remove())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the metrics: %w", err)
	}
	return nil
}
