package server

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/engine/metrics"
)

// updates is a backend that counts the updates of each family.
type updates struct {
	mu       sync.Mutex
	byFamily map[string]int
}

// updated takes the updates of one family.
type updated struct {
	to   *updates
	name string
}

func (u *updates) Counter(f *metrics.Family, _ []metrics.Label) metrics.CounterSeries {
	return updated{u, f.Name}
}

func (u *updates) Gauge(f *metrics.Family, _ []metrics.Label) metrics.GaugeSeries {
	return updatedGauge{updated{u, f.Name}}
}

func (u *updates) Histogram(f *metrics.Family, _ []metrics.Label, _ []float64) metrics.HistogramSeries {
	return metrics.Weighted(updated{u, f.Name})
}

func (s updated) Observe(float64) { s.Add(1) }

func (s updated) Add(float64) {
	s.to.mu.Lock()
	defer s.to.mu.Unlock()
	s.to.byFamily[s.name]++
}

type updatedGauge struct{ updated }

func (s updatedGauge) Set(float64, int64) { s.updated.Add(1) }
func (s updatedGauge) Add(float64, int64) { s.updated.Add(1) }

func (u *updates) of(family string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.byFamily[family]
}

// An embedder gets the series of the roles that it asks for; /metrics goes on with the others.
func TestBackendsByRole(t *testing.T) {
	scheduler, front := &updates{byFamily: map[string]int{}}, &updates{byFamily: map[string]int{}}
	r := serveWith(t, func(*Config) {}, map[metrics.Source]metrics.Backend{metrics.FromScheduler: scheduler, metrics.FromFront: front})
	body := `{"text":"hello","stream":true,"sampling_params":{"max_new_tokens":9,"ignore_eos":true}}`
	if status, answer := r.ask(t, http.MethodPost, "/generate", body); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, answer)
	}
	for family, u := range map[string]*updates{
		"sglang:queue_time_seconds": scheduler, "sglang:kv_used_tokens": scheduler, "sglang:realtime_tokens_total": scheduler,
		"sglang:num_requests_total": front, "sglang:time_to_first_token_seconds": front, "sglang:e2e_request_latency_seconds": front,
	} {
		eventually(t, family+" is told", func() bool { return u.of(family) > 0 })
	}
	_, text := r.ask(t, http.MethodGet, "/metrics", "")
	for name, want := range map[string]bool{"sglang:http_requests_total": true, "sglang:num_requests_total": false, "sglang:queue_time_seconds": false} {
		if got := strings.Contains(text, "# TYPE "+name+" "); got != want {
			t.Errorf("%s in /metrics: %v, want %v", name, got, want)
		}
	}
}
