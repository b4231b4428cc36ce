package observe

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// proofRig runs a scraper against a cluster of pods and a clock that the test moves.
type proofRig struct {
	*rig
	proofs   *Proofs
	registry *prometheus.Registry
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func newProofRig(t *testing.T, prom *Prometheus, pods ...*corev1.Pod) *proofRig {
	t.Helper()
	return newProofRigWith(t, 500*time.Millisecond, prom, pods...)
}

// newProofRigWith also says how long a scrape may take.
func newProofRigWith(t *testing.T, timeout time.Duration, prom *Prometheus, pods ...*corev1.Pod) *proofRig {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, p := range pods {
		builder = builder.WithObjects(p)
	}
	r := &proofRig{rig: &rig{t: t, pods: builder.Build(), clock: testingclock.NewFakeClock(epoch)}, registry: prometheus.NewRegistry()}
	r.proofs = NewProofs(r.clock, 15*time.Second)
	series, err := NewProofMetrics(r.registry, r.proofs)
	if err != nil {
		t.Fatal(err)
	}
	r.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(r.queue.ShutDown)
	if err := r.proofs.Source().Start(t.Context(), r.queue); err != nil {
		t.Fatal(err)
	}
	scraper, err := NewScraper(ScraperConfig{
		Timeout: timeout, LimitBytes: 1 << 20, Pods: r.pods, Proofs: r.proofs, Prometheus: prom, Metrics: series,
		Clock: r.clock, Random: func() float64 { return 0.5 }, Log: testr.New(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- scraper.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the scraper ended with %v", err)
		}
	})
	return r
}

func (r *proofRig) reading(pod string) PodReading { return r.proofs.Pool(key("pool")).Pods[pod] }

// metricsServer serves what text gives, status 200, or an error of that status.
func metricsServer(t *testing.T, text func() (status int, body []byte)) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/metrics" {
			http.NotFound(w, request)
			return
		}
		status, body := text()
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	return server
}

func decodePod(p *corev1.Pod) {
	p.Labels[v1alpha1.LabelRole], p.Labels[v1alpha1.LabelService] = string(v1alpha1.RoleDecode), "chat"
}

// TestScraper follows an engine that exports, loses a rank, answers with an error, and comes back.
func TestScraper(t *testing.T) {
	text := engineText(t, v1alpha1.RoleDecode)
	other := bytes.ReplaceAll(bytes.ReplaceAll(text, []byte(`pp_rank="2"`), []byte(`pp_rank="0"`)), []byte(`tp_rank="1"`), []byte(`tp_rank="0"`))
	var rows []byte // of the second rank, without comments
	for line := range bytes.Lines(other) {
		if line[0] != '#' {
			rows = append(rows, line...)
		}
	}
	both := append(bytes.Clone(text), rows...)
	var now atomic.Pointer[func() (int, []byte)]
	serve := func(status int, body []byte) {
		answer := func() (int, []byte) { return status, body }
		now.Store(&answer)
	}
	serve(200, both)
	server := metricsServer(t, func() (int, []byte) { return (*now.Load())() })
	r := newProofRig(t, nil, leader(t, "d-0-0", server.URL, decodePod))

	expected := []ExpectedPod{{Name: "d-0-0", Ranks: []RankID{{}, {PP: 2, TP: 1}}, Since: epoch.Add(-time.Hour)}}
	// within says after how long, by the scraper's clock, the findings are as wanted.
	within := func(what string, want ...string) time.Duration {
		t.Helper()
		from := r.clock.Now()
		r.eventually(time.Second, func() string {
			if r.reading("d-0-0").Taken.IsZero() {
				return "not read yet"
			}
			findings, _ := Prove(v1alpha1.RoleDecode, expected, r.proofs.Pool(key("pool")), r.clock.Now())
			var got []string
			for _, f := range findings {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return what + " (-want +got):\n" + diff
			}
			return ""
		})
		r.proofs.Note(key("pool"), nil)
		return r.clock.Now().Sub(from)
	}
	within("whole")
	serve(200, text)
	if took := within("one rank's exporter has ended", "d-0-0/0 (RankMissing: the pod exports no series of it)"); took > 30*time.Second {
		t.Errorf("the rank was named after %s, want 30 s at most", took)
	}
	serve(200, both)
	within("whole again")
	serve(503, nil)
	if took := within("the exporter has ended",
		"d-0-0/0 (TargetDown: /metrics answers with status 503)", "d-0-0/0 pp_rank 2 tp_rank 1 (TargetDown: /metrics answers with status 503)"); took > 30*time.Second {
		t.Errorf("the ranks were named after %s, want 30 s at most", took)
	}
	serve(200, both)
	within("back")
	serve(200, bytes.Repeat([]byte("# TYPE x gauge\nx 1\n"), 1<<17))
	within("too large", "d-0-0/0 (TargetDown: /metrics: the body is larger than 1048576 bytes)", "d-0-0/0 pp_rank 2 tp_rank 1 (TargetDown: /metrics: the body is larger than 1048576 bytes)")

	if r.queue.Len() == 0 {
		t.Error("the controller was not told")
	}
	if n := testutil.ToFloat64(r.metricsOf("sluice_operator_scrapes_total")); n == 0 {
		t.Error("no scrape was counted")
	}
}

