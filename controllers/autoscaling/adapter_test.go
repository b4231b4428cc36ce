package autoscaling

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/engine/metrics"
)

// exposed is one pod's exposition with the labels that its monitor sets.
type exposed struct {
	file, pod, replica string
	// instead replaces values of families, in all series of them.
	instead map[string]string
}

// database stores what the pods exposed at a time and 30 s later, the second time with histograms grown.
func database(t *testing.T, at time.Time, pods ...exposed) *teststorage.TestStorage {
	t.Helper()
	storage := teststorage.New(t)
	t.Cleanup(func() { _ = storage.Close() })
	appender := storage.Appender(t.Context())
	for _, pod := range pods {
		text, err := os.ReadFile("../../engine/metrics/testdata/" + pod.file + ".prom")
		must(t, err)
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		must(t, err)
		for _, offset := range []time.Duration{-90 * time.Second, 0} {
			samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.TimeFromUnixNano(at.Add(offset).UnixNano())}, values(families)...)
			must(t, err)
			for _, s := range samples {
				b := labels.NewBuilder(labels.EmptyLabels())
				for name, value := range s.Metric {
					b.Set(string(name), string(value))
				}
				b.Set("namespace", "team-a").Set("inference_service", "chat").Set("pool", "decode").Set("pod", pod.pod).Set("replica", pod.replica)
				value := float64(s.Value)
				if text, ok := pod.instead[string(s.Metric["__name__"])]; ok {
					_, err := fmt.Sscan(text, &value)
					must(t, err)
				}
				if name := string(s.Metric["__name__"]); strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_count") {
					value *= 30 // events enough for a quantile
					if offset < 0 {
						value = 0
					}
				}
				_, err := appender.Append(0, b.Labels(), at.Add(offset).UnixMilli(), value)
				must(t, err)
			}
		}
	}
	must(t, appender.Commit())
	return storage
}

func values[M ~map[string]V, V any](m M) (list []V) {
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

// ask runs a query and gives the values by pod, in three digits.
func ask(t *testing.T, storage *teststorage.TestStorage, at time.Time, query string) map[string]string {
	t.Helper()
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, promqltest.DefaultMaxSamplesPerQuery)
	instant, err := engine.NewInstantQuery(t.Context(), storage, nil, query, at)
	must(t, err)
	defer instant.Close()
	result := instant.Exec(t.Context())
	must(t, result.Err)
	vector, err := result.Vector()
	must(t, err)
	got := map[string]string{}
	for _, s := range vector {
		got[s.Metric.Get("pod")] = fmt.Sprintf("%.3f", s.F)
	}
	return got
}

