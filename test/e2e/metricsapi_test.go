//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"

	"github.com/google/go-cmp/cmp"
)

// measured has an objective, and pools that scale on what is read from it.
const measured = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  slo: {ttft: {threshold: 500ms, objective: "0.99"}, itl: {threshold: 100ms, objective: "0.99"}}
  pools:
  - {name: prefill, role: Prefill}
  - name: decode
    role: Decode
    autoscaling: {maxReplicas: 1, metrics: [{type: TTFT, target: "0.9"}, {type: ITL, target: "0.9"}]}
`

// readersOfOne lets the default account of a namespace read one metric there.
const readersOfOne = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: queue-reader}
rules: [{apiGroups: [external.metrics.k8s.io], resources: [sluice_queue_length], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: queue-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: queue-reader}
subjects: [{kind: ServiceAccount, name: default}]
`

const (
	externalAPI      = "/apis/external.metrics.k8s.io/v1beta1"
	autoscalerAccess = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
)

// TestExternalMetrics reads external.metrics.k8s.io as autoscalers do, through the cluster's aggregator: every signal is
// listed, each pool that has it answers with a number, and only those may read who were told so.
func TestExternalMetrics(t *testing.T) {
	ns := namespace(t, "e2e-external")
	t.Cleanup(func() {
		if os.Getenv(keepVariable) == "" {
			if err := cluster.Install(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	if err := cluster.Install(t.Context(), "metricsAPI.external=true"); err != nil {
		t.Fatal(err)
	}
	apply(t, ns, "chat", measured)
	read := func(ctx context.Context, path string, more ...string) (string, error) {
		return cluster.Kubectl(ctx, append([]string{"get", "--raw", path}, more...)...)
	}

	signals := map[string][]string{ // with the pools that have it
		"sluice_utilization": {"decode"}, "sluice_prefill_delay_seconds": {"prefill"}, "sluice_queue_length": {"decode", "prefill"},
		"sluice_token_usage": {"decode", "prefill"}, "sluice_ttft_slo_ratio": {"decode"}, "sluice_itl_slo_ratio": {"decode"},
		"sluice_concurrency": {"decode", "prefill"},
	}
	until(t, time.Minute, "discovery to list every signal", func(ctx context.Context) (string, bool, error) {
		text, err := read(ctx, externalAPI)
		if err != nil {
			return err.Error(), false, nil //nolint:nilerr // it is not registered yet
		}
		var list metav1.APIResourceList
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return "", false, fmt.Errorf("read %q: %w", text, err)
		}
		var names []string
		for _, resource := range list.APIResources {
			names = append(names, resource.Name)
		}
		slices.Sort(names)
		diff := cmp.Diff(slices.Sorted(maps.Keys(signals)), names)
		return diff, diff == "", nil
	})
	for metric, pools := range signals {
		var values v1beta1.ExternalMetricValueList
		until(t, time.Minute, metric+" to be a number", func(ctx context.Context) (string, bool, error) {
			text, err := read(ctx, externalAPI+"/namespaces/"+ns+"/"+metric)
			if err != nil {
				return err.Error(), false, nil //nolint:nilerr // there is no sample yet
			}
			return "", true, json.Unmarshal([]byte(text), &values)
		})
		var got []string
		for _, value := range values.Items {
			got = append(got, value.MetricLabels["pool"])
			if value.Value.MilliValue() != 0 || value.MetricLabels["inference_service"] != "chat" {
				t.Errorf("%s of an idle service is %s with labels %v", metric, value.Value.String(), value.MetricLabels)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(pools, got); diff != "" {
			t.Errorf("pools with %s (-want +got):\n%s", metric, diff)
		}
	}
	one, err := read(t.Context(), externalAPI+"/namespaces/"+ns+"/sluice_queue_length?labelSelector=pool%3Ddecode")
	if err != nil || strings.Contains(one, `"prefill"`) || !strings.Contains(one, `"decode"`) {
		t.Errorf("the selector of one pool gives %s, error %v", one, err)
	}

	if err := cluster.Apply(t.Context(), ns, readersOfOne); err != nil {
		t.Fatal(err)
	}
	own, others := externalAPI+"/namespaces/"+ns, externalAPI+"/namespaces/default"
	account := "system:serviceaccount:" + ns + ":default"
	for _, tc := range []struct {
		name, reason, as, path string
		may                    bool
	}{
		{"Autoscaler", "the chart lets it read every signal", autoscalerAccess, own + "/sluice_utilization", true},
		{"Reader", "a role of the namespace names the metric", account, own + "/sluice_queue_length", true},
		{"OtherMetric", "the role names another", account, own + "/sluice_utilization", false},
		{"OtherNamespace", "the role is of one namespace", account, others + "/sluice_queue_length", false},
		{"Anybody", "nobody said that they may", "somebody", own + "/sluice_queue_length", false},
	} {
		until(t, 30*time.Second, fmt.Sprintf("access of %s to be %t", tc.name, tc.may), func(ctx context.Context) (string, bool, error) {
			_, err := read(ctx, tc.path, "--as", tc.as)
			forbidden := err != nil && strings.Contains(err.Error(), "Forbidden")
			if err != nil && !forbidden {
				return err.Error(), false, nil
			}
			return fmt.Sprintf("%s, but %v", tc.reason, err), forbidden != tc.may, nil // a new role takes a moment
		})
	}
}