// metricsOf gives a collector of one family of the registry.
func (r *proofRig) metricsOf(name string) prometheus.Collector {
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := prometheus.NewGauge(prometheus.GaugeOpts{Name: "sum"})
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum.Add(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			}
		}
	}
	return sum
}

// TestScraperTargets: pods that start, have ended or belong to nobody are not scraped; those of every node rank are.
func TestScraperTargets(t *testing.T) {
	server := metricsServer(t, func() (int, []byte) { return 200, engineText(t, v1alpha1.RoleDecode) })
	second := func(p *corev1.Pod) { p.Labels[v1alpha1.LabelNodeRank] = "1" }
	r := newProofRig(t, nil,
		leader(t, "a", server.URL, decodePod), leader(t, "b", server.URL, decodePod, second),
		leader(t, "starts", server.URL, decodePod, notReady),
		leader(t, "stumbles", server.URL, decodePod, notReady, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "engine", Started: new(true)}}
		}),
		leader(t, "ended", server.URL, decodePod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		leader(t, "foreign", server.URL, decodePod, func(p *corev1.Pod) { p.OwnerReferences = nil }),
	)
	r.eventually(time.Second, func() string {
		read := map[string]bool{}
		for name, p := range r.proofs.Pool(key("pool")).Pods {
			read[name] = !p.Taken.IsZero()
		}
		return cmp.Diff(map[string]bool{"a": true, "b": true, "starts": false, "stumbles": true}, read)
	})
	pod := &corev1.Pod{}
	if err := r.pods.Get(t.Context(), key("b"), pod); err != nil {
		t.Fatal(err)
	}
	if err := r.pods.Delete(t.Context(), pod); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	r.eventually(time.Second, func() string {
		if _, there := r.proofs.Pool(key("pool")).Pods["b"]; there {
			return "b is still there"
		}
		return ""
	})
}

// TestScraperOfDeadEngines: engines that accept a connection and say nothing take all places for as long as they may, and a
// live one is read as before.
func TestScraperOfDeadEngines(t *testing.T) {
	live := metricsServer(t, func() (int, []byte) { return 200, engineText(t, v1alpha1.RoleDecode) })
	var hang atomic.Bool
	dead := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if hang.Load() {
			<-request.Context().Done()
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(dead.Close)
	pods := []*corev1.Pod{leader(t, "live", live.URL, decodePod)}
	for i := range 8 {
		pods = append(pods, leader(t, fmt.Sprintf("dead-%d", i), dead.URL, decodePod))
	}
	r := newProofRigWith(t, time.Minute, nil, pods...)
	r.eventually(time.Second, func() string {
		asked := 0
		for _, reading := range r.proofs.Pool(key("pool")).Pods {
			if !reading.Taken.IsZero() || reading.Err != nil {
				asked++
			}
		}
		if asked < len(pods) {
			return fmt.Sprintf("%d of %d engines were asked", asked, len(pods))
		}
		return ""
	})
	hang.Store(true)
	until := r.clock.Now().Add(4 * 15 * time.Second)
	r.eventually(time.Second, func() string {
		if taken := r.reading("live").Taken; taken.Before(until) {
			return fmt.Sprintf("the live engine was read at %s last, and it is %s", taken, r.clock.Now())
		}
		return ""
	})
}

// TestScrapeErrors: what stands in the way goes into a condition, so it is short and the same from one attempt to the next.
func TestScrapeErrors(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		serve        http.HandlerFunc
		want         string
	}{
		{"LongWord", "an engine may answer anything", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs %s\n", strings.Repeat("x", 60_000))
		}, "/metrics: no exposition in the text format: text format parsing error in line 1: expected float as value, got \"xxxxxxxxxxxxxxxxxxx…"},
		{"Broken", "addresses and ports differ", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("# TYPE x gauge\n"))
		}, "/metrics: unexpected EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(tc.serve)
			t.Cleanup(server.Close)
			client := newClient(time.Minute, time.Minute, 1)
			t.Cleanup(client.CloseIdleConnections)
			_, _, err := fetchExposition(t.Context(), client, server.URL+"/metrics", v1alpha1.RoleDecode, 1<<20)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %q: %s", err, tc.want, tc.reason)
			}
		})
	}
}

