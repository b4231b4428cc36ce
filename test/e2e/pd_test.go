//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

// TestPDService follows one service through its life: apply, labels, answers, load in status, a killed pod, deletion.
func TestPDService(t *testing.T) {
	ns := namespace(t, "e2e-pd")
	apply(t, ns, "chat", pd)

	t.Run("labels", func(t *testing.T) { checkLabels(t, ns) })
	t.Run("answers", func(t *testing.T) { checkAnswers(t, ns) })
	t.Run("hostile", func(t *testing.T) { checkHostile(t, ns) })
	t.Run("load", func(t *testing.T) { checkLoad(t, ns) })
	t.Run("killed", func(t *testing.T) { checkKilled(t, ns) })
	t.Run("deleted", func(t *testing.T) { checkDeleted(t, ns) })
}

func checkLabels(t *testing.T, ns string) {
	pods, err := cluster.EnginePods(t.Context(), ns, "chat", "")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]string{}
	for _, pod := range pods {
		labels := maps.Clone(pod.Labels)
		if labels[v1alpha1.LabelRevision] == "" {
			t.Errorf("pod %s has no revision", pod.Name)
		}
		maps.DeleteFunc(labels, func(key, _ string) bool {
			return key == v1alpha1.LabelRevision || !strings.HasPrefix(key, v1alpha1.LabelPrefix) && key != v1alpha1.LabelLLMDRole
		})
		got[pod.Name] = labels
	}
	want := map[string]map[string]string{}
	for pool, role := range map[string]v1alpha1.Role{"prefill": v1alpha1.RolePrefill, "decode": v1alpha1.RoleDecode} {
		want["chat-"+pool+"-0-0"] = map[string]string{
			v1alpha1.LabelService: "chat", v1alpha1.LabelPool: pool, v1alpha1.LabelRole: string(role),
			v1alpha1.LabelEngineType: role.EngineType(), v1alpha1.LabelReplica: "0", v1alpha1.LabelNodeRank: "0",
			v1alpha1.LabelTenant: "blue", v1alpha1.LabelModel: "tiny", v1alpha1.LabelComponent: v1alpha1.ComponentEngine,
			v1alpha1.LabelRank: "0", v1alpha1.LabelTPRank: "0", v1alpha1.LabelPPRank: "0", v1alpha1.LabelDPRank: "0", v1alpha1.LabelMoEEPRank: "0",
			v1alpha1.LabelLLMDRole: role.EngineType(),
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("labels of the engine pods (-want +got):\n%s", diff)
	}
}

// checkAnswers compares the greedy text of prefill and decode with that of a unified engine of the same model.
func checkAnswers(t *testing.T, ns string) {
	apply(t, ns, "plain", unified)
	split, whole := reach(t, ns, "chat"), reach(t, ns, "plain")
	for n, prompt := range []string{"a", "The quick brown fox", strings.Repeat("one two three ", 40), "naïve façade — 日本語", strings.Repeat("x", 15), strings.Repeat("word ", 16)} {
		for _, stream := range []bool{false, true} {
			c := trial.Completion{Model: "tiny", Prompt: prompt, MaxTokens: 40, Stream: stream}
			got, err := trial.Complete(t.Context(), split, c, nil)
			if err != nil {
				t.Fatalf("prompt %d over prefill and decode: %v", n, err)
			}
			want, err := trial.Complete(t.Context(), whole, c, nil)
			if err != nil {
				t.Fatalf("prompt %d on the unified engine: %v", n, err)
			}
			if diff := cmp.Diff(want, got); diff != "" || got == "" {
				t.Errorf("prompt %d, stream %t: PD differs from unified (-unified +pd):\n%s", n, stream, diff)
			}
		}
	}
	if err := cluster.DeleteService(t.Context(), ns, "plain", time.Minute); err != nil {
		t.Error(err)
	}
}

// checkLoad holds six requests on the decode pool and reads them from the status, then looks for zero.
func checkLoad(t *testing.T, ns string) {
	base := reach(t, ns, "chat")
	load := trial.StartLoad(t.Context(), 6, func(ctx context.Context, n int) error {
		_, err := trial.Complete(ctx, base, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("load ", n), MaxTokens: 400, IgnoreEOS: true, Stream: true}, nil)
		return err
	})
	defer load.Stop()
	look := func(want func(*v1alpha1.PoolLoad) bool) func(context.Context) (string, bool, error) {
		return func(ctx context.Context) (string, bool, error) {
			svc, err := cluster.Service(ctx, ns, "chat")
			if err != nil {
				return "", false, err
			}
			for _, pool := range svc.Status.Pools {
				if pool.Name == "decode" && pool.Load != nil && pool.Load.Utilization != nil {
					return fmt.Sprintf("running %d, utilization %s", pool.Load.RunningRequests, pool.Load.Utilization.Mean), want(pool.Load), nil
				}
			}
			return "no load of the decode pool", false, nil
		}
	}
	until(t, time.Minute, "the status to show the load", look(func(l *v1alpha1.PoolLoad) bool {
		return l.RunningRequests >= 3 && l.Utilization.Mean >= "0.30" && l.Ranks == 1 && l.ExpectedRanks == 1
	}))
	if report := load.Stop(); report.Failed() > 0 {
		t.Error(report)
	}
	until(t, time.Minute, "the status to show that the load is gone", look(func(l *v1alpha1.PoolLoad) bool {
		return l.RunningRequests == 0 && l.Utilization.Mean == "0.00"
	}))
	svc, err := cluster.Service(t.Context(), ns, "chat")
	if err != nil {
		t.Fatal(err)
	}
	for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionRouterReady, v1alpha1.ConditionMetricsFlowing} {
		if !apimeta.IsStatusConditionTrue(svc.Status.Conditions, condition) {
			t.Errorf("condition %s is not True: %+v", condition, svc.Status.Conditions)
		}
	}
}

