package rank

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/runner"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// TestEveryRankTellsBreaches: a rank whose metrics another one tells has nothing in the store but its own breaches.
func TestEveryRankTellsBreaches(t *testing.T) {
	dir := t.TempDir()
	for i := range 4 {
		cfg := Config{Rank: i, TPSize: 2, PPSize: 2, Metrics: MetricsConfig{Enabled: true, Dir: dir}}
		m, err := openMetrics(cfg, runner.Info{}, ledgertest.New(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		m.reporter().Violated(ledger.LawPages)
		m.reporter().Report(report.Snapshot{})
		m.reporter().RealtimeTokens(1, 0, 0)
	}
	g := metrics.NewGatherer(dir)
	defer g.Close()
	gathered, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range gathered {
		for _, m := range family.GetMetric() {
			switch family.GetName() {
			case "sluice_ledger_violations_total":
				got["law "+labelsOf(m)["law"]] += value(m)
			case "sglang:realtime_tokens_total":
				got[fmt.Sprint("tokens of rank ", labelsOf(m)["tp_rank"])] += value(m)
			}
		}
	}
	if len(got) != len(ledger.Laws())+1 || got["law kv_pages"] != 4 || got["law stages"] != 0 || got["tokens of rank 0"] != 2 {
		t.Errorf("the store says %v, want 4 breaches of kv_pages, 0 of the others, and 2 tokens", got)
	}
	if m, err := openMetrics(Config{}, runner.Info{}, ledgertest.New(), slog.New(slog.DiscardHandler)); err != nil || m != (noMetrics{}) {
		t.Errorf("when metrics are off: %v, %v", m, err)
	}
}

// TestSpansLost: every rank that makes spans counts those that get lost, from 0 on, and no other rank has the series.
func TestSpansLost(t *testing.T) {
	for _, tc := range []struct {
		name   string
		traced bool
		want   []float64 // of the one series: before and after each of four ranks lost its spans
	}{
		{"traced", true, []float64{0, 10}},
		{"not traced", false, []float64{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			g := metrics.NewGatherer(dir)
			defer g.Close()
			got := []float64{}
			read := func() {
				gathered, err := g.Gather()
				if err != nil {
					t.Fatal(err)
				}
				for _, family := range gathered {
					if family.GetName() == "sluice_trace_spans_lost_total" {
						got = append(got, family.GetMetric()[0].GetCounter().GetValue())
					}
				}
			}
			var tell []func(int64)
			for i := range 4 {
				cfg := Config{Rank: i, TPSize: 2, PPSize: 2, Metrics: MetricsConfig{Enabled: true, Dir: dir}}
				cfg.Trace.Enabled = tc.traced
				m, err := openMetrics(cfg, runner.Info{}, ledgertest.New(), slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				defer m.close()
				tell = append(tell, m.spansLost())
			}
			read()
			for i, told := range tell {
				if told != nil {
					told(int64(i + 1))
				}
			}
			read()
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
