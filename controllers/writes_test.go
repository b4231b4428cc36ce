package controllers_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers"
)

// kinds adds up writes by what was written, "POST pods"; events apart.
func kinds(writes map[string]int) (all map[string]int, events int) {
	all = map[string]int{}
	for key, n := range writes {
		method, path, _ := strings.Cut(key, " ")
		parts := strings.Split(strings.Trim(path, "/"), "/")
		i := slices.Index(parts, "namespaces")
		if i < 0 || len(parts) < i+3 {
			all[key] += n
			continue
		}
		kind := parts[i+2]
		if kind == "events" {
			events += n
			continue
		}
		if len(parts) > i+4 {
			kind += "/" + parts[i+4]
		}
		all[method+" "+kind] += n
	}
	return all, events
}

func sum(writes map[string]int) (total int) {
	for _, n := range writes {
		total += n
	}
	return total
}

// TestWriteBudget counts what a service costs the API server with monitors, rules, dashboards and the proof of metrics on: to come
// up, while it is idle, when the operator starts anew, and while its load changes at every poll. docs/bench/operator.md has the numbers.
func TestWriteBudget(t *testing.T) {
	for kind, plural := range map[string]string{"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"} {
		foreign(t, "monitoring.coreos.com", "v1", kind, plural)
	}
	edits := []func(*controllers.Config){scraping, withDashboards}
	trial := newTrial(t, edits...)
	trial.kubelet.setExport(exporters(t))
	trial.apply(strings.Replace(chat, "drainSeconds: 600}", "drainSeconds: 600, replicas: 2}", 1))
	trial.untilSettled("chat")
	trial.untilCondition("chat", v1alpha1.ConditionLedgerConsistent, metav1.ConditionTrue, "EveryLawHolds")
	trial.untilCondition("chat", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionTrue, "Provisioned")
	trial.untilCondition("chat", v1alpha1.ConditionDashboardsProvisioned, metav1.ConditionTrue, "Provisioned")
	trial.untilScraped(12) // good news may wait for ten seconds
	up, events := kinds(trial.operator.written())
	status := up["PUT inferenceservices/status"] + up["PUT enginepools/status"]
	t.Logf("up: %d writes, of which status %d, and %d events: %v", sum(up), status, events, up)
	// One of each object, and the statuses.
	objects := maps.Clone(up)
	delete(objects, "PUT inferenceservices/status")
	delete(objects, "PUT enginepools/status")
	want := map[string]int{
		"POST enginepools": 2, "POST pods": 3, "POST secrets": 1, "POST services": 3, "POST serviceaccounts": 1, "POST roles": 1, "POST rolebindings": 1,
		"POST deployments": 1, "POST configmaps": 7, "PATCH servicemonitors": 3, "PATCH prometheusrules": 1,
	}
	if diff := cmp.Diff(want, objects); diff != "" {
		t.Errorf("writes of objects (-want +got):\n%s", diff)
	}
	if most := 20; status > most {
		t.Errorf("%d writes of status until everything is settled, want %d at most", status, most)
	}

	trial.untilPolled(3)
	before := trial.operator.written()
	trial.untilScraped(8)
	if diff := cmp.Diff(before, trial.operator.written()); diff != "" {
		t.Errorf("writes of an idle operator (-before +after):\n%s", diff)
	}
	trial.operator.stop(t)
	trial.operator = startOperator(t, trial.namespace, edits...)
	trial.untilPolled(10)
	trial.untilScraped(8)
	if diff := cmp.Diff(map[string]int{}, trial.operator.written()); diff != "" {
		t.Errorf("writes of an operator that started anew (-want +got):\n%s", diff)
	}

	// Load: every poll of a decode engine finds another number of requests, and more tokens.
	pods := trial.pods("decode")
	from, began := trial.kubelet.polls(), time.Now()
	for polls := from; polls < from+100; polls = trial.kubelet.polls() {
		for i, pod := range pods {
			trial.kubelet.setRunning(pod, 1+(polls+i)%7)
			trial.kubelet.generate(pod, 100)
		}
		trial.untilPolled(1)
	}
	took := time.Since(began)
	under, events := kinds(trial.operator.written())
	t.Logf("under load for %s: %d writes, and %d events: %v", took.Round(time.Second), sum(under), events, under)
	windows := int(took/(10*time.Second)) + 1
	for key, n := range under {
		most := map[string]int{"PUT enginepools/status": 2 * windows, "PUT inferenceservices/status": windows}[key]
		if n > most {
			t.Errorf("%s: %d within %s, want %d at most: one an object every ten seconds", key, n, took.Round(time.Second), most)
		}
	}
	if under["PUT enginepools/status"] == 0 {
		t.Error("no status tells of the load")
	}
}
