package controllers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers"
	"github.com/sluice-dev/sluice/controllers/metrics"
	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
)

// operatorStep is how far apart the scrapes of an operator are taken to be.
const operatorStep = 15 * time.Second

// scrapedOperator is a Prometheus database with scrapes of an operator.
type scrapedOperator struct {
	db       *tsdb.DB
	engine   *promql.Engine
	registry prometheus.Gatherers
	from, to time.Time
	last     map[string]labels.Labels // series of the last scrape
}

func newScrapedOperator(t *testing.T, registry *prometheus.Registry) *scrapedOperator {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), slog.New(slog.DiscardHandler), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	start := time.Unix(1_800_000_000, 0)
	return &scrapedOperator{
		db: db, from: start, to: start.Add(-operatorStep), registry: prometheus.Gatherers{registry, ctrlmetrics.Registry},
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute}),
	}
}

// scrape stores what the operator exposes now, with the labels that its monitor gives: its own labels win.
func (s *scrapedOperator) scrape(t *testing.T) {
	t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	s.to = s.to.Add(operatorStep)
	p, err := textparse.New([]byte(text.String()), "text/plain; version=0.0.4", "", false, false, false, labels.NewSymbolTable())
	if err != nil {
		t.Fatal(err)
	}
	app := s.db.Appender(t.Context())
	now := map[string]labels.Labels{}
	store := func(series labels.Labels, sample float64) {
		if _, err := app.Append(0, series, s.to.UnixMilli(), sample); err != nil {
			t.Fatalf("%s: %v", series, err)
		}
	}
	add := func(series labels.Labels, sample float64) {
		b := labels.NewBuilder(series).Set("job", "sluice-operator").Set("instance", "10.0.0.1:8080").Set("pod", "sluice-operator-0")
		if series.Get("namespace") == "" {
			b.Set("namespace", "sluice-system")
		}
		now[b.Labels().String()] = b.Labels()
		store(b.Labels(), sample)
	}
	add(labels.FromStrings("__name__", "up"), 1)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var series labels.Labels
		p.Labels(&series)
		_, _, sample := p.Series()
		add(series, sample)
	}
	for name, series := range s.last {
		if _, there := now[name]; !there {
			store(series, math.Float64frombits(value.StaleNaN)) // as Prometheus does
		}
	}
	s.last = now
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// ask runs a query at every scrape and gives how many numbers it found; NaN is none.
func (s *scrapedOperator) ask(ctx context.Context, query string) (found int, err error) {
	q, err := s.engine.NewRangeQuery(ctx, s.db, nil, query, s.from, s.to, operatorStep)
	if err != nil {
		return 0, err
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return 0, result.Err
	}
	matrix, err := result.Matrix()
	if err != nil {
		return 0, err
	}
	for _, series := range matrix {
		for _, point := range series.Floats {
			if !math.IsNaN(point.F) {
				found++
			}
		}
	}
	return found, nil
}

// operatorBoard is the part of the dashboard's JSON that asks.
type operatorBoard struct {
	Panels []struct {
		Title   string `json:"title"`
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
}

// observed makes the operator lead, serve the metrics API and read engines, with a registry that the test scrapes.
func observed(t *testing.T, registry *prometheus.Registry) func(*controllers.Config) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return func(c *controllers.Config) {
		scraping(c)
		withDashboards(c)
		c.Registry, c.Namespace, c.LeaderElect = registry, c.WatchNamespaces[0], true
		c.MetricsAPI, c.MetricsAPIPort, c.MetricsAPIService, c.MetricsAPISecret = true, port, "sluice-metrics-api", "sluice-metrics-api"
	}
}

