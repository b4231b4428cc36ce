package autoscaling

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	metricsprovider "sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	monitoringrules "github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/engine/loads"
)

// defect is what is wrong with the numbers of a pool of two engines, a and b, with two DP ranks each.
type defect string

const (
	sound       defect = "Sound"       // nothing
	minusOne    defect = "MinusOne"    // the second rank of a tells -1
	notANumber  defect = "NaN"         // it tells NaN
	infinite    defect = "Infinite"    // it tells +Inf
	absent      defect = "Absent"      // no engine tells anything
	allStale    defect = "Stale"       // both engines have stopped telling
	partial     defect = "Partial"     // a has stopped telling
	rankMissing defect = "RankMissing" // a has stopped telling of its second rank
)

func defects() []defect {
	return []defect{minusOne, notANumber, infinite, absent, allStale, partial, rankMissing}
}

// value is what the second rank of a tells instead of 1.
func (d defect) value() float64 {
	switch d {
	case minusOne:
		return -1
	case notANumber:
		return math.NaN()
	case infinite:
		return math.Inf(1)
	default:
		return 1
	}
}

// latencySLO has an objective for both latencies.
func latencySLO() *v1alpha1.SLOSpec {
	objective := &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: time.Second}, Objective: resource.MustParse("0.5")}
	return &v1alpha1.SLOSpec{TTFT: objective, ITL: objective}
}

// defective gives the samples of the two engines.
func defective(signal semantics.Signal, d defect) samples {
	role := signal.Roles[0]
	// What is no integer becomes -1 in a field of integers, as the poller does it.
	whole := -1
	if semantics.IsNumber(d.value()) {
		whole = 1
	}
	good := loads.Load{
		NumRunningReqs: 1, NumWaitingReqs: 1, NumWaitingUncached: 1, Utilization: 1, TokenUsage: 1,
		Disaggregation: &loads.Disaggregation{}, Queues: &loads.Queues{Waiting: 1},
	}
	bad := good
	bad.NumRunningReqs, bad.NumWaitingReqs, bad.NumWaitingUncached, bad.Utilization, bad.TokenUsage = whole, whole, whole, d.value(), d.value()
	pod := func(name string, ranks ...loads.Load) observe.PodSample {
		return engine(name, ranks, func(p *observe.PodSample) {
			p.Role, p.DataRanks = role, 2
			p.Work = []semantics.Work{{Tokens: 1, Micros: 1e6}, {Tokens: 1, Micros: 1e6}}
			p.Events = map[string]semantics.Distribution{}
			for _, family := range []string{semantics.FamilyTTFT, semantics.FamilyITL} {
				p.Events[family] = semantics.Distribution{Bounds: []float64{1, 2}, Counts: []float64{40, 40, 0}}
			}
		})
	}
	a, b := pod("a", good, bad), pod("b", good, good)
	if signal.Shared && (d == minusOne || d == notANumber || d == infinite) {
		a.Events[signal.Family()] = semantics.Distribution{Bounds: []float64{1, 2}, Counts: []float64{d.value(), 40, 0}}
	}
	switch d {
	case absent:
		return samples{}
	case allStale:
		stale(&a)
		stale(&b)
	case partial:
		stale(&a)
	case rankMissing:
		a.Ranks, a.Work = a.Ranks[:1], a.Work[:1]
	}
	return samples{a, b}
}

// TestNeverANumber breaks every signal in every way, on each of the ways on which autoscalers read it. What is broken gives no
// answer; the same without a defect gives one, so that the test proves something.
func TestNeverANumber(t *testing.T) {
	for _, d := range append([]defect{sound}, defects()...) {
		t.Run(string(d), func(t *testing.T) {
			storage := defectiveDatabase(t, d)
			for _, signal := range semantics.Signals() {
				t.Run(string(signal.Type), func(t *testing.T) {
					t.Run("MetricsAPI", func(t *testing.T) { neverByMetricsAPI(t, signal, d) })
					t.Run("KEDA", func(t *testing.T) { neverByKEDA(t, storage, signal, d) })
					t.Run("External", func(t *testing.T) { neverByAdapter(t, storage, signal, d) })
				})
			}
		})
	}
}

