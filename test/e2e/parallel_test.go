//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/hack/trial"
)

// nodes is a service whose replica is two pods: each hosts one tensor rank of each of two copies of the model.
const nodes = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - {name: main, role: Unified, parallelism: {tensor: 2, data: 2}, ranksPerPod: 2}
`

// TestReplicaOfSeveralPods follows a replica of two pods: it answers as one pod does, tells the load of each of its DP ranks,
// and comes back whole when the pod that does not answer for it is killed.
func TestReplicaOfSeveralPods(t *testing.T) {
	ns := namespace(t, "e2e-nodes")
	apply(t, ns, "chat", nodes)
	apply(t, ns, "plain", unified)
	base := reach(t, ns, "chat")
	request := trial.Completion{Model: "tiny", Prompt: "The quick brown fox", MaxTokens: 24}
	want, err := trial.Complete(t.Context(), reach(t, ns, "plain"), request, nil)
	if err != nil {
		t.Fatal(err)
	}
	answers := func(when string) {
		t.Helper()
		got, err := trial.Complete(t.Context(), base, request, nil)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if diff := cmp.Diff(want, got); diff != "" || got == "" {
			t.Errorf("%s, two pods differ from one (-one +two):\n%s", when, diff)
		}
	}
	answers("from apply to answer")
	pods := podsByName(t, ns)
	if len(pods) != 2 || pods[0].Name != "chat-main-0-0" || pods[1].Name != "chat-main-0-1" {
		t.Fatalf("the pods of the replica: %v", names(pods))
	}

	load := trial.StartLoad(t.Context(), 4, func(ctx context.Context, n int) error {
		_, err := trial.Complete(ctx, base, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("load ", n), MaxTokens: 400, IgnoreEOS: true, Stream: true}, nil)
		return err
	})
	defer load.Stop()
	until(t, time.Minute, "requests on both DP ranks in the status", func(ctx context.Context) (string, bool, error) {
		pool, err := cluster.Pool(ctx, ns, "chat", "main")
		if err != nil {
			return "", false, err
		}
		busy := map[int32]bool{}
		for _, rank := range pool.Status.Ranks {
			if rank.Pod != "chat-main-0-0" {
				return "", false, fmt.Errorf("pod %s answers for a rank, want the leader", rank.Pod)
			}
			busy[rank.DPRank] = rank.RunningRequests > 0
		}
		whole := pool.Status.Load != nil && pool.Status.Load.Ranks == 2 && pool.Status.Load.ExpectedRanks == 2
		return fmt.Sprintf("busy by DP rank: %v; load %+v", busy, pool.Status.Load), whole && busy[0] && busy[1], nil
	})
	if report := load.Stop(); report.Failed() > 0 {
		t.Errorf("requests failed: %s", report)
	}

	if err := cluster.Client.Delete(t.Context(), &pods[1], client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	until(t, 3*time.Minute, "both pods to be new and ready", func(ctx context.Context) (string, bool, error) {
		now, err := cluster.EnginePods(ctx, ns, "chat", "main")
		if err != nil {
			return "", false, err
		}
		old := slices.ContainsFunc(now, func(p corev1.Pod) bool { return p.UID == pods[0].UID || p.UID == pods[1].UID })
		pool, err := cluster.Pool(ctx, ns, "chat", "main")
		if err != nil {
			return "", false, err
		}
		return fmt.Sprintf("pods %v, one of them old: %t; %d replicas ready", names(now), old, pool.Status.ReadyReplicas), len(now) == 2 && !old && pool.Status.ReadyReplicas == 1, nil
	})
	pool, err := cluster.Pool(t.Context(), ns, "chat", "main")
	if err != nil {
		t.Fatal(err)
	}
	if last := pool.Status.LastDecision; last == nil || !strings.Contains(last.Reason, "0") {
		t.Errorf("the status does not say why the replica was replaced: %+v", last)
	} else {
		t.Logf("last decision: %s", last.Reason)
	}
	if err := cluster.UntilReady(t.Context(), ns, "chat", time.Minute); err != nil {
		t.Fatal(err)
	}
	answers("after a pod was killed")
}

// podsByName lists the engine pods of the service in the order of their names.
func podsByName(t *testing.T, ns string) []corev1.Pod {
	t.Helper()
	pods, err := cluster.EnginePods(t.Context(), ns, "chat", "main")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

func names(pods []corev1.Pod) []string {
	var list []string
	for _, pod := range pods {
		list = append(list, pod.Name)
	}
	return list
}