// grantLease lets the operator of a trial lead in its namespace, and read how callers of its metrics API are known.
func (t *trial) grantLease() {
	t.Helper()
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: operatorUser}}
	reader := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: t.namespace}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
	}
	meta := metav1.ObjectMeta{Namespace: t.namespace, Name: operatorUser + "-lease"}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create", "get", "update", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}, Subjects: subjects,
	}
	for _, err := range []error{t.Create(t.Context(), role), t.Create(t.Context(), binding), t.Create(t.Context(), reader)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestOperatorDashboardHasData: an operator at work is scraped into a Prometheus database, and every panel of its dashboard has an
// answer; every family of the table is exposed with the table's labels, and no alert about the operator as a program fires.
func TestOperatorDashboardHasData(t *testing.T) {
	registry := prometheus.NewRegistry()
	trial := newTrial(t, observed(t, registry))
	trial.grantLease()
	s := newScrapedOperator(t, registry)
	trial.kubelet.setExport(exporters(t))
	trial.kubelet.setHold(func(*corev1.Pod) bool { return true })
	trial.apply(strings.Replace(chat, "drainSeconds: 600}", `drainSeconds: 600, replicas: 2, autoscaling: {maxReplicas: 4, metrics: [{type: Utilization, target: "0.8"}]}}`, 1))
	trial.untilCondition("chat", v1alpha1.ConditionReady, metav1.ConditionFalse, "PoolNotReady")
	trial.until("its condition in the operator's cache", func() (bool, string) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if f.GetName() == metrics.Condition.Name && l.GetName() == "reason" && l.GetValue() == "PoolNotReady" {
						return true, ""
					}
				}
			}
		}
		return false, "there is no series"
	})
	s.scrape(t) // it starts
	trial.kubelet.setHold(nil)
	trial.untilSettled("chat")
	s.scrape(t)
	trial.untilCondition("chat", v1alpha1.ConditionLedgerConsistent, metav1.ConditionTrue, "EveryLawHolds")

	// A replica dies, one loses its exporter, and one stands still.
	pods := trial.pods("decode")
	trial.kubelet.fail(pods[0])
	trial.until("a replacement", func() (bool, string) {
		now := trial.pods("decode")
		return len(now) == 2 && now[0].UID != pods[0].UID && isReady(now[0]), fmt.Sprint(names(now))
	})
	s.scrape(t)
	trial.kubelet.setExports(pods[1], exported(t, v1alpha1.RoleDecode, false, 1000))
	trial.untilCondition("chat", v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Frozen")
	s.scrape(t)
	trial.kubelet.setExports(trial.pods("prefill")[0], "")
	trial.untilCondition("chat", v1alpha1.ConditionMetricsFlowing, metav1.ConditionFalse, "TargetDown")
	s.scrape(t)
	trial.untilScraped(3)
	s.scrape(t)

	text, err := os.ReadFile("../charts/sluice/files/operator-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board operatorBoard
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	choose := func(expr, namespace string) string {
		return strings.NewReplacer("$__rate_interval", "1m", "$inference_service", ".*", "$namespace", namespace, "$job", ".*").Replace(expr)
	}
	asked := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			asked++
			found, err := s.ask(t.Context(), choose(target.Expr, ".*"))
			if err != nil || found == 0 {
				t.Errorf("panel %s: %d numbers, %v, of\n%s", p.Title, found, err, choose(target.Expr, ".*"))
			}
			if !strings.Contains(target.Expr, "$namespace") {
				continue
			}
			if found, err := s.ask(t.Context(), choose(target.Expr, "nobody")); err != nil || found > 0 {
				t.Errorf("panel %s of a namespace without services: %d numbers, %v", p.Title, found, err)
			}
		}
	}
	if asked < 40 {
		t.Errorf("%d queries", asked)
	}

	exposed := map[string][]string{}
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(exposed[f.GetName()], l.GetName()) {
					exposed[f.GetName()] = append(exposed[f.GetName()], l.GetName())
				}
			}
		}
		if exposed[f.GetName()] == nil {
			exposed[f.GetName()] = []string{}
		}
	}
	for _, f := range slices.Concat(metrics.Families(), metrics.Borrowed()) {
		got, there := exposed[f.Name]
		slices.Sort(got)
		want := slices.Sorted(slices.Values(f.Labels))
		if !there || cmp.Diff(want, append([]string(nil), got...)) != "" {
			t.Errorf("%s is exposed: %t, with labels %v, the table has %v", f.Name, there, got, want)
		}
	}
	for name := range exposed {
		if strings.HasPrefix(name, "sluice_") && !slices.ContainsFunc(metrics.Families(), func(f metrics.Family) bool { return f.Name == name }) {
			t.Errorf("%s is exposed and in no table", name)
		}
	}

	fires := map[string]bool{}
	for _, r := range rules.Operator("sluice-operator", "").Rules {
		q, err := s.engine.NewInstantQuery(t.Context(), s.db, nil, r.Expr.String(), s.to)
		if err != nil {
			t.Fatalf("%s: %v", r.Alert, err)
		}
		vector, err := q.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", r.Alert, err)
		}
		if len(vector) > 0 {
			fires[r.Alert] = true
		}
		q.Close()
	}
	// The APIServices are not there in this cluster, and reconciles may fail for what the test does at the same time.
	delete(fires, "SluiceMetricsAPINotRegistered")
	delete(fires, "SluiceOperatorReconcileErrors")
	if diff := cmp.Diff(map[string]bool{"SluicePoolDegraded": true, "SluiceMetricsNotFlowing": true}, fires); diff != "" {
		t.Errorf("alerts that begin to fire (-want +got):\n%s", diff)
	}
}