// neverByMetricsAPI asks for pods, for the pool, and as an external metric.
func neverByMetricsAPI(t *testing.T, signal semantics.Signal, d defect) {
	pool := testPool(func(p *v1alpha1.EnginePool) { p.Spec.Role, p.Spec.SLO = signal.Roles[0], latencySLO() })
	p := newProvider(t, defective(signal, d), pool)
	ctx, everything := t.Context(), labels.Everything()
	_, pods := p.GetMetricBySelector(ctx, "team-a", everything, podInfo(signal.Metric), everything)
	_, one := p.GetMetricByName(ctx, types.NamespacedName{Namespace: "team-a", Name: "chat-decode"}, poolInfo(signal.Metric), everything)
	_, external := externalProvider{p}.GetExternalMetric(ctx, "team-a", nil, metricsprovider.ExternalMetricInfo{Metric: signal.Metric})
	for asked, err := range map[string]error{"pods": pods, "the pool": one, "an external metric": external} {
		if (err == nil) != (d == sound) {
			t.Errorf("asked for %s: error %v", asked, err)
		}
	}
}

// scrapes is how often the engines of a database were scraped, scrapeSeconds how often once.
const (
	scrapes       = 20
	scrapeSeconds = 15
)

// defectiveDatabase is a Prometheus that scraped the two engines. At the last scrapes a stopped engine is a target that is down,
// and its series have ended as Prometheus ends them.
func defectiveDatabase(t *testing.T, d defect) *teststorage.TestStorage {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "load %ds\n", scrapeSeconds)
	series := func(name, labels string, values func(i int) string) {
		fmt.Fprintf(&text, "  %s{namespace=\"team-a\",tenant=\"team-a\",inference_service=\"chat\",pool=\"decode\",revision=\"x\",%s}", name, labels)
		for i := range scrapes + 1 {
			text.WriteString(" " + values(i))
		}
		text.WriteString("\n")
	}
	for n, pod := range []string{"a", "b"} {
		stopped := d == allStale || d == partial && pod == "a"
		of := func(stopped bool, value func(i int) string) func(int) string {
			return func(i int) string {
				switch left := scrapes - i; {
				case stopped && left < 2:
					return "_"
				case stopped && left == 2:
					return "stale"
				}
				return value(i)
			}
		}
		where := fmt.Sprintf(`pod=%q,replica="%d"`, pod, n)
		series("up", where, func(i int) string {
			if stopped && scrapes-i <= 2 {
				return "0"
			}
			return "1"
		})
		if d == absent {
			continue
		}
		for rank := range 2 {
			value := "1"
			if pod == "a" && rank == 1 {
				value = fmt.Sprint(d.value())
			}
			for _, family := range append(semantics.QueueFamilies(), "sglang:num_running_reqs", "sglang:utilization", "sglang:token_usage") {
				for _, copied := range []int{0, 1} { // the tensor ranks of a DP rank repeat it
					series(family, fmt.Sprintf(`%s,dp_rank="%d",tp_rank="%d",engine_type="decode",priority=""`, where, rank, copied),
						of(stopped || d == rankMissing && pod == "a" && rank == 1, func(int) string { return value }))
				}
			}
		}
		for _, family := range []string{semantics.FamilyTTFT, semantics.FamilyITL} {
			for bound, per := range map[string]int{"1": 10, "2": 20, "+Inf": 20} {
				series(family+"_bucket", fmt.Sprintf(`%s,le=%q`, where, bound), of(stopped, func(i int) string {
					if bound == "1" && pod == "a" && (d == notANumber || d == infinite) {
						return fmt.Sprint(d.value())
					}
					return fmt.Sprint(per * i)
				}))
			}
			series(family+"_count", where, of(stopped, func(i int) string { return fmt.Sprint(20 * i) }))
		}
	}
	storage := promqltest.LoadedStorage(t, text.String())
	t.Cleanup(func() { _ = storage.Close() })
	return storage
}

