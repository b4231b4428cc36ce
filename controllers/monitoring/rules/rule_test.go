package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/metrics"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/semantics"
	routermetrics "github.com/sluice-dev/sluice/router/metrics"
)

func latency(threshold time.Duration, share string) *v1alpha1.LatencyObjective {
	return &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: threshold}, Objective: resource.MustParse(share)}
}

// service is a pair of pools, or with unified one, with objectives.
func service(roles ...v1alpha1.Role) *v1alpha1.InferenceService {
	s := &v1alpha1.InferenceService{
		ObjectMeta: metav1.ObjectMeta{Name: here.service, Namespace: here.namespace, UID: "1"},
		Spec:       v1alpha1.InferenceServiceSpec{Tenant: here.tenant, SLO: &v1alpha1.SLOSpec{TTFT: latency(time.Second, "0.99"), ITL: latency(50*time.Millisecond, "0.9")}},
	}
	for _, role := range roles {
		s.Spec.Pools = append(s.Spec.Pools, v1alpha1.PoolSpec{Name: role.EngineType(), Role: role})
	}
	return s
}

func pair() *v1alpha1.InferenceService    { return service(v1alpha1.RolePrefill, v1alpha1.RoleDecode) }
func unified() *v1alpha1.InferenceService { return service(v1alpha1.RoleUnified) }

func build(t *testing.T, s *v1alpha1.InferenceService, o Options) *monitoringv1.PrometheusRule {
	t.Helper()
	rule, err := Build(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func each(rule *monitoringv1.PrometheusRule, do func(monitoringv1.Rule)) {
	for _, g := range rule.Spec.Groups {
		for _, r := range g.Rules {
			do(r)
		}
	}
}

// selectors walks an expression and gives all that it selects.
func selectors(t *testing.T, expr string) (list []*parser.VectorSelector) {
	t.Helper()
	parsed, err := parser.ParseExpr(expr)
	if err != nil {
		t.Fatalf("%v in\n%s", err, expr)
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			list = append(list, s)
		}
		return nil
	})
	return list
}

