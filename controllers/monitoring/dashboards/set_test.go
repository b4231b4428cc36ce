package dashboards

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql/parser"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// made is when the first service of a test was made.
var made = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// service is one of team-a, made so many minutes after the first.
func service(name, tenant string, minute int, edit ...func(*v1alpha1.InferenceService)) v1alpha1.InferenceService {
	s := v1alpha1.InferenceService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team-a", UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(made.Add(time.Duration(minute) * time.Minute))},
		Spec:       v1alpha1.InferenceServiceSpec{Tenant: tenant},
	}
	for _, e := range edit {
		e(&s)
	}
	return s
}

func owner(name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "inference.sluice.dev/v1alpha1", Kind: "InferenceService", Name: name, UID: types.UID("uid-" + name)}
}

func TestNewSet(t *testing.T) {
	slo := func(ttft, itl time.Duration) func(*v1alpha1.InferenceService) {
		return func(s *v1alpha1.InferenceService) {
			of := func(d time.Duration) *v1alpha1.LatencyObjective {
				return &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: d}, Objective: resource.MustParse("0.99")}
			}
			s.Spec.SLO = &v1alpha1.SLOSpec{TTFT: of(ttft), ITL: of(itl)}
		}
	}
	show := func(d v1alpha1.DashboardsSpec) func(*v1alpha1.InferenceService) {
		return func(s *v1alpha1.InferenceService) { s.Spec.Observability.Dashboards = d }
	}
	going := func(s *v1alpha1.InferenceService) { s.DeletionTimestamp = &metav1.Time{Time: made} }
	elsewhere := func(s *v1alpha1.InferenceService) { s.Namespace = "team-b" }
	no := false
	var many []v1alpha1.InferenceService
	for i := range 30 {
		many = append(many, service(fmt.Sprintf("s%02d", 29-i), "acme", 30-i)) // s00 is the oldest
	}
	for _, tc := range []struct {
		name, reason string
		tenant       string
		services     []v1alpha1.InferenceService
		want         Set
	}{
		{
			"the tenant's services", "and nobody else's", "acme",
			[]v1alpha1.InferenceService{service("b", "acme", 0), service("a", "acme", 1), service("c", "other", 0), service("d", "acme", 0, elsewhere), service("e", "", 0)},
			Set{Namespace: "team-a", Tenant: "acme", Folder: "acme (team-a)", Owners: []metav1.OwnerReference{owner("a"), owner("b")}, TTFT: 1, ITL: 0.1},
		},
		{
			"the namespace is the tenant", "by default", "team-a", []v1alpha1.InferenceService{service("e", "", 0)},
			Set{Namespace: "team-a", Tenant: "team-a", Folder: "team-a", Owners: []metav1.OwnerReference{owner("e")}, TTFT: 1, ITL: 0.1},
		},
		{
			"those that go, and those that want none", "are no owners", "acme",
			[]v1alpha1.InferenceService{service("a", "acme", 0, going), service("b", "acme", 0, show(v1alpha1.DashboardsSpec{Enabled: &no}))},
			Set{Namespace: "team-a", Tenant: "acme", Folder: "acme (team-a)", TTFT: 1, ITL: 0.1},
		},
		{
			"many", "the oldest own it, so that a further one changes nothing", "acme", many,
			Set{
				Namespace: "team-a", Tenant: "acme", Folder: "acme (team-a)", TTFT: 1, ITL: 0.1,
				Owners: []metav1.OwnerReference{owner("s00"), owner("s01"), owner("s02"), owner("s03"), owner("s04"), owner("s05"), owner("s06"), owner("s07")},
			},
		},
		{
			"folder and labels", "the first by name has the last word", "acme",
			[]v1alpha1.InferenceService{
				service("b", "acme", 0, show(v1alpha1.DashboardsSpec{Folder: "B", Labels: map[string]string{"x": "b", "y": "b"}})),
				service("a", "acme", 1, show(v1alpha1.DashboardsSpec{Folder: "A", Labels: map[string]string{"x": "a"}})),
			},
			Set{
				Namespace: "team-a", Tenant: "acme", Folder: "A", Labels: map[string]string{"x": "a", "y": "b"},
				Owners: []metav1.OwnerReference{owner("a"), owner("b")}, TTFT: 1, ITL: 0.1,
			},
		},
		{
			"objectives", "the tightest, at the bound below", "acme",
			[]v1alpha1.InferenceService{service("a", "acme", 0, slo(2*time.Second, 50*time.Millisecond)), service("b", "acme", 0, slo(700*time.Millisecond, time.Second))},
			Set{Namespace: "team-a", Tenant: "acme", Folder: "acme (team-a)", Owners: []metav1.OwnerReference{owner("a"), owner("b")}, TTFT: 0.6, ITL: 0.04},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, NewSet("team-a", tc.tenant, tc.services)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestNames: whatever a tenant is called, its objects have names, and no other tenant's.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, tenant := range []string{"acme", "Acme", "ACME", "a_b", "a-b", "a.b", "a..b", "0", strings.Repeat("X", 63), "acme-overview"} {
		s := Set{Namespace: "team-a", Tenant: tenant}
		for _, name := range s.names() {
			if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
				t.Errorf("%s: %s: %v", tenant, name, faults)
			}
			if other, taken := seen[name]; taken {
				t.Errorf("%s and %s both have %s", tenant, other, name)
			}
			seen[name] = tenant
		}
	}
	a, b := Set{Namespace: "team-a", Tenant: "acme"}, Set{Namespace: "team-b", Tenant: "acme"}
	if a.uid() == b.uid() {
		t.Errorf("the sets of two namespaces share the uid %s", a.uid())
	}
}

