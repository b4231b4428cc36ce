package monitoring

import (
	"maps"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	operator "github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// services are what the engines of the load would be in a cluster: a pair of pools with a router, and a pool by itself.
func services() (chat, solo *v1alpha1.InferenceService) {
	make := func(name string, roles ...v1alpha1.Role) *v1alpha1.InferenceService {
		s := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team-a", UID: "1"}, Spec: v1alpha1.InferenceServiceSpec{Tenant: "acme", Model: v1alpha1.ModelSpec{Name: "m", URI: "pvc://models/m"}}}
		for _, role := range roles {
			s.Spec.Pools = append(s.Spec.Pools, v1alpha1.PoolSpec{Name: role.EngineType(), Role: role})
		}
		return s
	}
	return make("chat", v1alpha1.RolePrefill, v1alpha1.RoleDecode), make("solo", v1alpha1.RoleUnified)
}

// monitor is a monitor's rules and what the service discovery says of its one target.
type monitor struct {
	target, sample []*relabel.Config
	meta           map[string]string
}

func newMonitor(t *testing.T, object kube.Object, pod map[string]string, name, container string) monitor {
	t.Helper()
	made, ok := object.(*monitoringv1.ServiceMonitor)
	if !ok {
		t.Fatalf("a monitor is %T", object)
	}
	meta := map[string]string{"pod": name, "__meta_kubernetes_pod_name": name, "__meta_kubernetes_pod_phase": "Running", "__meta_kubernetes_pod_container_name": container}
	for key, value := range pod {
		meta["__meta_kubernetes_pod_label_"+strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(key)] = value
	}
	return monitor{relabelings(t, made.Spec.Endpoints[0].RelabelConfigs), relabelings(t, made.Spec.Endpoints[0].MetricRelabelConfigs), meta}
}

func relabelings(t *testing.T, configs []monitoringv1.RelabelConfig) (list []*relabel.Config) {
	t.Helper()
	for _, c := range configs {
		rule := relabel.DefaultRelabelConfig
		rule.Action, rule.TargetLabel = relabel.Action(c.Action), c.TargetLabel
		for _, l := range c.SourceLabels {
			rule.SourceLabels = append(rule.SourceLabels, model.LabelName(l))
		}
		if c.Regex != "" {
			rule.Regex = relabel.MustNewRegexp(c.Regex)
		}
		if c.Replacement != nil {
			rule.Replacement = *c.Replacement
		}
		list = append(list, &rule)
	}
	return list
}

// generated are the monitors, by what a page says of its engine.
func generated(t *testing.T) map[string]monitor {
	t.Helper()
	chat, solo := services()
	all := map[string]monitor{}
	for _, service := range []*v1alpha1.InferenceService{chat, solo} {
		for _, pool := range plan.EnginePools(service, "0") {
			pod, err := plan.Pod(pool, plan.EngineDefaults{Image: "engine"}, 0, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			all[pool.Spec.Role.EngineType()] = newMonitor(t, operator.PoolMonitor(pool, operator.Options{}).Object, pod.Labels, pod.Name, plan.EngineContainer)
		}
	}
	pod := plan.NewRouter(chat, plan.RouterDefaults{Image: "router"}).Deployment.Spec.Template.Labels
	all["router"] = newMonitor(t, operator.RouterMonitor(chat, operator.Options{}).Object, pod, "chat-router-x", plan.RouterContainer)
	return all
}

// kindOf says whose page it is.
func kindOf(t *testing.T, page string) string {
	t.Helper()
	for _, kind := range []string{"prefill", "decode", "unified"} {
		if strings.Contains(page, `engine_type="`+kind+`"`) {
			return kind
		}
	}
	if !strings.Contains(page, "sluice_router_engines") {
		t.Fatalf("whose page is\n%.500s", page)
	}
	return "router"
}

// newCluster puts scrapes into a database as a Prometheus would that has the operator's monitors.
func newCluster(t *testing.T, scrapes []scrape) *store {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &store{
		db: db, from: scrapes[0].at, to: scrapes[len(scrapes)-1].at,
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute}),
	}
	by := generated(t)
	for _, scrape := range scrapes {
		app := db.Appender(t.Context())
		store := func(series labels.Labels, value float64) error {
			_, err := app.Append(0, series, scrape.at.UnixMilli(), value)
			return err
		}
		for instance, text := range scrape.pages {
			m := by[kindOf(t, text)]
			target, keep := relabel.Process(labels.FromMap(m.meta), m.target...)
			if !keep {
				t.Fatalf("the monitor drops the target of %s", instance)
			}
			up := map[string]string{"instance": instance}
			target.Range(func(l labels.Label) {
				if !strings.HasPrefix(l.Name, "__") {
					up[l.Name] = l.Value
				}
			})
			of := func(name string) labels.Labels {
				all := maps.Clone(up)
				all[labels.MetricName] = name
				return labels.FromMap(all)
			}
			if err := store(of("up"), 1); err != nil {
				t.Fatal(err)
			}
			if err := eachSample(text, func(series labels.Labels, value float64) error {
				b := labels.NewBuilder(series)
				for name, v := range up {
					if series.Get(name) == "" { // honorLabels
						b.Set(name, v)
					}
				}
				final, keep := relabel.Process(b.Labels(), m.sample...)
				if !keep {
					return nil
				}
				return store(final, value)
			}); err != nil {
				t.Fatalf("store the page of %s: %v", instance, err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
