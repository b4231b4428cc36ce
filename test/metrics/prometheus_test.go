package metrics

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/sluice-dev/sluice/test/harness"
)

// scrapeConfig has a job for each text format. The labels of the target are what a monitor gives to the pod of a rank:
// the engine's own win where it has them.
const scrapeConfig = `
global: {scrape_interval: 250ms, scrape_timeout: 250ms}
scrape_configs:
- job_name: text
  honor_labels: true
  scrape_protocols: [PrometheusText0.0.4]
  static_configs: [{targets: ["%[1]s"], labels: {engine_type: pod, tp_rank: pod}}]
- job_name: openmetrics
  honor_labels: true
  scrape_protocols: [OpenMetricsText1.0.0]
  static_configs: [{targets: ["%[1]s"], labels: {engine_type: pod, tp_rank: pod}}]
`

// database is a Prometheus that scrapes one engine.
type database struct {
	t  *testing.T
	db *tsdb.DB
}

// scrapeInto runs Prometheus's scraper on a target until the test ends.
func scrapeInto(t *testing.T, target string) *database {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(fmt.Sprintf(scrapeConfig, target), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	manager, err := scrape.NewManager(nil, nil, nil, db, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.ApplyConfig(cfg); err != nil {
		t.Fatal(err)
	}
	targets := make(chan map[string][]*targetgroup.Group)
	done := make(chan error, 1)
	go func() { done <- manager.Run(targets) }()
	groups := map[string][]*targetgroup.Group{}
	for _, job := range cfg.ScrapeConfigs {
		for _, d := range job.ServiceDiscoveryConfigs {
			static, ok := d.(discovery.StaticConfig)
			if !ok {
				t.Fatalf("discovery by %T", d)
			}
			groups[job.JobName] = static
		}
	}
	targets <- groups
	t.Cleanup(func() {
		manager.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return &database{t, db}
}

// last gives the newest sample of every series of a job, by the series' labels without the job.
func (d *database) last(job string) map[string]float64 {
	d.t.Helper()
	q, err := d.db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		d.t.Fatal(err)
	}
	defer q.Close()
	samples := map[string]float64{}
	set := q.Select(d.t.Context(), false, &storage.SelectHints{Start: math.MinInt64, End: math.MaxInt64}, labels.MustNewMatcher(labels.MatchEqual, "job", job))
	var it chunkenc.Iterator
	for set.Next() {
		series := set.At()
		it = series.Iterator(it)
		for it.Next() == chunkenc.ValFloat {
			_, v := it.At()
			samples[labels.NewBuilder(series.Labels()).Del("job", "instance").Labels().String()] = v
		}
		if err := it.Err(); err != nil {
			d.t.Fatal(err)
		}
	}
	if err := set.Err(); err != nil {
		d.t.Fatal(err)
	}
	return samples
}

// named keeps the series whose name begins so.
func named(samples map[string]float64, prefix string) map[string]float64 {
	kept := map[string]float64{}
	for series, v := range samples {
		if strings.HasPrefix(series, `{__name__="`+prefix) {
			kept[series] = v
		}
	}
	return kept
}

// A real Prometheus stores the names as they are written, the same series from both formats, with the labels of the engine;
// when the engine is killed every series becomes stale.
func TestPrometheusStoresWhatIsExposed(t *testing.T) {
	harness.NoteSources(t, "../..")
	e := programs.StartEngine(t, "", nil, "--model-path", tiny, "--max-total-tokens", "1024", "--decode-log-interval", "2")
	const requests = 5
	for i := range requests {
		if err := harness.Post(t.Context(), e.URL+"/generate", map[string]any{
			"input_ids": []int{20, 21, 22, 30 + i}, "sampling_params": map[string]any{"max_new_tokens": 7, "ignore_eos": true},
		}, nil); err != nil {
			t.Fatal(err)
		}
	}
	e.Idle(t)
	d := scrapeInto(t, strings.TrimPrefix(e.URL, "http://"))
	const series = `{__name__="sglang:num_requests_total", engine_type="unified", is_streaming="False", model_name="m", tp_rank="pod"}`
	for _, job := range []string{"text", "openmetrics"} {
		harness.Eventually(t, "the requests are stored by the job "+job, func() bool { return d.last(job)[series] == requests })
	}

	// What the exposition has in itself, from both formats, is what is stored.
	static := func(samples map[string]float64) map[string]float64 { // what no scrape changes
		kept := named(samples, "sglang:")
		for s := range kept {
			for _, moving := range []string{"http_", "scheduler_", "get_loads"} {
				if strings.HasPrefix(s, `{__name__="sglang:`+moving) {
					delete(kept, s)
				}
			}
		}
		return kept
	}
	text := static(d.last("text"))
	if diff := cmp.Diff(text, static(d.last("openmetrics")), cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("the two formats (-text +OpenMetrics):\n%s", diff)
	}
	exposed := map[string]bool{}
	for line := range strings.Lines(harness.Get(t, e.URL+"/metrics")) {
		if name := line[:strings.IndexAny(line, "{ ")]; strings.HasPrefix(name, "sglang:") {
			exposed[name] = true
		}
	}
	stored := map[string]bool{}
	for s := range named(d.last("text"), "sglang:") {
		name, _, _ := strings.Cut(strings.TrimPrefix(s, `{__name__="`), `"`)
		stored[name] = true
	}
	if diff := cmp.Diff(exposed, stored); diff != "" {
		t.Errorf("names (-exposed +stored):\n%s", diff)
	}

	for _, want := range []string{
		`{__name__="sglang:num_running_reqs", engine_type="unified", model_name="m", moe_ep_rank="0", pp_rank="0", tp_rank="0"}`,
		`{__name__="up", engine_type="pod", tp_rank="pod"}`,
	} {
		if _, ok := d.last("openmetrics")[want]; !ok {
			t.Errorf("no series %s: the labels of the engine win, those of the target fill in", want)
		}
	}

	e.Kill()
	harness.Eventually(t, "every series of the killed engine is stale", func() bool {
		for _, job := range []string{"text", "openmetrics"} {
			samples := named(d.last(job), "s")
			if len(samples) == 0 || slices.ContainsFunc(values(samples), func(v float64) bool { return !value.IsStaleNaN(v) }) {
				return false
			}
		}
		return true
	})
}

func values(samples map[string]float64) (list []float64) {
	for series, v := range samples {
		if !strings.HasPrefix(series, `{__name__="scrape_`) { // the scraper's own
			list = append(list, v)
		}
	}
	return list
}
