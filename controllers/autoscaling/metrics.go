package autoscaling

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-dev/sluice/controllers/metrics"
)

// RegisterMetrics registers the series of the server, read at each scrape: when its certificates end, and whether the
// cluster's registrations are its own.
func (s *MetricsServer) RegisterMetrics(registry prometheus.Registerer) error {
	if err := registry.Register(serverCollector{s}); err != nil {
		return fmt.Errorf("register the series of the metrics API: %w", err)
	}
	return nil
}

type serverCollector struct{ server *MetricsServer }

// Describe implements prometheus.Collector.
func (c serverCollector) Describe(out chan<- *prometheus.Desc) {
	out <- metrics.CertificateExpiry.Desc()
	out <- metrics.Registered.Desc()
}

// Collect implements prometheus.Collector. A certificate that is not there yet has no series.
func (c serverCollector) Collect(out chan<- prometheus.Metric) {
	current := c.server.serving.credentials()
	for _, certificate := range []struct {
		name string
		text []byte
	}{{"serving", current.Certificate}, {"authority", current.AuthorityBundle}} {
		if ends, ok := expiry(certificate.text); ok {
			out <- metrics.CertificateExpiry.GaugeValue(float64(ends.Unix()), certificate.name)
		}
	}
	for _, r := range c.server.Registrations() {
		registered := 0.0
		if r.State == Registered {
			registered = 1
		}
		out <- metrics.Registered.GaugeValue(registered, r.APIService)
	}
}

// expiry says when the first certificate of a bundle ends.
func expiry(bundle []byte) (ends time.Time, ok bool) {
	block, _ := pem.Decode(bundle)
	if block == nil {
		return time.Time{}, false
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, false
	}
	return certificate.NotAfter, true
}