// answers runs a query at the time of the last scrape.
func answers(t *testing.T, storage *teststorage.TestStorage, query string) promql.Vector {
	t.Helper()
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, promqltest.DefaultMaxSamplesPerQuery)
	instant, err := engine.NewInstantQuery(t.Context(), storage, nil, query, time.Unix(scrapes*scrapeSeconds, 0))
	must(t, err)
	defer instant.Close()
	result := instant.Exec(t.Context())
	if result.Err != nil {
		t.Fatalf("%v\n%s", result.Err, query)
	}
	vector, err := result.Vector()
	must(t, err)
	return slices.Clone(vector)
}

// neverByKEDA asks as KEDA's triggers do: an empty answer is an error for KEDA.
func neverByKEDA(t *testing.T, storage *teststorage.TestStorage, signal semantics.Signal, d defect) {
	pool := testPool()
	query, ok := signal.Query(PoolSelector(pool), 2, latencySLO())
	if !ok {
		if signal.Type != v1alpha1.MetricPrefillDelay {
			t.Errorf("it has no query, and the API does not refuse it")
		}
		return
	}
	if signal.Shared && d == minusOne {
		return // counters are never below 0, and only their growth counts
	}
	got := answers(t, storage, query)
	if want := map[bool]int{true: 1}[d == sound]; len(got) != want {
		t.Errorf("got %v, want %d answers\n%s", got, want, query)
	}
}

// neverByAdapter asks for the pods as prometheus-adapter does: engine a has no value unless it is sound. What is one for the pool
// is recorded by a rule of the service, for no engine unless all are sound.
func neverByAdapter(t *testing.T, storage *teststorage.TestStorage, signal semantics.Signal, d defect) {
	text, err := os.ReadFile("../../config/adapters/prometheus-adapter.yaml")
	must(t, err)
	var config struct {
		Rules []struct {
			MetricsQuery string                       `json:"metricsQuery"`
			Name         struct{ Matches, As string } `json:"name"`
		} `json:"rules"`
	}
	must(t, yaml.Unmarshal(text, &config))
	for _, rule := range config.Rules {
		if rule.Name.As != signal.Metric {
			continue
		}
		if signal.Shared {
			neverRecorded(t, storage, signal, d, strings.Trim(rule.Name.Matches, "^$"))
			return
		}
		var query strings.Builder
		must(t, template.Must(template.New("").Delims("<<", ">>").Parse(rule.MetricsQuery)).Execute(&query, map[string]string{
			"Series": strings.Trim(rule.Name.Matches, "^$"), "LabelMatchers": `namespace="team-a",pod=~"a|b"`, "GroupBy": "pod",
		}))
		var got []string
		for _, sample := range answers(t, storage, query.String()) {
			got = append(got, sample.Metric.Get("pod"))
		}
		if slices.Contains(got, "a") != (d == sound) || slices.Contains(got, "b") != (d != absent && d != allStale) {
			t.Errorf("pods %v have a value\n%s", got, query.String())
		}
		return
	}
	if signal.Type != v1alpha1.MetricPrefillDelay {
		t.Errorf("the adapter has no rule, and the API does not refuse it")
	}
}

func neverRecorded(t *testing.T, storage *teststorage.TestStorage, signal semantics.Signal, d defect, record string) {
	if d == minusOne {
		return // counters are never below 0, and only their growth counts
	}
	service := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat"}, Spec: v1alpha1.InferenceServiceSpec{
		SLO: latencySLO(), Pools: []v1alpha1.PoolSpec{{
			Name: "decode", Role: v1alpha1.RoleDecode, EngineShape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Data: 2}},
			Autoscaling: &v1alpha1.AutoscalingSpec{MaxReplicas: 2, Provider: v1alpha1.ProviderExternal, Metrics: []v1alpha1.ScalingMetric{{Type: signal.Type, Target: resource.MustParse("0.9")}}},
		}},
	}}
	rule, err := monitoringrules.Build(service, monitoringrules.Options{})
	must(t, err)
	for _, group := range rule.Spec.Groups {
		for _, r := range group.Rules {
			if r.Record != record {
				continue
			}
			if got, want := len(answers(t, storage, r.Expr.String())), map[bool]int{true: 2}[d == sound]; got != want {
				t.Errorf("%d engines have a value, want %d\n%s", got, want, r.Expr.String())
			}
			return
		}
	}
	t.Errorf("no rule records %s", record)
}
