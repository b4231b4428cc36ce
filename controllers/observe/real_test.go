package observe

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/buildcache"
	"github.com/sluice-dev/sluice/test/harness"
)

// realJob is a scrape configuration of one target, which has the labels that a monitor sets.
const realJob = `
- job_name: %s
  scrape_interval: 500ms
  scrape_timeout: 500ms
  honor_labels: true
  static_configs:
  - targets: ['%s']
    labels: {namespace: team-a, pod: pool-0-0, tenant: acme, inference_service: chat, pool: decode, engine_type: decode, replica: "0", node_rank: "0", revision: r}
`

// TestRealPrometheus takes the monitor of a pool away from a real Prometheus, which goes on answering with its last samples:
// that is said at once, as long as nothing else scrapes the pod.
func TestRealPrometheus(t *testing.T) {
	cache, err := buildcache.Open(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	program, err := cache.Path(t.Context(), "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	engine := metricsServer(t, func() (int, []byte) { return http.StatusOK, engineText(t, v1alpha1.RoleDecode) })
	address := strings.TrimPrefix(engine.URL, "http://")
	file, base := filepath.Join(t.TempDir(), "prometheus.yaml"), fmt.Sprintf("127.0.0.1:%d", harness.FreePorts(t, 1)[0])
	configure := func(jobs ...string) {
		t.Helper()
		text := "scrape_configs:"
		for _, job := range jobs {
			text += fmt.Sprintf(realJob, job, address)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reload := func() {
		t.Helper()
		response, err := http.Post("http://"+base+"/-/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("reload: status %d", response.StatusCode)
		}
	}
	const monitor = "serviceMonitor/team-a/pool/0"
	configure(monitor)
	harness.Start(t, "prometheus", program, nil, "--config.file="+file, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+base, "--web.enable-lifecycle")
	t.Cleanup(http.DefaultClient.CloseIdleConnections)

	asker, err := NewPrometheus(PrometheusConfig{URL: "http://" + base})
	if err != nil {
		t.Fatal(err)
	}
	// now is what the operator would say: it asks, and compares with what it reads itself.
	proofs := NewProofs(clock.RealClock{}, time.Minute)
	scraper, err := NewScraper(ScraperConfig{
		Interval: time.Minute, Pods: fake.NewClientBuilder().Build(), Proofs: proofs, Prometheus: asker, Clock: clock.RealClock{},
		Metrics: mustProofMetrics(t, proofs), Random: func() float64 { return 0.5 }, Log: logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	rank := RankID{PP: 2, TP: 1} // of the engine whose page it is
	pod := ExpectedPod{Name: "pool-0-0", Ranks: []RankID{rank}, Since: time.Now().Add(-time.Hour), Labels: map[string]string{"tenant": "acme", "pool": "decode"}}
	now := func() string {
		scraper.ask(t.Context(), key("pool"), v1alpha1.RoleDecode)
		proof := proofs.Pool(key("pool"))
		if proof.Stored.Err != nil {
			return proof.Stored.Err.Error()
		}
		proof.Pods[pod.Name] = PodReading{Taken: time.Now(), Exposition: Exposition{Ranks: map[RankID]RankSeries{rank: whole()}}}
		findings, _ := Prove(v1alpha1.RoleDecode, []ExpectedPod{pod}, proof, time.Now())
		var text []string
		for _, f := range findings {
			text = append(text, f.String())
		}
		return strings.Join(text, ", ")
	}
	eventually := func(what, want string) {
		t.Helper()
		last := ""
		harness.Eventually(t, what+": "+want, func() bool {
			is := now()
			if is != last {
				t.Logf("%s: %s", what, is)
				last = is
			}
			return is == want
		})
	}

	eventually("a pool that is scraped", "")
	configure()
	reload()
	mismatch := "pool-0-0/" + rank.String() + " (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)"
	if diff := cmp.Diff(mismatch, now()); diff != "" {
		t.Errorf("after the reload (-want +got):\n%s", diff)
	}
	if up := proofs.Pool(key("pool")).Stored.Up["pool-0-0"]; !up.Up {
		t.Error("Prometheus does not answer for the target any more, which this test is about")
	}
	configure("kubernetes-pods")
	reload()
	eventually("a pod that another configuration scrapes", "")
	configure(monitor)
	reload()
	taken := func() bool { return now() == "" && proofs.Pool(key("pool")).Stored.Monitored }
	harness.Eventually(t, "the monitor again", taken) // Prometheus takes it some seconds later
	configure("serviceMonitor/team-a/pool-2/0")
	reload()
	if diff := cmp.Diff(mismatch, now()); diff != "" {
		t.Errorf("with the monitor of another pool alone (-want +got):\n%s", diff)
	}
	configure(monitor)
	reload()
	harness.Eventually(t, "the monitor once more", taken)
	engine.Close()
	eventually("an engine that is gone, which the operator still reaches", "pool-0-0/"+rank.String()+" (PolicyBlocks: the operator reaches it and Prometheus does not: dial tcp "+address+": connect: connection refused)")
}

func mustProofMetrics(t *testing.T, proofs *Proofs) *ProofMetrics {
	t.Helper()
	m, err := NewProofMetrics(prometheus.NewRegistry(), proofs)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
