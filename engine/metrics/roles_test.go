package metrics

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// Each role's series can be made elsewhere; the others stay in the store.
func TestByRole(t *testing.T) {
	for _, c := range []struct {
		role      Source
		reason    string
		elsewhere []string // updates that the other backend gets, of one of each
	}{
		{FromScheduler, "the scheduler's", []string{"num_retracted_requests_total +2", "num_retracted_input_tokens_total +3", "num_retracted_output_tokens_total +4"}},
		{FromCache, "the prefix cache's", []string{"evicted_tokens_total +5", "eviction_duration_seconds 6"}},
		{FromFront, "the API process's", []string{"num_aborted_requests_total +1"}},
		{FromHTTP, "HTTP's", []string{"http_requests_total{endpoint=/x,method=GET} +1", "http_requests_active{endpoint=/x,method=GET} +1"}},
	} {
		t.Run(c.role.String(), func(t *testing.T) {
			dir, clock := t.TempDir(), ledgertest.New()
			r := &recorder{}
			b := ByRole(openStore(t, dir, "all"), map[Source]Backend{c.role: r})
			m := NewScheduler(b, RankLabels{EngineType: "unified"}, clock)
			f := NewFront(b, FrontLabels{EngineType: "unified"}, Buckets{}, clock)
			r.take()
			m.Retracted(2, 3, 4)
			m.Evicted(5, 6e9)
			f.Aborted()
			f.RequestStarted("/x", "GET")
			if diff := cmp.Diff(c.elsewhere, r.take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			families, err := newGatherer(t, dir).Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range families {
				if row, ok := Lookup(got.GetName()); !ok || row.Source == c.role {
					t.Errorf("%s is in the store too", got.GetName())
				}
			}
		})
	}
	store := openStore(t, t.TempDir(), "all")
	if b := ByRole(store, nil); b != Backend(store) {
		t.Error("without another backend the store is wrapped")
	}
}

// An observer without weights gets as many samples, of the same sum.
func TestWeighted(t *testing.T) {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", Buckets: []float64{1, 2}})
	w := Weighted(h)
	w.Observe(0.5)
	w.ObserveWeighted(6, 4)
	w.ObserveWeighted(6, 0)
	var got dto.Metric
	if err := h.Write(&got); err != nil {
		t.Fatal(err)
	}
	if n, sum := got.Histogram.GetSampleCount(), got.Histogram.GetSampleSum(); n != 5 || sum != 6.5 || got.Histogram.Bucket[1].GetCumulativeCount() != 5 || got.Histogram.Bucket[0].GetCumulativeCount() != 1 {
		t.Errorf("%d samples of %v: %v", n, sum, &got)
	}
}

// clientGolang makes series of client_golang: the naive twin of a Store.
type clientGolang struct {
	registry *prometheus.Registry
	made     map[string]any
}

func made[T any](b *clientGolang, f *Family, labels []Label, make func(name string, labels prometheus.Labels) T, collect func(T) prometheus.Collector) T {
	key := string(encodeMeta(f.Name, labels))
	if old, ok := b.made[key]; ok {
		return old.(T)
	}
	constant := prometheus.Labels{}
	for _, l := range labels {
		constant[l.Name] = l.Value
	}
	v := make(f.Name, constant)
	b.registry.MustRegister(collect(v))
	b.made[key] = v
	return v
}

func (b *clientGolang) Counter(f *Family, labels []Label) CounterSeries {
	return made(b, f, labels, func(name string, l prometheus.Labels) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: f.Help, ConstLabels: l})
	}, func(c prometheus.Counter) prometheus.Collector { return c })
}

// lazyGauge is collected once it was written, like a stored one.
type lazyGauge struct {
	prometheus.Gauge
	written bool
}

func (g *lazyGauge) Collect(out chan<- prometheus.Metric) {
	if g.written {
		g.Gauge.Collect(out)
	}
}

