package monitoring

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/monitoring/dashboards"
	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
)

// mayBeEmpty are the panels of tenants' dashboards that this load leaves empty, and why.
var mayBeEmpty = map[string]string{}

// tenantBoards are the dashboards of the tenant of the load, as the operator writes them, by name.
func tenantBoards(t *testing.T, tenant string) map[string]board {
	t.Helper()
	chat, solo := services()
	set := dashboards.NewSet("team-a", "acme", []v1alpha1.InferenceService{*chat, *solo})
	set.Tenant = tenant
	list, err := dashboards.ConfigMaps(set, dashboards.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]board{}
	for _, object := range list {
		var b board
		if err := json.Unmarshal([]byte(object.Data["team-a."+object.Name+".json"]), &b); err != nil {
			t.Fatal(err)
		}
		all[object.Name] = b
	}
	return all
}

func (b board) questions() (list []question) {
	var walk func([]boardPanel)
	walk = func(panels []boardPanel) {
		for _, p := range panels {
			for _, target := range p.Targets {
				list = append(list, question{p.Title, target.Expr})
			}
			walk(p.Panels)
		}
	}
	walk(b.Panels)
	return list
}

// everything is what a query asks with every variable at "All".
func (b board) everything() map[string]string {
	all := map[string]string{"__rate_interval": "20s"}
	for _, v := range b.Templating.List {
		if v.Type == "query" {
			all[v.Name] = v.AllValue
		}
	}
	return all
}

// TestTenantPanelsHaveData asks every query of every dashboard of a tenant, of series with the labels that the operator's
// monitors give them; each panel has an answer, or a reason to have none. Another tenant's dashboards have none at all.
func TestTenantPanelsHaveData(t *testing.T) {
	s := newCluster(t, observed(t))
	empty := map[string]bool{}
	for name, b := range tenantBoards(t, "acme") {
		all := b.everything()
		questions := b.questions()
		if len(questions) < 15 {
			t.Errorf("%s has %d queries", name, len(questions))
		}
		for _, q := range questions {
			expr := choose(q.expr, all)
			found, err := s.ask(t.Context(), expr)
			switch {
			case err != nil:
				t.Errorf("%s, %s: %v in\n%s", name, q.panel, err, expr)
			case found == 0 && mayBeEmpty[q.panel] == "":
				t.Errorf("%s: panel %s is empty:\n%s", name, q.panel, expr)
			case found == 0:
				empty[q.panel] = true
			}
		}
		for _, v := range b.Templating.List {
			if v.Type == "query" && len(offered(t, s, v, all)) == 0 {
				t.Errorf("%s: variable %s offers nothing", name, v.Name)
			}
		}
		// A service by itself: what it has, it shows; the router is chat's.
		for service, router := range map[string]bool{"chat": true, "solo": false} {
			all["inference_service"] = service
			for _, q := range questions {
				found, err := s.ask(t.Context(), choose(q.expr, all))
				if err != nil {
					t.Fatalf("%s, %s of %s: %v", name, q.panel, service, err)
				}
				if strings.Contains(q.expr, "sluice_router_picks_total") && (found > 0) != router {
					t.Errorf("%s: panel %s has %d numbers of %s", name, q.panel, found, service)
				}
			}
		}
	}
	for panel, reason := range mayBeEmpty {
		if !empty[panel] {
			t.Errorf("panel %s has data, and a reason to have none: %s", panel, reason)
		}
	}
	for name, b := range tenantBoards(t, "other") {
		for _, q := range b.questions() {
			found, err := s.ask(t.Context(), choose(q.expr, b.everything()))
			if err != nil || found > 0 && !strings.Contains(q.expr, "vector(0)") {
				t.Errorf("%s of another tenant, %s: %d numbers, %v", name, q.panel, found, err)
			}
		}
	}
}

// notRecorded are the recorded series that this load leaves out, and why.
var notRecorded = map[string]string{}

// TestRulesOverLoad runs the rules of both services over the load: what is recorded is there, and no law of the ledger is
// reported as broken.
func TestRulesOverLoad(t *testing.T) {
	scrapes := observed(t)
	s := newCluster(t, scrapes)
	chat, solo := services()
	recorded := map[string]int{}
	for _, service := range []*v1alpha1.InferenceService{chat, solo} {
		objective := &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: time.Millisecond}, Objective: resource.MustParse("0.99")}
		service.Spec.SLO = &v1alpha1.SLOSpec{TTFT: objective, ITL: objective}
		rule, err := rules.Build(service, rules.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, scrape := range scrapes[1:] {
			for _, r := range rule.Spec.Groups[0].Rules {
				app := s.db.Appender(t.Context())
				for _, sample := range s.at(t, r.Expr.String(), scrape.at) {
					b := labels.NewBuilder(sample.Metric).Set(labels.MetricName, r.Record)
					for name, value := range r.Labels {
						b.Set(name, value)
					}
					if _, err := app.Append(0, b.Labels(), scrape.at.UnixMilli(), sample.F); err != nil {
						t.Fatalf("%s: %v", r.Record, err)
					}
					if !math.IsNaN(sample.F) {
						recorded[r.Record]++
					}
				}
				if err := app.Commit(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, r := range rule.Spec.Groups[0].Rules {
			if (recorded[r.Record] > 0) == (notRecorded[r.Record] != "") && service == solo {
				t.Errorf("%s was recorded %d times, reason not to: %q", r.Record, recorded[r.Record], notRecorded[r.Record])
			}
		}
		// Nobody turned a minute, so no alert that waits would fire; those that tell of faults must not even begin to.
		for _, r := range rule.Spec.Groups[1].Rules {
			found := s.at(t, r.Expr.String(), s.to)
			switch r.Alert {
			case "SluiceLedgerViolation", "SluiceOutcomesDoNotAddUp", "SluiceMetricsStoreFaults", "SluiceScrapeGap", "SluiceEnginesNotScraped", "SluiceRouterWithoutEngines", "SluiceEngineFrozen", "SluiceTransferStall", "SluiceServerErrors":
				if len(found) > 0 {
					t.Errorf("%s: %s finds %v", service.Name, r.Alert, found)
				}
			case "SluiceFirstTokenBudgetBurns": // the smallest bound is 0.1 s, and the machine may be as slow as it likes
			}
		}
	}
	// The same requests, once by rules and once by hand.
	by := func(query string) float64 {
		found := s.at(t, query, s.to)
		if len(found) != 1 {
			t.Fatalf("%s finds %v", query, found)
		}
		return found[0].F
	}
	rule := by(`sum(pool:sluice_kv_tokens:sum{state="capacity", inference_service="chat"})`)
	hand := by(`sum({__name__="sglang:max_total_num_tokens", inference_service="chat", priority="", tp_rank="0", pp_rank="0"})`)
	if rule != hand || rule == 0 {
		t.Errorf("capacity of chat: %v by the rules, %v by hand", rule, hand)
	}
}

// at asks at one time.
func (s *store) at(t *testing.T, query string, at time.Time) promql.Vector {
	t.Helper()
	q, err := s.engine.NewInstantQuery(t.Context(), s.db, nil, query, at)
	if err != nil {
		t.Fatalf("%v in\n%s", err, query)
	}
	defer q.Close()
	result := q.Exec(t.Context())
	vector, err := result.Vector()
	if err != nil {
		t.Fatalf("%v in\n%s", err, query)
	}
	return append(promql.Vector{}, vector...)
}