// TestAdapterRules runs the example's queries as prometheus-adapter fills them in, over what engines really expose.
func TestAdapterRules(t *testing.T) {
	text, err := os.ReadFile("../../config/adapters/prometheus-adapter.yaml")
	must(t, err)
	var config struct {
		Rules []struct {
			SeriesQuery  string `json:"seriesQuery"`
			MetricsQuery string `json:"metricsQuery"`
			Resources    any    `json:"resources"`
			Name         struct{ Matches, As string }
		} `json:"rules"`
	}
	must(t, yaml.UnmarshalStrict(text, &config))
	storage := database(t, epoch,
		exposed{file: "decode", pod: "a", replica: "0", instead: map[string]string{"sglang:utilization": "0.5", "sglang:num_running_reqs": "4", "sglang:token_usage": "0.25"}},
		exposed{file: "decode", pod: "idle", replica: "1", instead: map[string]string{
			"sglang:utilization": "0.9", "sglang:num_running_reqs": "0", "sglang:num_queue_reqs": "0", "sglang:token_usage": "0",
			"sglang:num_grammar_queue_reqs": "0", "sglang:num_decode_prealloc_queue_reqs": "0", "sglang:num_decode_transfer_queue_reqs": "0",
		}},
		exposed{file: "decode", pod: "broken", replica: "2", instead: map[string]string{"sglang:utilization": "NaN", "sglang:token_usage": "-1", "sglang:num_running_reqs": "NaN"}},
		exposed{file: "prefill", pod: "prefill", replica: "3", instead: map[string]string{"sglang:num_running_reqs": "1", "sglang:token_usage": "0.5"}},
	)
	got := map[string]map[string]string{}
	for _, rule := range config.Rules {
		if _, ok := semantics.SignalNamed(rule.Name.As); !ok {
			t.Errorf("%s is no signal", rule.Name.As)
		}
		series := strings.Trim(rule.Name.Matches, "^$")
		if recorded := map[string]string{"sluice_ttft_slo_ratio": "pod:sluice_ttft_slo:ratio", "sluice_itl_slo_ratio": "pod:sluice_itl_slo:ratio"}; recorded[rule.Name.As] == series {
			continue // a rule of the service makes it
		}
		if _, ok := metrics.Lookup(series); !ok || !strings.HasPrefix(rule.SeriesQuery, series+"{") {
			t.Errorf("%s is made of %s, which is no family", rule.Name.As, series)
		}
		var query strings.Builder
		must(t, template.Must(template.New("").Delims("<<", ">>").Parse(rule.MetricsQuery)).Execute(&query, map[string]string{
			"Series": series, "LabelMatchers": `namespace="team-a",pod=~"a|idle|broken|prefill"`, "GroupBy": "pod",
		}))
		got[rule.Name.As] = ask(t, storage, epoch, query.String())
	}
	want := map[string]map[string]string{
		"sluice_utilization": {"a": "0.500", "idle": "0.000"},
		"sluice_token_usage": {"a": "0.250", "idle": "0.000", "prefill": "0.500"},
		"sluice_concurrency": {"a": "4.000", "idle": "0.000", "prefill": "1.000"},
	}
	if len(got["sluice_queue_length"]) != 4 || got["sluice_queue_length"]["idle"] != "0.000" || got["sluice_queue_length"]["a"] == "0.000" {
		t.Errorf("queues: %v", got["sluice_queue_length"])
	}
	delete(got, "sluice_queue_length")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTriggers runs the queries of KEDA's triggers over what engines really expose.
func TestTriggers(t *testing.T) {
	pool := testPool(func(p *v1alpha1.EnginePool) {
		objective := &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: time.Second}, Objective: resource.MustParse("0.5")}
		p.Spec.SLO = &v1alpha1.SLOSpec{TTFT: objective, ITL: objective}
	})
	busy := database(t, epoch,
		exposed{file: "decode", pod: "a", replica: "0", instead: map[string]string{"sglang:utilization": "0.5", "sglang:num_running_reqs": "4", "sglang:token_usage": "0.25"}},
		exposed{file: "decode", pod: "b", replica: "1", instead: map[string]string{"sglang:utilization": "1.25", "sglang:num_running_reqs": "6", "sglang:token_usage": "0.5"}},
	)
	nothing := database(t, epoch)
	for _, tc := range []struct {
		signal v1alpha1.ScalingMetricType
		want   string // empty: anything above 0
	}{
		{v1alpha1.MetricUtilization, "1.750"}, {v1alpha1.MetricTokenUsage, "0.750"}, {v1alpha1.MetricConcurrency, "10.000"},
		{v1alpha1.MetricQueueLength, ""}, {v1alpha1.MetricTTFT, ""}, {v1alpha1.MetricITL, ""},
	} {
		signal, _ := semantics.SignalOf(tc.signal)
		query, ok := signal.Query(PoolSelector(pool), 1, pool.Spec.SLO)
		if !ok {
			t.Errorf("%s has no query", tc.signal)
			continue
		}
		got := ask(t, busy, epoch, query)[""]
		if (tc.want != "" && got != tc.want) || got == "" || (tc.want == "" && got == "0.000") {
			t.Errorf("%s is %q, want %q\n%s", tc.signal, got, tc.want, query)
		}
		if got := ask(t, nothing, epoch, query); len(got) > 0 {
			t.Errorf("%s without series is %v, want no answer", tc.signal, got)
		}
	}
	for _, f := range semantics.Signals() {
		for _, name := range f.QueriedFamilies() {
			if _, ok := metrics.Lookup(name); !ok {
				t.Errorf("%s asks for %s, which is no family", f.Type, name)
			}
		}
	}
}
