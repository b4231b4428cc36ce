package observe

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-dev/sluice/controllers/metrics"
)

// ProofMetrics are the series of the proof that metrics arrive, prefix sluice_operator_.
type ProofMetrics struct {
	scrapes *prometheus.CounterVec
	seconds prometheus.Histogram
	queries *prometheus.CounterVec
}

// NewProofMetrics registers the series: scrapes by result and their duration, questions to Prometheus by result, and, read
// from the store at scrape, for each pool the ranks whose series do not arrive by cause, the frozen ranks and the breaches
// of the ledger's laws, and for each service the bytes of its hand-overs.
func NewProofMetrics(registry prometheus.Registerer, proofs *Proofs) (*ProofMetrics, error) {
	m := &ProofMetrics{scrapes: metrics.Scrapes.CounterVec(), seconds: metrics.ScrapeSeconds.Histogram(), queries: metrics.PrometheusChecks.CounterVec()}
	for _, o := range outcomes() {
		m.scrapes.WithLabelValues(string(o))
	}
	for _, result := range []string{"ok", "error"} {
		m.queries.WithLabelValues(result)
	}
	for _, c := range []prometheus.Collector{m.scrapes, m.seconds, m.queries, &proofCollector{proofs: proofs,
		missing: metrics.MissingRanks.Desc(), frozen: metrics.FrozenRanks.Desc(), violations: metrics.LedgerViolations.Desc(),
		kv: metrics.KVBytes.Desc(), broken: metrics.KVLawBroken.Desc(),
	}} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register the proof's metrics: %w", err)
		}
	}
	return m, nil
}

func (m *ProofMetrics) scraped(o outcome, took time.Duration) {
	m.scrapes.WithLabelValues(string(o)).Inc()
	m.seconds.Observe(took.Seconds())
}

func (m *ProofMetrics) asked(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.queries.WithLabelValues(result).Inc()
}

// proofCollector reads gauges from the store at scrape.
type proofCollector struct {
	proofs                                  *Proofs
	missing, frozen, violations, kv, broken *prometheus.Desc
}

func (c *proofCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.missing, c.frozen, c.violations, c.kv, c.broken} {
		out <- d
	}
}

func (c *proofCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for pool, t := range c.proofs.totals() {
		labels := []string{pool.Namespace, t.service, strings.TrimPrefix(pool.Name, t.service+"-")}
		of := func(more string) []string { return append(labels[:3:3], more) }
		gauge(c.frozen, float64(t.frozen), labels...)
		for law, n := range t.violations {
			gauge(c.violations, n, of(law)...)
		}
		for _, cause := range Causes() {
			gauge(c.missing, float64(t.missing[cause]), of(string(cause))...)
		}
	}
	for service, v := range c.proofs.verdicts() {
		if !v.Judged {
			continue
		}
		gauge(c.kv, v.Sent, service.Namespace, service.Name, "sent")
		gauge(c.kv, v.Failed, service.Namespace, service.Name, "failed")
		gauge(c.kv, v.Received, service.Namespace, service.Name, "received")
		broken := 0.0
		if v.Broken != "" {
			broken = 1
		}
		gauge(c.broken, broken, service.Namespace, service.Name)
	}
}
