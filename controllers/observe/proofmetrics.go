package observe

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	m := &ProofMetrics{
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_operator_scrapes_total",
			Help: "Scrapes of engines by the operator, as the proof that their metrics are there, by result.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_operator_scrape_seconds",
			Help:    "Duration of the operator's scrapes of engines.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_operator_prometheus_checks_total",
			Help: "Pools that Prometheus was asked about, by result.",
		}, []string{"result"}),
	}
	for _, o := range outcomes() {
		m.scrapes.WithLabelValues(string(o))
	}
	for _, result := range []string{"ok", "error"} {
		m.queries.WithLabelValues(result)
	}
	pool := []string{"inference_namespace", "engine_pool"}
	service := []string{"inference_namespace", "inference_service_name"}
	for _, c := range []prometheus.Collector{m.scrapes, m.seconds, m.queries, &proofCollector{proofs: proofs,
		missing:    prometheus.NewDesc("sluice_operator_missing_ranks", "Ranks whose series do not arrive, by cause.", append(pool, "cause"), nil),
		frozen:     prometheus.NewDesc("sluice_operator_frozen_ranks", "Ranks that hold work and do none.", pool, nil),
		violations: prometheus.NewDesc("sluice_operator_ledger_violations", "Breaches of the laws of the ledger that the living engines of a pool count, by law.", append(pool, "law"), nil),
		kv:         prometheus.NewDesc("sluice_operator_kv_bytes", "Bytes of KV handed over since the set of pods was last another: sent, failed and received.", append(service, "side"), nil),
		broken:     prometheus.NewDesc("sluice_operator_kv_law_broken", "1 when what prefill engines sent is not what decode engines received.", service, nil),
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
	for _, pool := range c.proofs.poolNames() {
		proof := c.proofs.Pool(pool)
		frozen, violations := 0, map[string]float64{}
		for _, p := range proof.Pods {
			frozen += len(p.Frozen)
			for law, n := range p.Exposition.Violations {
				violations[law] += n
			}
		}
		gauge(c.frozen, float64(frozen), pool.Namespace, pool.Name)
		for law, n := range violations {
			gauge(c.violations, n, pool.Namespace, pool.Name, law)
		}
		missing := c.proofs.missing(pool)
		for _, cause := range Causes() {
			gauge(c.missing, float64(missing[cause]), pool.Namespace, pool.Name, string(cause))
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