// TestProofMetrics compares the operator's series of a pool whole.
func TestProofMetrics(t *testing.T) {
	clk := testingclock.NewFakePassiveClock(epoch)
	proofs := NewProofs(clk, 15*time.Second)
	registry := prometheus.NewRegistry()
	if _, err := NewProofMetrics(registry, proofs); err != nil {
		t.Fatal(err)
	}
	target := scrapeTarget{pod: key("d-0-0"), pool: key("chat-decode"), service: key("chat"), uid: "1", role: v1alpha1.RoleDecode}
	proofs.sync([]scrapeTarget{target})
	e := Exposition{Ranks: map[RankID]RankSeries{{}: {Running: 1, Families: map[string]bool{}}}, Violations: map[string]float64{"kv_pages": 2, "stages": 0}}
	for i := range 5 {
		proofs.put(target, epoch.Add(time.Duration(i)*15*time.Second), e, outcomeOK, nil)
	}
	proofs.Note(key("chat-decode"), []Finding{{Pod: "d-0-0", Cause: CauseFamilyMissing}, {Pod: "d-0-0", Cause: CauseStale}, {Pod: "d-0-1", Cause: CauseStale}})
	proofs.services[key("chat")] = &kvLaw{verdict: KVVerdict{Judged: true, Sent: 10, Failed: 1, Received: 9, Broken: "x"}}
	var want strings.Builder
	want.WriteString("# HELP sluice_operator_missing_ranks Ranks whose series do not arrive, by cause.\n# TYPE sluice_operator_missing_ranks gauge\n")
	for cause, n := range map[Cause]int{
		CauseFamilyMissing: 1, CauseLabelMissing: 0, CauseMonitorSelectorMismatch: 0, CauseNoTarget: 0, CausePolicyBlocks: 0, CauseRankMissing: 0, CauseStale: 2, CauseTargetDown: 0,
	} {
		fmt.Fprintf(&want, "sluice_operator_missing_ranks{cause=%q,inference_service=\"chat\",namespace=\"team-a\",pool=\"decode\"} %d\n", cause, n)
	}
	want.WriteString(`# HELP sluice_operator_frozen_ranks Ranks that hold work and do none.
# TYPE sluice_operator_frozen_ranks gauge
sluice_operator_frozen_ranks{inference_service="chat",namespace="team-a",pool="decode"} 1
# HELP sluice_operator_ledger_violations Breaches of the laws of the ledger that the living engines of a pool count, by law.
# TYPE sluice_operator_ledger_violations gauge
sluice_operator_ledger_violations{inference_service="chat",law="kv_pages",namespace="team-a",pool="decode"} 2
sluice_operator_ledger_violations{inference_service="chat",law="stages",namespace="team-a",pool="decode"} 0
# HELP sluice_operator_kv_bytes Bytes of KV handed over since the set of pods was last another: sent, failed and received.
# TYPE sluice_operator_kv_bytes gauge
sluice_operator_kv_bytes{inference_service="chat",namespace="team-a",side="failed"} 1
sluice_operator_kv_bytes{inference_service="chat",namespace="team-a",side="received"} 9
sluice_operator_kv_bytes{inference_service="chat",namespace="team-a",side="sent"} 10
# HELP sluice_operator_kv_law_broken 1 when what prefill engines sent is not what decode engines received.
# TYPE sluice_operator_kv_law_broken gauge
sluice_operator_kv_law_broken{inference_service="chat",namespace="team-a"} 1
`)
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want.String()), "sluice_operator_missing_ranks", "sluice_operator_frozen_ranks",
		"sluice_operator_ledger_violations", "sluice_operator_kv_bytes", "sluice_operator_kv_law_broken"); err != nil {
		t.Error(err)
	}
	proofs.sync(nil)
	if pods := proofs.Pool(types.NamespacedName{Namespace: "team-a", Name: "chat-decode"}).Pods; len(pods) != 0 || len(proofs.services) != 0 {
		t.Errorf("gone pods stay: %v", pods)
	}
}
