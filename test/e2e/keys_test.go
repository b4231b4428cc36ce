//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

// TestRouterKeys guards a router with the keys of a Secret. Without the Secret the router does not start and the service says
// why; with it the routes ask for their key; a changed key counts for routers that start after the change.
func TestRouterKeys(t *testing.T) {
	ns := namespace(t, "e2e-keys")
	guarded := strings.Replace(unified, "spec:\n", "spec:\n  router: {keysSecret: router-keys}\n", 1)
	if err := cluster.Apply(t.Context(), ns, guarded); err != nil {
		t.Fatal(err)
	}
	until(t, time.Minute, "the missing Secret in the condition", func(ctx context.Context) (string, bool, error) {
		svc, err := cluster.Service(ctx, ns, "plain")
		if err != nil {
			return "", false, err
		}
		c := apimeta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionRouterReady)
		if c == nil {
			return "no condition", false, nil
		}
		return c.Message, c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "router-keys"), nil
	})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "router-keys"}, StringData: map[string]string{"api-key": "first", "admin-api-key": "admin"}}
	if err := cluster.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := cluster.UntilReady(t.Context(), ns, "plain", 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	base := reach(t, ns, "plain")
	check := func(when string, want map[string]int) {
		t.Helper()
		got := map[string]int{}
		for _, key := range []string{"", "first", "second", "admin"} {
			for _, route := range []string{"/v1/completions", "/workers", "/health"} {
				status, err := withKey(t.Context(), base+route, key)
				if err != nil {
					t.Fatal(err)
				}
				if status == http.StatusOK {
					got[key+" "+route] = status
				} else if status != http.StatusUnauthorized {
					t.Errorf("%s: %s with key %q answers %d, want 200 or 401", when, route, key, status)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: what each key opens (-want +got):\n%s", when, diff)
		}
	}
	open := func(api string) map[string]int {
		want := map[string]int{api + " /v1/completions": 200, "admin /workers": 200}
		for _, key := range []string{"", "first", "second", "admin"} {
			want[key+" /health"] = 200
		}
		return want
	}
	check("with keys", open("first"))

	secret.StringData = map[string]string{"api-key": "second", "admin-api-key": "admin"}
	if err := cluster.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	check("keys are read at the start", open("first"))
	for _, args := range [][]string{{"restart"}, {"status", "--timeout=2m"}} {
		if out, err := cluster.Kubectl(t.Context(), append([]string{"-n", ns, "rollout", args[0], "deployment/" + trial.RouterName("plain")}, args[1:]...)...); err != nil {
			t.Fatal(out, err)
		}
	}
	until(t, time.Minute, "the new key to open", func(ctx context.Context) (string, bool, error) {
		status, err := withKey(ctx, base+"/v1/completions", "first") // of the old router, while it still drains
		return fmt.Sprintf("status %d with the old key", status), err == nil && status == http.StatusUnauthorized, nil
	})
	check("after a restart", open("second"))
}

// withKey asks a route with a bearer token, or without one, and gives the status.
func withKey(ctx context.Context, url, key string) (status int, err error) {
	method, body := http.MethodGet, ""
	if strings.HasSuffix(url, "/v1/completions") {
		method, body = http.MethodPost, `{"model": "tiny", "prompt": "a", "max_tokens": 2}`
	}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
