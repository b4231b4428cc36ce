package sluice

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
)

// find renders the chart and gives its object of a kind, strictly as its type has it; false when there is none.
func find[T any](t *testing.T, kind string, set ...string) (object T, deployment *unstructured.Unstructured, found bool) {
	t.Helper()
	text, err := render(t, set...)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range decode(t, text) {
		switch o.GetKind() {
		case "Deployment":
			deployment = o
		case kind:
			raw, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(raw, &object); err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			found = true
		}
	}
	return object, deployment, found
}

// TestOperatorMonitor: the operator's own monitor selects the operator's pods, and is made when it is asked for. What Prometheus
// makes of a target has the labels that rules and dashboard ask for.
func TestOperatorMonitor(t *testing.T) {
	const on, labelled = "monitors.operator=true", `monitors.labels={"release":"prometheus"}`
	if _, _, found := find[monitoringv1.ServiceMonitor](t, "ServiceMonitor"); found {
		t.Error("by default the chart needs a resource that a cluster may not have")
	}
	covers := func(what string, selector, pod map[string]string) {
		t.Helper()
		if len(selector) == 0 {
			t.Errorf("%s selects everything", what)
		}
		for key, value := range selector {
			if pod[key] != value {
				t.Errorf("%s has %s=%s, what it is to select %q", what, key, value, pod[key])
			}
		}
	}
	podLabels := func(deployment *unstructured.Unstructured) map[string]string {
		found, _, _ := unstructured.NestedStringMap(deployment.Object, "spec", "template", "metadata", "labels")
		return found
	}

	service, deployment, found := find[monitoringv1.ServiceMonitor](t, "ServiceMonitor", on, labelled)
	if !found || service.Labels["release"] != "prometheus" || len(service.Spec.Endpoints) != 1 || !service.Spec.Endpoints[0].HonorLabels {
		t.Fatalf("the ServiceMonitor is %+v", service)
	}
	text, err := render(t, on)
	if err != nil {
		t.Fatal(err)
	}
	var matched []string
	for _, o := range decode(t, text) {
		if o.GetKind() != "Service" {
			continue
		}
		all := true
		for key, value := range service.Spec.Selector.MatchLabels {
			all = all && o.GetLabels()[key] == value
		}
		if all {
			matched = append(matched, o.GetName())
			selector, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector")
			covers("the Service", selector, podLabels(deployment))
		}
	}
	if diff := cmp.Diff([]string{"sluice-operator-metrics"}, matched); diff != "" {
		t.Errorf("Services that the monitor selects (-want +got):\n%s", diff)
	}

	pods, deployment, found := find[monitoringv1.PodMonitor](t, "PodMonitor", on, `monitors.operatorKind="PodMonitor"`)
	if !found || len(pods.Spec.PodMetricsEndpoints) != 1 {
		t.Fatalf("the PodMonitor is %+v", pods)
	}
	covers("the PodMonitor", pods.Spec.Selector.MatchLabels, podLabels(deployment))
	if diff := cmp.Diff(service.Spec.Endpoints[0].RelabelConfigs, pods.Spec.PodMetricsEndpoints[0].RelabelConfigs); diff != "" {
		t.Errorf("the two kinds relabel otherwise (-service +pod):\n%s", diff)
	}

	for phase, want := range map[string]string{
		"Running": `{__meta_kubernetes_pod_phase="Running", engine_type="operator", job="sluice-operator", namespace="sluice-system"}`,
		"Pending": "",
	} {
		b := labels.NewBuilder(labels.FromStrings("__meta_kubernetes_pod_phase", phase, "namespace", "sluice-system", "job", "sluice-system/sluice-operator"))
		got := ""
		if relabel.ProcessBuilder(b, configs(t, service.Spec.Endpoints[0].RelabelConfigs)...) {
			got = b.Labels().String()
		}
		if got != want {
			t.Errorf("a pod that is %s becomes %s, want %s", phase, got, want)
		}
	}
}

// configs gives relabel rules as Prometheus has them.
func configs(t *testing.T, list []monitoringv1.RelabelConfig) []*relabel.Config {
	t.Helper()
	var all []*relabel.Config
	for _, c := range list {
		config := relabel.DefaultRelabelConfig
		config.Action, config.TargetLabel = relabel.Action(c.Action), c.TargetLabel
		for _, l := range c.SourceLabels {
			config.SourceLabels = append(config.SourceLabels, model.LabelName(l))
		}
		if c.Regex != "" {
			config.Regex = relabel.MustNewRegexp(c.Regex)
		}
		if c.Replacement != nil {
			config.Replacement = *c.Replacement
		}
		all = append(all, &config)
	}
	return all
}

// TestOperatorRules: the chart's rules are those that the code makes for the release's operator, with the values' links.
func TestOperatorRules(t *testing.T) {
	if _, _, found := find[monitoringv1.PrometheusRule](t, "PrometheusRule"); found {
		t.Error("by default the chart needs a resource that a cluster may not have")
	}
	for _, tc := range []struct {
		name, runbooks string
		set            []string
	}{
		{"default", "", nil},
		{"runbooks", "https://runbooks.example/sluice", []string{`runbookURL="https://runbooks.example/sluice/"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule, _, found := find[monitoringv1.PrometheusRule](t, "PrometheusRule", append(tc.set, "rules.operator=true", `rules.labels={"release":"prometheus"}`)...)
			if !found || rule.Labels["release"] != "prometheus" {
				t.Fatalf("the PrometheusRule is %+v", rule)
			}
			if diff := cmp.Diff([]monitoringv1.RuleGroup{rules.Operator("sluice-operator", tc.runbooks)}, rule.Spec.Groups); diff != "" {
				t.Errorf("groups (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOperatorDashboard: the dashboard is in a ConfigMap that Grafana's sidecar finds, whole, unless it is not wanted.
func TestOperatorDashboard(t *testing.T) {
	object, _, found := find[corev1.ConfigMap](t, "ConfigMap")
	if !found || object.Labels["grafana_dashboard"] != "1" || object.Annotations["grafana_folder"] != "Sluice" {
		t.Fatalf("labels %v, annotations %v", object.Labels, object.Annotations)
	}
	want, err := os.ReadFile("files/operator-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if got := object.Data["sluice-operator.json"]; got != string(want) || !json.Valid([]byte(got)) || strings.Contains(got, "@JOB@") {
		t.Errorf("the ConfigMap does not hold the dashboard: %.100s", got)
	}
	if size := len(want); size > 900<<10 {
		t.Errorf("the dashboard has %d bytes; a ConfigMap has room for a mebibyte", size)
	}
	for _, set := range []string{"dashboards.operator=false", "dashboards.enabled=false"} {
		if _, _, found := find[corev1.ConfigMap](t, "ConfigMap", set); found {
			t.Errorf("with %s the dashboard is there", set)
		}
	}
	text, err := render(t, `dashboards.folderAnnotation=""`)
	if err != nil || slices.ContainsFunc(decode(t, text), func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "ConfigMap" && len(o.GetAnnotations()) > 0
	}) {
		t.Errorf("without the name of an annotation: %v", err)
	}
}