// checkKilled kills one of two decode pods under load of short requests. What had not begun to answer is retried on the
// other pod, so only requests that were mid-stream may fail, and the service has two decode pods again.
func checkKilled(t *testing.T, ns string) {
	if err := cluster.Scale(t.Context(), ns, "chat", "decode", 2); err != nil {
		t.Fatal(err)
	}
	ready := func(n int32) func(context.Context) (string, bool, error) {
		return func(ctx context.Context) (string, bool, error) {
			pool, err := cluster.Pool(ctx, ns, "chat", "decode")
			if err != nil {
				return "", false, err
			}
			return fmt.Sprintf("ready %d of %d", pool.Status.ReadyReplicas, pool.Status.Replicas), pool.Status.ReadyReplicas == n && pool.Status.Replicas == n, nil
		}
	}
	until(t, 2*time.Minute, "two decode replicas", ready(2))
	base := reach(t, ns, "chat")
	const clients = 4
	load := trial.StartLoad(t.Context(), clients, func(ctx context.Context, n int) error {
		_, err := trial.Complete(ctx, base, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("kill ", n), MaxTokens: 8}, nil)
		return err
	})
	defer load.Stop()
	answered := func(more int) func(context.Context) (string, bool, error) {
		from := load.Now().Done
		return func(context.Context) (string, bool, error) {
			now := load.Now()
			return "", now.Done >= from+more, nil
		}
	}
	until(t, time.Minute, "requests to flow", answered(20))
	pods, err := cluster.EnginePods(t.Context(), ns, "chat", "decode")
	if err != nil || len(pods) != 2 {
		t.Fatalf("%d decode pods, error %v; want 2", len(pods), err)
	}
	victim := pods[0]
	if err := cluster.Client.Delete(t.Context(), &victim, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	until(t, time.Minute, "requests to flow after the kill", answered(20))
	until(t, 2*time.Minute, "a new decode replica", func(ctx context.Context) (string, bool, error) {
		pods, err := cluster.EnginePods(ctx, ns, "chat", "decode")
		if err != nil || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == victim.UID }) {
			return "the killed pod is still there", false, err
		}
		return ready(2)(ctx)
	})
	report := load.Stop()
	t.Log(report)
	// Answers without streaming have no first byte before the end, so each can be retried.
	if report.Failed() > 0 {
		t.Errorf("requests failed although none had begun to answer: %s", report)
	}
	if err := cluster.Scale(t.Context(), ns, "chat", "decode", 1); err != nil {
		t.Fatal(err)
	}
	until(t, 2*time.Minute, "one decode replica", ready(1))
}

// checkDeleted deletes the service and looks for anything that was made for it.
func checkDeleted(t *testing.T, ns string) {
	if err := cluster.DeleteService(t.Context(), ns, "chat", time.Minute); err != nil {
		t.Fatal(err)
	}
	lists := map[string]client.ObjectList{
		"pods": &corev1.PodList{}, "services": &corev1.ServiceList{}, "deployments": &appsv1.DeploymentList{},
		"horizontalpodautoscalers": &autoscalingv2.HorizontalPodAutoscalerList{}, "enginepools": &v1alpha1.EnginePoolList{},
		"secrets": &corev1.SecretList{}, "roles": &rbacv1.RoleList{}, "rolebindings": &rbacv1.RoleBindingList{},
		"serviceaccounts": &corev1.ServiceAccountList{}, "configmaps": &corev1.ConfigMapList{},
		"servicemonitors": monitorList(),
	}
	until(t, time.Minute, "nothing to be left", func(ctx context.Context) (string, bool, error) {
		var left []string
		for kind, list := range lists {
			if err := cluster.Client.List(ctx, list, client.InNamespace(ns)); err != nil {
				if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
					continue // the cluster has no such resource, or no longer
				}
				return "", false, err
			}
			items, err := apimeta.ExtractList(list)
			if err != nil {
				return "", false, err
			}
			for _, item := range items {
				obj := item.(client.Object)
				if strings.HasPrefix(obj.GetName(), "chat") {
					left = append(left, kind+"/"+obj.GetName())
				}
			}
		}
		slices.Sort(left)
		return strings.Join(left, " "), len(left) == 0, nil
	})
}