// TestObjects compares all of the objects but the dashboards in them.
func TestObjects(t *testing.T) {
	s := NewSet("team-a", "acme", []v1alpha1.InferenceService{service("a", "acme", 0)})
	s.Labels = map[string]string{"team": "red", "app.kubernetes.io/managed-by": "me"}
	o := DefaultOptions()
	labels := map[string]string{
		"inference.sluice.dev/tenant": "acme", "inference.sluice.dev/component": "dashboards",
		"app.kubernetes.io/name": "sluice-dashboards", "app.kubernetes.io/instance": "sluice-dashboards-acme",
		"app.kubernetes.io/component": "dashboards", "app.kubernetes.io/managed-by": "sluice-operator",
	}
	with := func(more ...string) map[string]string {
		all := map[string]string{}
		for key, value := range labels {
			all[key] = value
		}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	anchor := Anchor(s)
	if diff := cmp.Diff(metav1.ObjectMeta{Name: "sluice-dashboards-acme", Namespace: "team-a", Labels: labels, OwnerReferences: []metav1.OwnerReference{owner("a")}}, anchor.ObjectMeta); diff != "" {
		t.Errorf("anchor (-want +got):\n%s", diff)
	}
	list, err := ConfigMaps(s, o)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, object := range list {
		keys = append(keys, strings.TrimPrefix(object.Name, "sluice-dashboard-acme-"))
		want := metav1.ObjectMeta{
			Name: object.Name, Namespace: "team-a", Labels: with("grafana_dashboard", "1", "team", "red"), Annotations: map[string]string{"grafana_folder": "acme (team-a)"},
		}
		if diff := cmp.Diff(want, object.ObjectMeta); diff != "" {
			t.Errorf("%s (-want +got):\n%s", object.Name, diff)
		}
		if n := len(object.Data["team-a."+object.Name+".json"]); n < 1000 || n > 300<<10 || len(object.Data) != 1 {
			t.Errorf("%s has %d bytes", object.Name, n)
		}
	}
	if diff := cmp.Diff([]string{"overview", "pipeline", "ranks", "memory", "requests", "diagnosis"}, keys); diff != "" {
		t.Errorf("dashboards (-want +got):\n%s", diff)
	}
	anchor.UID = "u"
	yes := true
	common := map[string]any{"allowCrossNamespaceImport": true, "instanceSelector": map[string]any{"matchLabels": map[string]any{"dashboards": "grafana"}}, "resyncPeriod": "10m"}
	for i, object := range Grafana(s, o, anchor) {
		want, kind := map[string]any{"title": "acme (team-a)"}, "GrafanaFolder"
		if i > 0 {
			kind = "GrafanaDashboard"
			want = map[string]any{"configMapRef": map[string]any{"name": list[i-1].Name, "key": "team-a." + list[i-1].Name + ".json"}, "folderRef": "sluice-dashboards-acme"}
		}
		for key, value := range common {
			want[key] = value
		}
		if diff := cmp.Diff(want, object.Object["spec"]); diff != "" || object.GetKind() != kind || object.GetAPIVersion() != "grafana.integreatly.org/v1beta1" {
			t.Errorf("%s %s (-want +got):\n%s", object.GetKind(), object.GetName(), diff)
		}
		if diff := cmp.Diff([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "sluice-dashboards-acme", UID: "u", Controller: &yes}}, object.GetOwnerReferences()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", object.GetName(), diff)
		}
		if diff := cmp.Diff(with("team", "red"), object.GetLabels()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", object.GetName(), diff)
		}
	}
}

