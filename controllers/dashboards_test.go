package controllers_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers"
	"github.com/sluice-dev/sluice/controllers/monitoring/dashboards"
)

// withDashboards makes the operator keep dashboards as it does by default.
func withDashboards(c *controllers.Config) {
	o := dashboards.DefaultOptions()
	c.Dashboards = &o
}

// second is another service of the namespace.
const second = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: two}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - {name: main, role: Unified}
`

// shown lists the ConfigMaps of dashboards by tenant, and who owns the anchors.
func (t *trial) shown() (objects map[string]int, owners map[string][]string) {
	t.Helper()
	var list corev1.ConfigMapList
	if err := t.List(t.Context(), &list, client.InNamespace(t.namespace), client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentDashboards}); err != nil {
		t.Fatal(err)
	}
	objects, owners = map[string]int{}, map[string][]string{}
	for _, object := range list.Items {
		tenant := object.Labels[v1alpha1.LabelTenant]
		objects[tenant]++
		for _, o := range object.OwnerReferences {
			if o.Kind == "InferenceService" {
				owners[tenant] = append(owners[tenant], o.Name)
			}
		}
	}
	return objects, owners
}

// untilShown waits until there are the dashboards of these tenants, owned by these services.
func (t *trial) untilShown(owners map[string][]string) {
	t.Helper()
	want := map[string]int{}
	for tenant := range owners {
		want[tenant] = dashboards.Count() + 1
	}
	t.until(fmt.Sprintf("dashboards of %v", owners), func() (bool, string) {
		objects, by := t.shown()
		return maps.Equal(objects, want) && maps.EqualFunc(by, owners, slices.Equal[[]string]), fmt.Sprint(objects, by)
	})
}

// untilEvent waits for an event with a reason whose note holds some text.
func (t *trial) untilEvent(reason, text string) {
	t.Helper()
	t.until("the event "+reason+": "+text, func() (bool, string) {
		var list eventsv1.EventList
		if err := t.List(t.Context(), &list, client.InNamespace(t.namespace)); err != nil {
			return false, err.Error()
		}
		var notes []string
		for _, event := range list.Items {
			if event.Reason == reason {
				notes = append(notes, event.Note)
			}
		}
		return slices.ContainsFunc(notes, func(note string) bool { return strings.Contains(note, text) }), fmt.Sprint(notes)
	})
}

// TestDashboards: a tenant's dashboards are there with its first service, cost nothing more, come back when somebody changes
// them, follow a service to another tenant, and go with the last.
func TestDashboards(t *testing.T) {
	trial := newTrial(t, withDashboards)
	trial.apply(unified)
	trial.untilSettled("uni")
	trial.untilCondition("uni", v1alpha1.ConditionDashboardsProvisioned, metav1.ConditionTrue, "Provisioned")
	trial.untilShown(map[string][]string{trial.namespace: {"uni"}})
	trial.apply(second)
	trial.untilSettled("two")
	trial.untilShown(map[string][]string{trial.namespace: {"two", "uni"}})

	trial.untilPolled(3)
	before := trial.operator.written()
	trial.untilPolled(10)
	if diff := cmp.Diff(before, trial.operator.written()); diff != "" {
		t.Errorf("writes of an idle operator (-before +after):\n%s", diff)
	}
	trial.operator.stop(t)
	trial.operator = startOperator(t, trial.namespace, withDashboards)
	trial.untilPolled(10)
	if diff := cmp.Diff(map[string]int{}, trial.operator.written()); diff != "" {
		t.Errorf("writes of an operator that started anew (-want +got):\n%s", diff)
	}

	overview := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "sluice-dashboard-" + trial.namespace + "-overview"}}
	file := trial.namespace + "." + overview.Name + ".json"
	change(trial, overview, func(c *corev1.ConfigMap) { c.Data[file] = "{}" })
	trial.untilEvent("DashboardsRestored", overview.Name)
	trial.until("the dashboard as it was", func() (bool, string) {
		if err := trial.Get(t.Context(), client.ObjectKeyFromObject(overview), overview); err != nil {
			t.Fatal(err)
		}
		return len(overview.Data[file]) > 1000, overview.Data[file]
	})
	uid := overview.UID
	if err := trial.Delete(t.Context(), overview); err != nil {
		t.Fatal(err)
	}
	trial.until("the dashboard anew", func() (bool, string) {
		err := trial.Get(t.Context(), client.ObjectKeyFromObject(overview), overview)
		return err == nil && overview.UID != uid, fmt.Sprint(err)
	})

	two := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "two"}}
	change(trial, two, func(s *v1alpha1.InferenceService) { s.Spec.Tenant = "Acme" })
	trial.untilShown(map[string][]string{trial.namespace: {"uni"}, "Acme": {"two"}})
	change(trial, two, func(s *v1alpha1.InferenceService) { s.Spec.Observability.Dashboards.Enabled = new(false) })
	trial.untilShown(map[string][]string{trial.namespace: {"uni"}})
	trial.untilCondition("two", v1alpha1.ConditionDashboardsProvisioned, metav1.ConditionUnknown, "Disabled")
	trial.untilEvent("DashboardsRemoved", "tenant Acme")
	change(trial, two, func(s *v1alpha1.InferenceService) {
		s.Spec.Tenant, s.Spec.Observability.Dashboards = "", v1alpha1.DashboardsSpec{Enabled: new(true), Folder: "Ours"}
	})
	trial.untilShown(map[string][]string{trial.namespace: {"two", "uni"}})
	trial.until("the folder", func() (bool, string) {
		err := trial.Get(t.Context(), client.ObjectKeyFromObject(overview), overview)
		return err == nil && overview.Annotations["grafana_folder"] == "Ours", fmt.Sprint(err, overview.Annotations)
	})

	// Its dashboards outlive a service while there is another.
	if err := trial.Delete(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	trial.untilShown(map[string][]string{trial.namespace: {"uni"}})
}

// TestDashboardsOfGrafanaOperator: its resources are made when they appear, without a restart, and restored.
func TestDashboardsOfGrafanaOperator(t *testing.T) {
	trial := newTrial(t, withDashboards)
	trial.apply(unified)
	trial.untilSettled("uni")
	trial.untilShown(map[string][]string{trial.namespace: {"uni"}})
	foreign(t, "grafana.integreatly.org", "v1beta1", "GrafanaFolder", "grafanafolders")
	foreign(t, "grafana.integreatly.org", "v1beta1", "GrafanaDashboard", "grafanadashboards")
	get := func(kind, name string) (*unstructured.Unstructured, error) {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(schema.GroupVersionKind{Group: "grafana.integreatly.org", Version: "v1beta1", Kind: kind})
		err := trial.Get(t.Context(), client.ObjectKey{Namespace: trial.namespace, Name: name}, object)
		return object, err
	}
	anchor := "sluice-dashboards-" + trial.namespace
	dashboard := "sluice-dashboard-" + trial.namespace + "-diagnosis"
	trial.until("the dashboard", func() (bool, string) {
		_, err := get("GrafanaDashboard", dashboard)
		return err == nil, fmt.Sprint(err)
	})
	folder, err := get("GrafanaFolder", anchor)
	if err != nil {
		t.Fatal(err)
	}
	owner := &corev1.ConfigMap{}
	if err := trial.Get(t.Context(), types.NamespacedName{Namespace: trial.namespace, Name: anchor}, owner); err != nil {
		t.Fatal(err)
	}
	if controller := metav1.GetControllerOf(folder); controller == nil || controller.UID != owner.UID {
		t.Errorf("the folder's controller is %v, want the anchor", controller)
	}
	change(trial, folder, func(f *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(f.Object, "theirs", "spec", "title"); err != nil {
			t.Fatal(err)
		}
	})
	trial.untilEvent("DashboardsRestored", "GrafanaFolder "+anchor)
}

// TestRules: when the cluster gets the resource, the service gets its rules, without a restart; they come back when somebody
// changes them, and go when they are not wanted.
func TestRules(t *testing.T) {
	foreign(t, "monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")
	trial := newTrial(t)
	service := trial.apply(unified)
	trial.untilSettled("uni")
	foreign(t, "monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules")
	rule := &unstructured.Unstructured{}
	rule.SetGroupVersionKind(schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PrometheusRule"})
	key := client.ObjectKey{Namespace: trial.namespace, Name: "uni"}
	trial.until("rules", func() (bool, string) {
		err := trial.Get(t.Context(), key, rule)
		return err == nil, fmt.Sprint(err)
	})
	if controller := metav1.GetControllerOf(rule); controller == nil || controller.UID != service.UID {
		t.Errorf("the rules' controller is %v, want the service", controller)
	}
	trial.untilPolled(3)
	before := trial.operator.written()
	trial.untilPolled(10)
	if diff := cmp.Diff(before, trial.operator.written()); diff != "" {
		t.Errorf("writes of an idle operator (-before +after):\n%s", diff)
	}
	change(trial, rule, func(r *unstructured.Unstructured) {
		if err := unstructured.SetNestedSlice(r.Object, nil, "spec", "groups"); err != nil {
			t.Fatal(err)
		}
	})
	trial.untilEvent("RulesRestored", "spec.groups was changed")

	change(trial, service, func(s *v1alpha1.InferenceService) {
		s.Spec.SLO = &v1alpha1.SLOSpec{}
		s.Spec.Engine.Args = []string{"--bucket-time-to-first-token", "x"}
		s.Spec.SLO.TTFT = &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: 1e9}, Objective: resource.MustParse("0.99")}
	})
	failed := trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionFalse, "RulesFailed")
	for _, c := range failed.Status.Conditions {
		if c.Type == v1alpha1.ConditionMonitoringProvisioned && !strings.Contains(c.Message, `rules: spec.slo.ttft: pool main: --bucket-time-to-first-token has "x"`) {
			t.Errorf("the condition says %s", c.Message)
		}
	}
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Engine.Args = nil })
	trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionTrue, "Provisioned")

	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Observability.Rules.Enabled = new(false) })
	trial.until("no rules", func() (bool, string) {
		err := trial.Get(t.Context(), key, rule)
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
	trial.untilEvent("RulesRemoved", "PrometheusRule uni")
}
