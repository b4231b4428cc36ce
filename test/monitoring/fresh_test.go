package monitoring

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/test/harness"
)

// TestFirstHits: what a fresh engine finds in its cache for the first time counts in every share, though its series of
// realtime_tokens_total begins with it, and nothing looks like repeated work.
func TestFirstHits(t *testing.T) {
	harness.NoteSources(t, "../..")
	noProbes := []string{"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false"} // each computes a token
	e := programs.StartEngine(t, "", noProbes, "--model-path", tiny, "--page-size", "8", "--enable-metrics")
	begin := time.Unix(1_800_000_000, 0)
	var scrapes []scrape
	look := func() {
		scrapes = append(scrapes, scrape{begin.Add(time.Duration(len(scrapes)) * scrapeInterval), map[string]string{instance(e): harness.Get(t, e.URL+"/metrics")}})
	}
	look()
	if first := scrapes[0].pages[instance(e)]; strings.Contains(first, "sglang:realtime_tokens_total{") {
		t.Fatalf("the engine is not fresh:\n%s", first)
	}
	look()
	prompt, found := slices.Repeat([]int32{5, 6, 7, 8}, 10), 0
	for range 2 {
		var a harness.Answer
		if err := harness.Post(t.Context(), e.URL+"/generate", map[string]any{
			"input_ids": prompt, "sampling_params": map[string]any{"max_new_tokens": 2, "ignore_eos": true},
		}, &a); err != nil {
			t.Fatal(err)
		}
		found += a.MetaInfo.CachedTokens
	}
	if found == 0 {
		t.Fatal("the second request found nothing")
	}
	e.Idle(t)
	look()

	hits := round4(float64(found) / float64(2*len(prompt)))
	questions, variables := readBoard(t)
	all := map[string]string{"__rate_interval": "20s"}
	for _, v := range variables {
		all[v.Name] = v.AllValue
	}
	s := newStore(t, scrapes, asWritten, byAddress)
	got := map[string][]string{}
	for _, q := range questions {
		if !slices.Contains([]string{"Cache Hit Rate", "Hit Rate by Source", "Repeated Share of Prefill"}, q.panel) {
			continue
		}
		answer, err := s.last(t.Context(), choose(q.expr, all))
		if err != nil {
			t.Fatal(err)
		}
		got[q.panel] = slices.Sorted(maps.Values(answer))
	}
	_, solo := services()
	rule, err := rules.Build(solo, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cluster := newCluster(t, scrapes)
	for _, r := range rule.Spec.Groups[0].Rules {
		if r.Record == "pool:sluice_cache_hit:ratio_rate5m" {
			for _, sample := range cluster.at(t, r.Expr.String(), cluster.to) {
				got[r.Record] = append(got[r.Record], round4(sample.F))
			}
		}
	}
	want := map[string][]string{
		"Cache Hit Rate": {hits}, "Hit Rate by Source": {"0", "0", hits}, "Repeated Share of Prefill": {"0"}, "pool:sluice_cache_hit:ratio_rate5m": {hits},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}