func (g *lazyGauge) Set(v float64, _ int64) { g.Gauge.Set(v); g.written = true }
func (g *lazyGauge) Add(v float64, _ int64) { g.Gauge.Add(v); g.written = true }

// stored hides the methods of client_golang that have another form.
type stored struct{ g *lazyGauge }

func (s stored) Set(v float64, wall int64) { s.g.Set(v, wall) }
func (s stored) Add(v float64, wall int64) { s.g.Add(v, wall) }

func (b *clientGolang) Gauge(f *Family, labels []Label) GaugeSeries {
	return stored{made(b, f, labels, func(name string, l prometheus.Labels) *lazyGauge {
		return &lazyGauge{Gauge: prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: f.Help, ConstLabels: l})}
	}, func(g *lazyGauge) prometheus.Collector { return collected{g} })}
}

// collected is a gauge as a collector.
type collected struct{ g *lazyGauge }

func (c collected) Describe(out chan<- *prometheus.Desc) { c.g.Gauge.Describe(out) }
func (c collected) Collect(out chan<- prometheus.Metric) { c.g.Collect(out) }

func (b *clientGolang) Histogram(f *Family, labels []Label, bounds []float64) HistogramSeries {
	if bounds == nil {
		bounds = f.Buckets
	}
	return Weighted(made(b, f, labels, func(name string, l prometheus.Labels) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: f.Help, ConstLabels: l, Buckets: bounds})
	}, func(h prometheus.Histogram) prometheus.Collector { return h }))
}

// flat is a sample of families, by its name and labels.
func flat(families []*dto.MetricFamily) map[string]float64 {
	samples := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var pairs []string
			for _, l := range m.GetLabel() {
				pairs = append(pairs, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(pairs)
			key := f.GetName() + "{" + strings.Join(pairs, ",") + "}"
			switch {
			case m.Counter != nil:
				samples[key] = m.Counter.GetValue()
			case m.Gauge != nil:
				samples[key] = m.Gauge.GetValue()
			case m.Histogram != nil:
				samples[key+" count"], samples[key+" sum"] = float64(m.Histogram.GetSampleCount()), m.Histogram.GetSampleSum()
				for _, b := range m.Histogram.GetBucket() {
					if !math.IsInf(b.GetUpperBound(), 1) {
						samples[key+" "+string(appendFloat(nil, plainText, b.GetUpperBound()))] = float64(b.GetCumulativeCount())
					}
				}
			}
		}
	}
	return samples
}

// The store holds what client_golang's own counters, gauges and histograms would.
func TestStoreIsAsItsTwin(t *testing.T) {
	for engineType, form := range map[string]ledger.Form{"unified": ledger.Unified, "prefill": ledger.Prefill, "decode": ledger.Decode} {
		t.Run(engineType, func(t *testing.T) {
			dir := t.TempDir()
			twin := &clientGolang{prometheus.NewPedanticRegistry(), map[string]any{}}
			for _, b := range []Backend{openStore(t, dir, "all"), twin} {
				clock := ledgertest.New()
				m := NewScheduler(b, RankLabels{ModelName: "tiny", EngineType: engineType, Priority: true}, clock)
				f := NewFront(b, FrontLabels{ModelName: "tiny", EngineType: engineType, Priority: true, Custom: []string{"team"}}, Buckets{}, clock)
				fill(m, f, form)
				m.QueueTime(5e9, report.Priority{Set: true, Value: 3})
			}
			want, err := twin.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got, err := newGatherer(t, dir).Gather()
			if err != nil {
				t.Fatal(err)
			}
			got = slices.DeleteFunc(got, func(f *dto.MetricFamily) bool { row, _ := Lookup(f.GetName()); return row.Source == FromStore })
			if diff := cmp.Diff(flat(want), flat(got), cmpopts.EquateApprox(1e-12, 0), cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("-client_golang +store:\n%s", diff)
			}
		})
	}
}