// content is what tests read of a dashboard.
type content struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Type  string `json:"type"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	Title   string  `json:"title"`
	Panels  []panel `json:"panels"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

var valuesOf = regexp.MustCompile(`^label_values\((.*), [a-z_]+\)$`)

// TestMatchers: in every query of every dashboard and of every variable, each selector has the tenant and the namespace,
// whatever they are called.
func TestMatchers(t *testing.T) {
	for _, tenant := range []string{"acme", "A.b_c"} {
		s := NewSet("team-a", tenant, []v1alpha1.InferenceService{service("a", tenant, 0)})
		list, err := ConfigMaps(s, DefaultOptions())
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range list {
			var d content
			if err := json.Unmarshal([]byte(object.Data["team-a."+object.Name+".json"]), &d); err != nil {
				t.Fatal(err)
			}
			asked := 0
			check := func(where, expr string) {
				asked++
				parsed, err := parser.ParseExpr(strings.ReplaceAll(expr, "$__rate_interval", "1m"))
				if err != nil {
					t.Errorf("%s, %s: %v in\n%s", d.Title, where, err, expr)
					return
				}
				found := 0
				parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
					selector, ok := node.(*parser.VectorSelector)
					if !ok {
						return nil
					}
					found++
					want := map[string]string{"namespace": "team-a", "tenant": tenant}
					for _, m := range selector.LabelMatchers {
						if want[m.Name] == m.Value && m.Type.String() == "=" {
							delete(want, m.Name)
						}
					}
					if len(want) > 0 {
						t.Errorf("%s, %s: %s lacks %v", d.Title, where, selector, want)
					}
					return nil
				})
				if found == 0 {
					t.Errorf("%s, %s: selects nothing", d.Title, where)
				}
			}
			var walk func([]panel)
			walk = func(panels []panel) {
				for _, p := range panels {
					for _, target := range p.Targets {
						check(p.Title, target.Expr)
					}
					walk(p.Panels)
				}
			}
			walk(d.Panels)
			for _, v := range d.Templating.List {
				if v.Type != "query" {
					continue
				}
				m := valuesOf.FindStringSubmatch(fmt.Sprint(v.Query))
				if m == nil || !strings.Contains(m[1], "num_running_reqs") {
					t.Errorf("%s: variable %s asks %v", d.Title, v.Name, v.Query)
					continue
				}
				check("variable "+v.Name, m[1])
			}
			if asked < 15 {
				t.Errorf("%s has %d queries", d.Title, asked)
			}
		}
	}
}

// TestFiles: Grafana's sidecar writes each dashboard into a file of the folder that is named as its key, and overwrites what
// is there. Tenants choose their folders, so no two dashboards of a cluster may have one key.
func TestFiles(t *testing.T) {
	of := map[string]string{}
	for _, namespace := range []string{"team-a", "team-b"} {
		for _, tenant := range []string{"acme", "team-a", "A.b", "a-b"} {
			list, err := ConfigMaps(NewSet(namespace, tenant, nil), DefaultOptions())
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range list {
				for key := range object.Data {
					if errs := validation.IsConfigMapKey(key); len(errs) > 0 || !strings.HasSuffix(key, ".json") {
						t.Errorf("%s/%s has the key %s, which is no file of the sidecar: %v", namespace, object.Name, key, errs)
					}
					if other := of[key]; other != "" {
						t.Errorf("%s/%s and %s have one key: %s", namespace, object.Name, other, key)
					}
					of[key] = namespace + "/" + object.Name
				}
			}
		}
	}
}
