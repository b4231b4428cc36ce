package observe

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/sluice-dev/sluice/controllers/metrics"
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
		polls:   metrics.Polls.CounterVec(),
		seconds: metrics.PollSeconds.Histogram(),
	}
	for _, o := range outcomes() {
		m.polls.WithLabelValues(string(o))
	}
	for _, c := range []prometheus.Collector{m.polls, m.seconds, &storeCollector{store: store, clock: clk,
		samples: metrics.Samples.Desc(), age: metrics.SampleAge.Desc(),
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
