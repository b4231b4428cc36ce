package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-dev/sluice/internal/scrapers"
	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/fleet"
	"github.com/sluice-dev/sluice/router/proxy"
)

// Metrics holds the router's series. It is a proxy.Observer and a fleet.Listener.
type Metrics struct {
	registry *prometheus.Registry

	requests, retries, picks, quarantines   *prometheus.CounterVec
	inFlight, engines                       *prometheus.GaugeVec
	draining                                prometheus.Gauge
	duration, firstByte, overhead, waitTime *prometheus.HistogramVec

	next fleet.Listener // hears what this one has heard
}

// New makes the series, with every label value that is known at the start at 0. next hears the fleet's events too.
func New(next fleet.Listener) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), next: next,
		requests: counter(requests), retries: counter(retries), picks: counter(picks), quarantines: counter(quarantines),
		inFlight: gauge(inFlight), engines: gauge(engines), draining: gauge(draining).WithLabelValues(),
		duration: histogram(duration), firstByte: histogram(firstByte), overhead: histogram(overhead), waitTime: histogram(queueWait),
	}
	m.registry.MustRegister(m.requests, m.retries, m.picks, m.quarantines, m.inFlight, m.engines, m.draining, m.duration, m.firstByte, m.overhead, m.waitTime,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, route := range proxy.Routes() {
		m.inFlight.WithLabelValues(route)
	}
	for _, reason := range proxy.RetryReasons() {
		m.retries.WithLabelValues(string(reason))
	}
	for _, role := range []discovery.Role{discovery.Prefill, discovery.Decode, discovery.Unified} {
		m.picks.WithLabelValues(string(role))
		m.quarantines.WithLabelValues(string(role))
		for _, state := range []discovery.State{discovery.StateReady, discovery.StateNotReady, discovery.StateDraining} {
			m.engines.WithLabelValues(string(role), string(state))
		}
	}
	return m
}

func counter(f Family) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help}, f.Labels)
}

func gauge(f Family) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.Name, Help: f.Help}, f.Labels)
}

func histogram(f Family) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f.Name, Help: f.Help, Buckets: f.Buckets}, f.Labels)
}

// Watch makes the requests that wait for each role a series, read at each scrape.
func (m *Metrics) Watch(count func() map[discovery.Role]int) {
	for _, role := range []discovery.Role{discovery.Prefill, discovery.Decode, discovery.Unified} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: waiting.Name, Help: waiting.Help, ConstLabels: prometheus.Labels{"role": string(role)},
		}, func() float64 { return float64(count()[role]) }))
	}
}

// Handler serves GET /metrics, to few at once and to those who read: see scrapers.Limit.
func (m *Metrics) Handler() http.Handler {
	return scrapers.Limit(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}), scrapers.Most)
}

// Draining notes that the router is about to end.
func (m *Metrics) Draining() { m.draining.Set(1) }

// Started implements proxy.Observer.
func (m *Metrics) Started(route string) { m.inFlight.WithLabelValues(route).Inc() }

// Finished implements proxy.Observer.
func (m *Metrics) Finished(route string, status int, outcome proxy.Outcome, took time.Duration) {
	m.inFlight.WithLabelValues(route).Dec()
	m.requests.WithLabelValues(route, strconv.Itoa(status), string(outcome)).Inc()
	m.duration.WithLabelValues(route, string(outcome)).Observe(took.Seconds())
}

// Waited implements proxy.Observer.
func (m *Metrics) Waited(took time.Duration) { m.waitTime.WithLabelValues().Observe(took.Seconds()) }

// Forwarded implements proxy.Observer.
func (m *Metrics) Forwarded(route string, took time.Duration) {
	m.overhead.WithLabelValues(route).Observe(took.Seconds())
}

// FirstByte implements proxy.Observer.
func (m *Metrics) FirstByte(route string, took time.Duration) {
	m.firstByte.WithLabelValues(route).Observe(took.Seconds())
}

// Retried implements proxy.Observer.
func (m *Metrics) Retried(reason proxy.RetryReason) { m.retries.WithLabelValues(string(reason)).Inc() }

// Changed implements fleet.Listener.
func (m *Metrics) Changed(e discovery.Engine, from, to discovery.State) {
	if from != "" {
		m.engines.WithLabelValues(string(e.Role), string(from)).Dec()
	}
	if to != "" {
		m.engines.WithLabelValues(string(e.Role), string(to)).Inc()
	}
	m.next.Changed(e, from, to)
}

// Quarantined implements fleet.Listener.
func (m *Metrics) Quarantined(e discovery.Engine) {
	m.quarantines.WithLabelValues(string(e.Role)).Inc()
	m.next.Quarantined(e)
}

// Picked implements fleet.Listener.
func (m *Metrics) Picked(e discovery.Engine) {
	m.picks.WithLabelValues(string(e.Role)).Inc()
	m.next.Picked(e)
}
