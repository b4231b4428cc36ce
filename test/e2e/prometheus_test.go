//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

// Two services of one name, of two tenants, each in a namespace of its own. What breaks is red's; blue's stays healthy.
const (
	redChat = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  tenant: red
  slo: {ttft: {threshold: 500ms, objective: "0.99"}, itl: {threshold: 100ms, objective: "0.99"}}
  pools:
  - {name: prefill, role: Prefill}
  - {name: decode, role: Decode, replicas: 2}
`
	// The objectives are those of a machine that does other things besides.
	blueChat = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  tenant: blue
  slo: {ttft: {threshold: 10s, objective: "0.9"}, itl: {threshold: 2s, objective: "0.9"}}
  pools:
  - {name: prefill, role: Prefill}
  - {name: decode, role: Decode}
`
)

// TestPrometheus runs the real prometheus-operator with a real Prometheus: what engines export arrives with all labels, what
// stops arriving is named with its cause, tenants are apart, autoscalers work on what Prometheus has, a healthy service has no
// alert all the while, and nothing stays when a tenant goes.
func TestPrometheus(t *testing.T) {
	ctx := t.Context()
	t.Cleanup(func() {
		if os.Getenv(keepVariable) == "" {
			ctx := context.Background()
			if err := errors.Join(cluster.UninstallAdapter(ctx), cluster.Install(ctx), cluster.UninstallPrometheus(ctx)); err != nil {
				t.Error(err)
			}
		}
	})
	if err := cluster.Unblock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := cluster.InstallPrometheus(ctx); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Install(ctx, "prometheus.url="+trial.PrometheusURL, "monitors.interval=5s", "operator.extraArgs={--scrape-interval=5s}"); err != nil {
		t.Fatal(err)
	}
	base, stop, err := cluster.Reach(ctx, trial.MonitoringNamespace, trial.PrometheusService)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	red, blue := namespace(t, "e2e-red"), namespace(t, "e2e-blue")
	for _, ns := range []string{blue, red} {
		if err := cluster.Apply(ctx, ns, map[string]string{red: redChat, blue: blueChat}[ns]); err != nil {
			t.Fatal(err)
		}
	}
	for _, ns := range []string{blue, red} {
		if err := cluster.UntilReady(ctx, ns, "chat", 4*time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, err := trial.Complete(ctx, reach(t, ns, "chat"), trial.Completion{Model: "tiny", Prompt: "hello", MaxTokens: 8}, nil); err != nil {
			t.Fatal(err)
		}
		untilCondition(t, ns, v1alpha1.ConditionMetricsFlowing, "True", "")
	}
	calm := keepHealthy(t, base, blue)

	t.Run("labels", func(t *testing.T) { checkStoredLabels(t, base, red, blue) })
	t.Run("targets", func(t *testing.T) { checkTargets(t, base) })
	t.Run("rules", func(t *testing.T) { checkRecorded(t, base, red) })
	t.Run("claimed", func(t *testing.T) { checkClaims(t, base, red, blue) })
	t.Run("stopped", func(t *testing.T) { checkStoppedExporter(t, red) })
	t.Run("blocked", func(t *testing.T) { checkBlocked(t, red) })
	t.Run("selector", func(t *testing.T) { checkSelector(t, base, red) })
	t.Run("adapter", func(t *testing.T) { checkAdapter(t) })
	t.Run("alerts", func(t *testing.T) { calm.check(t) })
	t.Run("gone", func(t *testing.T) { checkNothingStays(t, red, blue) })
}

// untilCondition waits until a condition of service chat has a status, and a part of its message where one is given.
func untilCondition(t *testing.T, ns, condition, status, part string) {
	t.Helper()
	until(t, 2*time.Minute, fmt.Sprintf("%s of %s/chat to be %s %s", condition, ns, status, part), func(ctx context.Context) (string, bool, error) {
		svc, err := cluster.Service(ctx, ns, "chat")
		if err != nil {
			return "", false, err
		}
		c := apimeta.FindStatusCondition(svc.Status.Conditions, condition)
		if c == nil {
			return "absent", false, nil
		}
		return fmt.Sprintf("%s: %s", c.Status, c.Message), string(c.Status) == status && strings.Contains(c.Message, part), nil
	})
}

// identity are the labels that say whose a series is.
var identity = []string{"namespace", "tenant", "inference_service", "pool", "replica", "node_rank", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"}

// checkStoredLabels compares who has series of the engines with who should.
func checkStoredLabels(t *testing.T, base, red, blue string) {
	row := func(ns, tenant, pool, replica, kind string) map[string]string {
		return map[string]string{
			"namespace": ns, "tenant": tenant, "inference_service": "chat", "pool": pool, "replica": replica, "node_rank": "0",
			"engine_type": kind, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0",
		}
	}
	want := []map[string]string{
		row(blue, "blue", "decode", "0", "decode"), row(blue, "blue", "prefill", "0", "prefill"),
		row(red, "red", "decode", "0", "decode"), row(red, "red", "decode", "1", "decode"), row(red, "red", "prefill", "0", "prefill"),
	}
	// An engine's own family, one of the runtime on which the engine puts no label, and Prometheus' own.
	for _, expression := range []string{
		`{__name__=~"sglang[:_]num_running_reqs", priority=""}`, `go_goroutines{pool!="", pool!="router"}`, `up{pool!="", pool!="router"}`,
	} {
		until(t, time.Minute, "every rank in "+expression, func(ctx context.Context) (string, bool, error) {
			series, err := trial.Query(ctx, base, expression)
			if err != nil {
				return "", false, err
			}
			var got []map[string]string
			for _, s := range series {
				labels := map[string]string{}
				for _, key := range identity {
					labels[key] = s.Labels[key]
				}
				if s.Labels["revision"] == "" {
					return fmt.Sprintf("no revision in %v", s.Labels), false, nil
				}
				got = append(got, labels)
			}
			key := func(labels map[string]string) string { return labels["namespace"] + labels["pool"] + labels["replica"] }
			slices.SortFunc(got, func(a, b map[string]string) int { return strings.Compare(key(a), key(b)) })
			diff := cmp.Diff(want, got)
			return diff, diff == "", nil
		})
	}
}

// checkTargets asserts that no target of the product is down, and that routers and the operator are among them.
func checkTargets(t *testing.T, base string) {
	until(t, time.Minute, "targets of all parts, none of them down", func(ctx context.Context) (string, bool, error) {
		series, err := trial.Query(ctx, base, "up")
		if err != nil {
			return "", false, err
		}
		jobs, down := map[string]int{}, 0
		for _, s := range series {
			jobs[s.Labels["job"]]++
			if s.Value == 0 {
				down++
			}
		}
		return fmt.Sprintf("%d down of %v", down, slices.Sorted(maps.Keys(jobs))), down == 0 && len(series) >= 6, nil
	})
}

// checkRecorded looks for series that a recording rule of the tenant made.
func checkRecorded(t *testing.T, base, red string) {
	until(t, 2*time.Minute, "recorded series of the tenant", func(ctx context.Context) (string, bool, error) {
		series, err := trial.Query(ctx, base, fmt.Sprintf(`count by (tenant) ({__name__=~"(service|pool|role):.+", namespace=%q})`, red))
		if err != nil {
			return "", false, err
		}
		return fmt.Sprint(series), len(series) == 1 && series[0].Labels["tenant"] == "red" && series[0].Value > 0, nil
	})
}

// checkNothingStays deletes the service of one tenant and looks for what was made for it; the other tenant's stays.
func checkNothingStays(t *testing.T, red, blue string) {
	if n := len(observers(t, red)); n == 0 {
		t.Errorf("the tenant has no monitors, rules and dashboards while its service exists")
	}
	before := observers(t, blue)
	if err := cluster.DeleteService(t.Context(), red, "chat", 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	until(t, time.Minute, "monitors, rules and dashboards of the tenant to go", func(context.Context) (string, bool, error) {
		left := observers(t, red)
		return fmt.Sprint(left), len(left) == 0, nil
	})
	if diff := cmp.Diff(before, observers(t, blue)); diff != "" {
		t.Errorf("objects of the other tenant (-before +after):\n%s", diff)
	}
}

// observers lists the monitors, rules and dashboards of a namespace.
func observers(t *testing.T, ns string) []string {
	t.Helper()
	var names []string
	for _, kind := range []schema.GroupVersionKind{
		{Group: "monitoring.coreos.com", Version: "v1", Kind: "ServiceMonitorList"},
		{Group: "monitoring.coreos.com", Version: "v1", Kind: "PodMonitorList"},
		{Group: "monitoring.coreos.com", Version: "v1", Kind: "PrometheusRuleList"},
		{Version: "v1", Kind: "ConfigMapList"},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := cluster.Client.List(t.Context(), list, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			if item.GetName() != "kube-root-ca.crt" {
				names = append(names, item.GetKind()+" "+item.GetName())
			}
		}
	}
	slices.Sort(names)
	return names
}
