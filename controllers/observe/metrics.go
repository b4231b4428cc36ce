package observe

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Metrics are the poller's own series, prefix sluice_operator_.
type Metrics struct {
	polls   *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewMetrics registers the series: polls by result, their duration, and, read from the store at scrape, the samples by
// state and the age of the oldest fresh one.
func NewMetrics(registry prometheus.Registerer, store *Store, clk clock.PassiveClock) (*Metrics, error) {
	m := &Metrics{
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_operator_polls_total",
			Help: "Polls of engines for their load, by result.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_operator_poll_seconds",
			Help:    "Duration of polls of engines for their load.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
	}
	for _, o := range outcomes() {
		m.polls.WithLabelValues(string(o))
	}
	for _, c := range []prometheus.Collector{m.polls, m.seconds, &storeCollector{store: store, clock: clk,
		samples: prometheus.NewDesc("sluice_operator_samples", "Leader pods by the state of their newest sample.", []string{"state"}, nil),
		age:     prometheus.NewDesc("sluice_operator_sample_age_seconds", "Age of the oldest sample that is fresh.", nil, nil),
	}} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register the poller's metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) polled(o outcome, took time.Duration) {
	m.polls.WithLabelValues(string(o)).Inc()
	m.seconds.Observe(took.Seconds())
}

// storeCollector reads gauges from the store at scrape.
type storeCollector struct {
	store        *Store
	clock        clock.PassiveClock
	samples, age *prometheus.Desc
}

func (c *storeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.samples
	out <- c.age
}

func (c *storeCollector) Collect(out chan<- prometheus.Metric) {
	fresh, stale, none, oldest := c.store.counts(c.clock.Now())
	for _, state := range []struct {
		name  string
		count int
	}{{"fresh", fresh}, {"stale", stale}, {"none", none}} {
		out <- prometheus.MustNewConstMetric(c.samples, prometheus.GaugeValue, float64(state.count), state.name)
	}
	out <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, oldest.Seconds())
}
