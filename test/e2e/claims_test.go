//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

// rogue is a service whose engine says of all of its series that they are another tenant's, and lets clients say so. The label
// marker finds them again.
const rogue = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: rogue}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  tenant: red
  engine:
    args:
    - --extra-metric-labels={"marker":"rogue","tenant":"blue","namespace":"BLUE","inference_service":"chat"}
    - --tokenizer-metrics-allowed-custom-labels
    - pool
    - job
  observability:
    labels: {inference.sluice.dev/tenant: blue, inference.sluice.dev/service: chat}
  pools:
  - {name: all, role: Unified}
`

// checkClaims runs a service that claims to be another tenant's by every label that its owner may set, and a request that does.
func checkClaims(t *testing.T, base, red, blue string) {
	apply(t, red, "rogue", strings.ReplaceAll(rogue, "BLUE", blue))
	request := func(ctx context.Context) error {
		body := []byte(`{"model":"tiny","prompt":"hello","max_tokens":4}`)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, reach(t, red, "rogue")+"/v1/completions", bytes.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Custom-Labels", `{"pool":"decode","job":"chat-decode"}`)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", response.StatusCode)
		}
		return nil
	}
	if err := request(t.Context()); err != nil {
		t.Fatal(err)
	}
	// whose gives the owners of series, with how many they have of these.
	whose := func(ctx context.Context, selector string) (map[string]float64, error) {
		series, err := trial.Query(ctx, base, "count by (namespace, tenant, inference_service, pool, job) ("+selector+")")
		owners := map[string]float64{}
		for _, s := range series {
			var parts []string
			for _, key := range []string{"namespace", "tenant", "inference_service", "pool", "job"} {
				parts = append(parts, s.Labels[key])
			}
			owners[strings.Join(parts, " ")] = s.Value
		}
		return owners, err
	}
	own := red + " red rogue all rogue-all"
	until(t, time.Minute, "the series of the rogue", func(ctx context.Context) (string, bool, error) {
		owners, err := whose(ctx, `{marker="rogue", __name__=~".*prompt_tokens_total"}`)
		return fmt.Sprint(owners), owners[own] > 0, err
	})
	owners, err := whose(t.Context(), `{marker="rogue"}`)
	if err != nil {
		t.Fatal(err)
	}
	if len(owners) != 1 || owners[own] < 50 {
		t.Errorf("series of the rogue are in the hands of %v, want %q alone", owners, own)
	}
	owners, err = whose(t.Context(), fmt.Sprintf(`{__name__=~"sglang[:_]num_running_reqs", priority="", namespace=%q}`, blue))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]float64{blue + " blue chat decode chat-decode": 1, blue + " blue chat prefill chat-prefill": 1}, owners); diff != "" {
		t.Errorf("series of the other tenant (-want +got):\n%s", diff)
	}
	if err := cluster.DeleteService(t.Context(), red, "rogue", 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	checkPolicy(t, red)
}

// checkPolicy applies the policy that holds services to the tenant of their namespace, and makes a service that says another.
func checkPolicy(t *testing.T, red string) {
	text, err := os.ReadFile(filepath.Join(cluster.Root, "config", "policies", "tenants.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: red}}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"red"}}}`, v1alpha1.LabelTenant)
	if err := cluster.Client.Patch(t.Context(), ns, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.Background(), "delete", "--ignore-not-found", "-f", "config/policies/tenants.yaml"); err != nil {
			t.Error(err)
		}
	})
	if err := cluster.Apply(t.Context(), "", string(text)); err != nil {
		t.Fatal(err)
	}
	service := func(tenant string) *v1alpha1.InferenceService {
		return &v1alpha1.InferenceService{
			ObjectMeta: metav1.ObjectMeta{Namespace: red, Name: "claim"},
			Spec: v1alpha1.InferenceServiceSpec{
				Model: v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"}, Tenant: tenant,
				Pools: []v1alpha1.PoolSpec{{Name: "all", Role: v1alpha1.RoleUnified}},
			},
		}
	}
	const refusal = "spec.tenant must be red, the tenant of namespace e2e-red"
	until(t, time.Minute, "a service of another tenant to be refused", func(ctx context.Context) (string, bool, error) {
		err := cluster.Client.Create(ctx, service("blue"), client.DryRunAll)
		return fmt.Sprint(err), err != nil && strings.Contains(err.Error(), refusal), nil
	})
	if err := cluster.Client.Create(t.Context(), service(""), client.DryRunAll); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("a service of no tenant in a namespace of another name: %v, want %s", err, refusal)
	}
	if err := cluster.Client.Create(t.Context(), service("red"), client.DryRunAll); err != nil {
		t.Errorf("a service of its namespace's tenant: %v", err)
	}
}