// TestObject compares all of the object but its rules.
func TestObject(t *testing.T) {
	s := pair()
	s.Spec.Observability.Rules.Labels = map[string]string{"team": "red", "app.kubernetes.io/managed-by": "me"}
	got := build(t, s, Options{Labels: map[string]string{"release": "prom", "team": "blue"}})
	for i := range got.Spec.Groups {
		if len(got.Spec.Groups[i].Rules) == 0 {
			t.Errorf("group %s is empty", got.Spec.Groups[i].Name)
		}
		got.Spec.Groups[i].Rules = nil
	}
	yes := true
	want := &monitoringv1.PrometheusRule{
		TypeMeta: metav1.TypeMeta{APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "chat", Namespace: "team-a",
			Labels: map[string]string{
				"release": "prom", "team": "red",
				"inference.sluice.dev/service": "chat", "inference.sluice.dev/tenant": "acme", "inference.sluice.dev/component": "rules",
				"app.kubernetes.io/name": "sluice-rules", "app.kubernetes.io/instance": "chat-rules", "app.kubernetes.io/component": "rules",
				"app.kubernetes.io/part-of": "chat", "app.kubernetes.io/managed-by": "sluice-operator",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "inference.sluice.dev/v1alpha1", Kind: "InferenceService", Name: "chat", UID: "1", Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: monitoringv1.PrometheusRuleSpec{Groups: []monitoringv1.RuleGroup{{Name: "sluice.team-a.chat.recording"}, {Name: "sluice.team-a.chat.alerts"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPrometheusAccepts gives the rules to Prometheus's own reader, which also expands the templates of annotations.
func TestPrometheusAccepts(t *testing.T) {
	for name, s := range map[string]*v1alpha1.InferenceService{"pair": pair(), "unified": unified()} {
		spec, err := yaml.Marshal(build(t, s, Options{}).Spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, errs := rulefmt.Parse(spec, false); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// TestSelectors: every selector has the three labels of the service, whatever is in them, and finds a family of the registry
// under both spellings, a series of the router, a recorded series of this service, or up.
func TestSelectors(t *testing.T) {
	odd := pair()
	odd.Spec.Tenant = `a"b\`
	for name, s := range map[string]*v1alpha1.InferenceService{"pair": pair(), "unified": unified(), "odd tenant": odd} {
		rule := build(t, s, Options{})
		known := map[string]bool{"up": true}
		each(rule, func(r monitoringv1.Rule) { known[r.Record] = true })
		for _, f := range routermetrics.Families() {
			known[f.Name] = true
		}
		each(rule, func(r monitoringv1.Rule) {
			found := selectors(t, r.Expr.String())
			if len(found) == 0 {
				t.Errorf("%s: %s%s selects nothing", name, r.Record, r.Alert)
			}
			for _, selector := range found {
				have, metric := map[string]string{}, (*labels.Matcher)(nil)
				for _, m := range selector.LabelMatchers {
					have[m.Name] = m.Type.String() + m.Value
					if m.Name == labels.MetricName {
						metric = m
					}
				}
				want := map[string]string{"namespace": "=team-a", "tenant": "=" + s.Spec.Tenant, "inference_service": "=chat"}
				for label, value := range want {
					if have[label] != value {
						t.Errorf("%s: %s%s: %s has %s%q, want %q", name, r.Record, r.Alert, selector, label, have[label], value)
					}
				}
				n, ok := family(metric)
				if !ok && !known[metric.Value] {
					t.Errorf("%s: %s%s selects %s, which nobody exports", name, r.Record, r.Alert, metric)
				}
				if ok && n.Priorities == semantics.Repeats && have["priority"] != "=" {
					t.Errorf("%s: %s%s: %s takes totals and priorities together", name, r.Record, r.Alert, selector)
				}
			}
			for label, value := range map[string]string{"namespace": "team-a", "tenant": s.Spec.Tenant, "inference_service": "chat"} {
				if r.Labels[label] != value {
					t.Errorf("%s: %s%s sets %s=%q, want %q", name, r.Record, r.Alert, label, r.Labels[label], value)
				}
			}
		})
	}
}

// family finds the row that a matcher of the name takes, under each of its spellings and no other.
func family(m *labels.Matcher) (semantics.Number, bool) {
	for _, n := range semantics.Numbers() {
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			name := n.Name + suffix
			if n.Source == semantics.FromMetrics && m.Matches(name) && m.Matches(strings.ReplaceAll(name, ":", "_")) && !m.Matches(name+"x") {
				return n, true
			}
		}
	}
	return semantics.Number{}, false
}

// TestAlertsRestOnWhatStays: no alert asks, itself or through what is recorded, for a family that a monitor may leave out to
// stay within its limit.
func TestAlertsRestOnWhatStays(t *testing.T) {
	rule := build(t, pair(), Options{})
	behind := map[string][]string{}
	each(rule, func(r monitoringv1.Rule) {
		if r.Record != "" {
			behind[r.Record] = append(behind[r.Record], r.Expr.String())
		}
	})
	var check func(alert, expr string)
	check = func(alert, expr string) {
		for _, selector := range selectors(t, expr) {
			for _, m := range selector.LabelMatchers {
				if m.Name != labels.MetricName {
					continue
				}
				for _, expr := range behind[m.Value] {
					check(alert, expr)
				}
				if n, ok := family(m); ok && !monitoring.Essential(n.Name) {
					t.Errorf("%s rests on %s, which a monitor may leave out", alert, n.Name)
				}
			}
		}
	}
	for _, r := range rule.Spec.Groups[1].Rules {
		check(r.Alert, r.Expr.String())
	}
}

func TestRouterFamilies(t *testing.T) {
	var names []string
	for _, f := range routermetrics.Families() {
		names = append(names, f.Name)
	}
	for name := range routerFamilies {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not in the router's table", name)
		}
	}
}

var (
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	seriesRow = regexp.MustCompile("(?m)^\\| `(\\w+:[\\w:]+)` \\| ([^|]*) \\|$")
	alertRow  = regexp.MustCompile("(?m)^\\| `(Sluice\\w+)` \\| (\\w+) \\| ([^|]*) \\| ([^|]*) \\|")
)

// TestAlertsAreWhole: everybody who is called can see what is wrong, how much, and where to read on; the page is there.
func TestAlertsAreWhole(t *testing.T) {
	pages := map[string]map[string]bool{}
	page := func(file string) map[string]bool {
		if pages[file] == nil {
			text, err := os.ReadFile(filepath.Join("../../../docs", file))
			if err != nil {
				t.Fatal(err)
			}
			pages[file] = map[string]bool{}
			for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
				pages[file][anchorOf(h[1])] = true
			}
		}
		return pages[file]
	}
	const base = "https://runbooks.example/sluice"
	all := build(t, pair(), Options{Runbooks: base + "/"})
	all.Spec.Groups = append(all.Spec.Groups, Operator(operatorJob, base+"/"))
	each(all, func(r monitoringv1.Rule) {
		if r.Alert == "" {
			return
		}
		if !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
			t.Errorf("%s has severity %q", r.Alert, r.Labels["severity"])
		}
		summary, description := r.Annotations["summary"], r.Annotations["description"]
		if summary == "" || strings.Contains(summary, "\n") || len(description) < len(summary) {
			t.Errorf("%s: summary %q, description %q", r.Alert, summary, description)
		}
		if !strings.Contains(summary+description, "$value") && !strings.Contains(r.Alert, "Without") && !strings.Contains(r.Alert, "Gap") &&
			!strings.Contains(r.Expr.String(), metrics.Condition.Name) && !strings.Contains(r.Expr.String(), metrics.Registered.Name) && r.Alert != "SluiceOperatorDown" {
			t.Errorf("%s tells no number", r.Alert)
		}
		link := strings.TrimPrefix(r.Annotations["runbook_url"], base+"/")
		file, anchor, _ := strings.Cut(link, "#")
		if link == r.Annotations["runbook_url"] || !page(file)[anchor] {
			t.Errorf("%s links to %s, which is no heading of docs/", r.Alert, r.Annotations["runbook_url"])
		}
	})
	for _, r := range build(t, pair(), Options{}).Spec.Groups[1].Rules {
		if !strings.HasPrefix(r.Annotations["runbook_url"], DefaultRunbooks+"/") {
			t.Errorf("%s links to %s by default", r.Alert, r.Annotations["runbook_url"])
		}
	}
}

// anchorOf is what renderers of Markdown make of a heading.
func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		default:
			return -1
		}
	}, strings.ToLower(heading))
}

// TestPatience: while a pool wakes its requests are held, and that is no fault.
func TestPatience(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		min          int32
		wake         *int32
		want         monitoringv1.Duration
	}{
		{"Always", "some engine ought to be ready", 1, new(int32(1800)), "5m"},
		{"Default", "a request is held for 300 s", 0, nil, "6m"},
		{"Slow", "a model that loads for long", 0, new(int32(1800)), "31m"},
		{"Quick", "as others", 0, new(int32(30)), "5m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := unified()
			s.Spec.Router.WakeUpSeconds = tc.wake
			s.Spec.Pools[0].Autoscaling = &v1alpha1.AutoscalingSpec{MinReplicas: &tc.min}
			each(build(t, s, Options{}), func(r monitoringv1.Rule) {
				if r.Alert == "SluiceRouterWithoutEngines" && (r.For == nil || *r.For != tc.want) {
					t.Errorf("it waits %v, want %s: %s", r.For, tc.want, tc.reason)
				}
			})
		})
	}
}

// TestPage: docs/alerts.md lists every alert with its severity and its wait, and every recorded series, and no other.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range alertRow.FindAllStringSubmatch(string(text), -1) {
		got[m[1]+" "+m[2]+" "+strings.TrimSpace(m[3])] = strings.TrimSpace(m[4])
	}
	want := map[string]string{}
	s := &scope{}
	slos, err := objectives(pair())
	if err != nil {
		t.Fatal(err)
	}
	list := alerts(s, pair())
	for _, o := range slos {
		list = append(list, sloAlerts(s, o)...)
	}
	for _, a := range append(list, operatorAlerts(operatorJob)...) {
		wait := a.wait
		if wait == "" {
			wait = "at once"
		}
		want[a.name+" "+a.severity+" "+wait] = a.help
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/alerts.md does not list what there is (-rules +page):\n%s", diff)
	}
	recorded := recordings(s)
	for _, o := range slos {
		recorded = append(recorded, sloRecordings(s, o)...)
	}
	series, told := map[string]string{}, map[string]string{}
	for _, r := range recorded {
		name := r.name
		for _, prefix := range []string{slowShare, slowCount} {
			if strings.HasPrefix(name, prefix) {
				name = prefix + "WINDOW"
			}
		}
		series[name] = r.help
	}
	for _, m := range seriesRow.FindAllStringSubmatch(string(text), -1) {
		told[m[1]] = m[2]
	}
	if diff := cmp.Diff(series, told); diff != "" {
		t.Errorf("docs/alerts.md does not list what is recorded (-rules +page):\n%s", diff)
	}
}

// TestWords: what alerts and recorded series say, and the page about them, has the words of metrics and dashboards, and no
// others for the same: memory is counted in tokens, and what loses its place is retracted.
func TestWords(t *testing.T) {
	other := regexp.MustCompile(`(?i)\b(slots?|handshakes?|shaken|preempt(ed|ion)s?|blocks?|time to first byte)\b`)
	page, err := os.ReadFile("../../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"docs/alerts.md": string(page)}
	s := &scope{}
	slos, err := objectives(pair())
	if err != nil {
		t.Fatal(err)
	}
	alerting, recorded := alerts(s, pair()), recordings(s)
	for _, o := range slos {
		alerting, recorded = append(alerting, sloAlerts(s, o)...), append(recorded, sloRecordings(s, o)...)
	}
	for _, a := range append(alerting, operatorAlerts(operatorJob)...) {
		texts[a.name] = a.summary + "\n" + a.description + "\n" + a.help
	}
	for _, r := range recorded {
		texts[r.name] = r.help
	}
	for name, text := range texts {
		if said := other.FindString(text); said != "" {
			t.Errorf("%s says %q", name, said)
		}
	}
}

func TestSnap(t *testing.T) {
	bounds := []float64{0.1, 0.2, 0.4, 1}
	for _, tc := range []struct {
		name, reason string
		threshold    float64
		want         float64
		exact        bool
	}{
		{"a bound", "it can be measured", 0.4, 0.4, true},
		{"the first", "it is one too", 0.1, 0.1, true},
		{"the last", "it is one too", 1, 1, true},
		{"between two", "nothing slower may count as good", 0.5, 0.4, false},
		{"just below one", "nothing slower may count as good", 0.3999, 0.2, false},
		{"above all", "the histogram does not tell those apart", 7, 1, false},
		{"below all", "the histogram tells nothing finer", 0.01, 0.1, false},
	} {
		got, exact := Snap(tc.threshold, bounds)
		if got != tc.want || exact != tc.exact {
			t.Errorf("%s (%s): %v %t, want %v %t", tc.name, tc.reason, got, exact, tc.want, tc.exact)
		}
		naive, found := bounds[0], false
		for _, b := range bounds {
			if b <= tc.threshold {
				naive, found = b, b == tc.threshold
			}
		}
		if got != naive || exact != found {
			t.Errorf("%s: %v %t, the naive twin says %v %t", tc.name, got, exact, naive, found)
		}
	}
}

// TestObjectives: what is measured, and what the alert says of it.
func TestObjectives(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		edit         func(*v1alpha1.InferenceService)
		want         string // in every description of the objective
		fault        string
	}{
		{"a bound", "nothing is to be said", func(s *v1alpha1.InferenceService) {}, "The objective is that 99 % of the first tokens come within 1s.", ""},
		{"between bounds", "the reader has to know", func(s *v1alpha1.InferenceService) { s.Spec.SLO.TTFT = latency(500*time.Millisecond, "0.995") },
			"500ms is no bound of them: measured at 0.4 s, the next below, so that what took between the two counts as slow.", ""},
		{"below all bounds", "the reader has to know", func(s *v1alpha1.InferenceService) { s.Spec.SLO.TTFT = latency(50*time.Millisecond, "0.99") },
			"50ms lies below all bounds: measured at 0.1 s, the smallest, so that what took between the two counts as good.", ""},
		{"bounds of their own", "an argument replaces them", func(s *v1alpha1.InferenceService) {
			s.Spec.Engine.Args = []string{"--bucket-time-to-first-token", "0.3", "0.9", "--log-level=info"}
		}, "measured at 0.9 s", ""},
		{"bounds of a pool", "arguments of the pool come last", func(s *v1alpha1.InferenceService) {
			s.Spec.Engine.Args = []string{"--bucket-time-to-first-token", "5"}
			s.Spec.Pools[1].Args = []string{"--bucket-time-to-first-token=0.3,0.7"}
		}, "measured at 0.7 s", ""},
		{"bounds of a prefill pool", "it does not tell the time to the first token", func(s *v1alpha1.InferenceService) {
			s.Spec.Pools[0].Args = []string{"--bucket-time-to-first-token", "5"}
		}, "The objective is that 99 % of the first tokens come within 1s.", ""},
		{"bounds that no two pools share", "they cannot be added", func(s *v1alpha1.InferenceService) {
			other := s.Spec.Pools[1]
			other.Name, other.Args = "decode2", []string{"--bucket-time-to-first-token", "0.35"}
			s.Spec.Pools = append(s.Spec.Pools, other)
		}, "", "spec.slo.ttft: the pools of the service have no bound of sglang:time_to_first_token_seconds in common; give all of them the same --bucket-time-to-first-token"},
		{"bounds that are none", "the engine would refuse them too", func(s *v1alpha1.InferenceService) {
			s.Spec.Engine.Args = []string{"--bucket-time-to-first-token", "fast"}
		}, "", `spec.slo.ttft: pool decode: --bucket-time-to-first-token has "fast", which is not a number; give bounds in seconds, for example --bucket-time-to-first-token 0.1 0.5 1`},
		{"a loose objective", "no more than all can be slow", func(s *v1alpha1.InferenceService) { s.Spec.SLO.TTFT = latency(time.Second, "0.5") },
			"the alert asks for 90 % instead", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := pair()
			tc.edit(s)
			rule, err := Build(s, Options{})
			if tc.fault != "" {
				if err == nil || err.Error() != tc.fault {
					t.Errorf("%s: %v, want %s", tc.reason, err, tc.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			seen := false
			each(rule, func(r monitoringv1.Rule) {
				seen = seen || r.Alert == "SluiceFirstTokenBudgetBurns" && strings.Contains(r.Annotations["description"], tc.want)
			})
			if !seen {
				t.Errorf("%s: no description says %q", tc.reason, tc.want)
			}
		})
	}
}

// TestWithoutObjectives: a service that asks for nothing has no burn rates.
func TestWithoutObjectives(t *testing.T) {
	s := pair()
	s.Spec.SLO = nil
	each(build(t, s, Options{}), func(r monitoringv1.Rule) {
		if strings.Contains(r.Alert, "Budget") || strings.Contains(r.Record, "_slo_") {
			t.Errorf("%s%s", r.Record, r.Alert)
		}
	})
}

// TestUnknownFamily: a name that nobody exports fails the build.
func TestUnknownFamily(t *testing.T) {
	s := &scope{}
	s.sum("sglang:nothing", byPool)
	s.sum("sglang:token_usage", byPool)
	s.rate("sglang:num_running_reqs", "", "5m", byPool)
	s.router("sluice_router_nothing")
	want := "rules ask for what is not there: sglang:nothing is not in the registry; sglang:nothing does not add up; sglang:token_usage does not add up; sglang:num_running_reqs is a gauge; sluice_router_nothing is not in the router's table"
	if err := s.err(); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// FuzzFlagValues: whatever the arguments are, bounds are sorted and finite, or there is an error.
func FuzzFlagValues(f *testing.F) {
	f.Add("--bucket-x 1 2 --y 3")
	f.Add("--bucket-x=1,0.5")
	f.Add("--bucket-x NaN")
	f.Fuzz(func(t *testing.T, args string) {
		values, err := flagValues(strings.Fields(args), "--bucket-x")
		if err == nil && (!slices.IsSorted(values) || values != nil && len(values) == 0) {
			t.Errorf("%q: %v", args, values)
		}
	})
}
