//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

// TestChangesLoseNoRequest rolls out new engines, rolls out the router and restarts the operator while two clients never
// stop. None of their requests may fail.
func TestChangesLoseNoRequest(t *testing.T) {
	ns := namespace(t, "e2e-changes")
	apply(t, ns, "chat", pd)
	base := reach(t, ns, "chat")
	steady := trial.StartLoad(t.Context(), 2, func(ctx context.Context, n int) error {
		_, err := trial.Complete(ctx, base, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("steady ", n), MaxTokens: 12, Stream: n%2 == 0}, nil)
		return err
	})
	defer steady.Stop()
	flows := func(t *testing.T) {
		t.Helper()
		from := steady.Now().Done
		until(t, time.Minute, "requests to flow", func(context.Context) (string, bool, error) {
			return "", steady.Now().Done >= from+20, nil
		})
		if report := steady.Now(); report.Failed() > 0 {
			t.Errorf("requests failed: %s", report)
		}
	}
	flows(t)

	t.Run("engines", func(t *testing.T) {
		old := uids(t, ns)
		changed := strings.Replace(pd, "scheduler: {maxRunningRequests: 8}", "scheduler: {maxRunningRequests: 6}", 1)
		changed = strings.Replace(changed, "role: Prefill", "role: Prefill\n    scheduler: {chunkedPrefillTokens: 256}", 1)
		if err := cluster.Apply(t.Context(), ns, changed); err != nil {
			t.Fatal(err)
		}
		until(t, 3*time.Minute, "every engine to be new", func(ctx context.Context) (string, bool, error) {
			svc, err := cluster.Service(ctx, ns, "chat")
			if err != nil {
				return "", false, err
			}
			left := 0
			for uid := range uids(t, ns) {
				if old[uid] {
					left++
				}
			}
			progressing := apimeta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionProgressing)
			if progressing == nil {
				return "no condition", false, nil
			}
			done := left == 0 && progressing.Status == "False" && progressing.ObservedGeneration == svc.Generation
			return fmt.Sprintf("%d old engines; %s", left, progressing.Message), done, nil
		})
		flows(t)
	})

	t.Run("router", func(t *testing.T) {
		var pods corev1.PodList
		labels := client.MatchingLabels{v1alpha1.LabelService: "chat", v1alpha1.LabelComponent: v1alpha1.ComponentRouter}
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(ns), labels); err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d router pods, error %v; want 1", len(pods.Items), err)
		}
		old := pods.Items[0]
		if out, err := cluster.Kubectl(t.Context(), "-n", ns, "rollout", "restart", "deployment/"+trial.RouterName("chat")); err != nil {
			t.Fatal(out, err)
		}
		until(t, 2*time.Minute, "the old router to be gone", func(ctx context.Context) (string, bool, error) {
			if err := cluster.Client.List(ctx, &pods, client.InNamespace(ns), labels); err != nil {
				return "", false, err
			}
			return fmt.Sprintf("%d router pods", len(pods.Items)), len(pods.Items) == 1 && pods.Items[0].UID != old.UID, nil
		})
		flows(t)
	})

	t.Run("operator", func(t *testing.T) {
		before, old := uids(t, ns), operatorPod(t)
		if err := cluster.Client.Delete(t.Context(), &old); err != nil {
			t.Fatal(err)
		}
		until(t, 2*time.Minute, "a new operator that is ready", func(ctx context.Context) (string, bool, error) {
			var pods corev1.PodList
			if err := cluster.Client.List(ctx, &pods, client.InNamespace(trial.SystemNamespace), client.MatchingLabels{"app.kubernetes.io/name": "sluice-operator"}); err != nil {
				return "", false, err
			}
			for _, pod := range pods.Items {
				for _, c := range pod.Status.Conditions {
					if pod.UID != old.UID && c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
						return "", true, nil
					}
				}
			}
			return fmt.Sprintf("%d operator pods", len(pods.Items)), false, nil
		})
		flows(t)
		for uid := range uids(t, ns) {
			if !before[uid] {
				t.Error("the restart of the operator replaced an engine")
			}
		}
	})
	report := steady.Stop()
	t.Log(report)
	if report.Failed() > 0 {
		t.Errorf("requests failed: %s", report)
	}
}

// uids gives the engine pods of the service by UID.
func uids(t *testing.T, ns string) map[string]bool {
	t.Helper()
	pods, err := cluster.EnginePods(t.Context(), ns, "chat", "")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, pod := range pods {
		set[string(pod.UID)] = true
	}
	return set
}

// TestFailuresNameTheirCause applies services that cannot start. The condition Ready must say why, so that nobody has to
// look into pods.
func TestFailuresNameTheirCause(t *testing.T) {
	ns := namespace(t, "e2e-causes")
	tests := []struct {
		name, old, new string // the change to the good manifest
		says           string
	}{
		{name: "no model", old: "pvc://models/tiny", new: "pvc://models/nowhere", says: "/models/nowhere"},
		{name: "no claim", old: "pvc://models/tiny", new: "pvc://absent/tiny", says: `persistentvolumeclaim "absent" not found`},
		{name: "no such cpu", old: "role: Unified", new: "role: Unified\n    resources: {requests: {cpu: 900}}", says: "Insufficient cpu"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			manifest := strings.Replace(unified, tt.old, tt.new, 1)
			if manifest == unified {
				t.Fatalf("%q is not in the manifest", tt.old)
			}
			if err := cluster.Apply(t.Context(), ns, manifest); err != nil {
				t.Fatal(err)
			}
			until(t, 90*time.Second, "the cause in the condition", func(ctx context.Context) (string, bool, error) {
				svc, err := cluster.Service(ctx, ns, "plain")
				if err != nil {
					return "", false, err
				}
				ready := apimeta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionReady)
				if ready == nil {
					return "no condition", false, nil
				}
				return ready.Message, ready.Status == "False" && strings.Contains(ready.Message, tt.says), nil
			})
			if err := cluster.DeleteService(t.Context(), ns, "plain", time.Minute); err != nil {
				t.Fatal(err)
			}
		})
	}
}
