package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// TestPodsOfAReplica: the pods of a replica are made together, count as ready together, and when one ends all are replaced,
// with its last words as the reason.
func TestPodsOfAReplica(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(strings.Replace(unified, "role: Unified}", "role: Unified, parallelism: {tensor: 2, data: 2}, ranksPerPod: 2}", 1))
	got := trial.untilSettled("uni")
	if want := "main=1/1"; got.Status.Summary.Replicas != want {
		t.Errorf("summary says %s, want %s: a replica counts once", got.Status.Summary.Replicas, want)
	}
	pods := trial.pods("main")
	if diff := cmp.Diff([]string{"uni-main-0-0", "uni-main-0-1"}, names(pods)); diff != "" {
		t.Fatalf("pods (-want +got):\n%s", diff)
	}
	for i, pod := range pods {
		want := fmt.Sprintf("--tp-size 2 --dp-size 2 --nnodes 2 --node-rank %d --dist-init-addr uni-main-0-0.uni-main:20000 --dist-timeout 3600 --dist-secret-file /var/run/sluice/pd/secret", i)
		if args := strings.Join(pod.Spec.Containers[0].Args, " "); !strings.HasSuffix(args, want) {
			t.Errorf("pod %s has the arguments %s, want them to end with %s", pod.Name, args, want)
		}
	}
	if load := trial.pool("uni", "main").Status.Load; load == nil || load.Ranks != 2 || load.ExpectedRanks != 2 {
		t.Errorf("load %+v, want that of two DP ranks", load)
	}
	if err := trial.Get(t.Context(), client.ObjectKey{Namespace: trial.namespace, Name: "uni-pd"}, &corev1.Secret{}); err != nil {
		t.Errorf("the pods of a replica prove to each other that they belong together: %v", err)
	}

	trial.kubelet.fail(pods[1])
	trial.until("both pods to be replaced", func() (bool, string) {
		now := trial.pods("main")
		return len(now) == 2 && isReady(now[0]) && isReady(now[1]) && !slices.ContainsFunc(now, func(p *corev1.Pod) bool { return p.UID == pods[0].UID || p.UID == pods[1].UID }),
			fmt.Sprint(names(now))
	})
	trial.until("the reason", func() (bool, string) {
		decision := trial.pool("uni", "main").Status.LastDecision
		return decision != nil && strings.HasPrefix(decision.Reason, "engine of pod uni-main-0-1 ended with code 1 (Error), failure 1 in a row"), fmt.Sprintf("%+v", decision)
	})
	trial.untilSettled("uni")

	// A layout of one pod comes as a new revision: what serves stays until it is replaced, though it has another number of pods.
	before := trial.pool("uni", "main").Status.Revision
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Pools[0].RanksPerPod = nil })
	trial.until("the roll-out", func() (bool, string) {
		now := trial.pods("main")
		serving := map[string]int{}
		for _, pod := range now {
			if isReady(pod) {
				serving[pod.Labels[v1alpha1.LabelReplica]]++
			}
		}
		if len(serving) == 0 {
			t.Fatalf("nothing serves during the roll-out: %v", names(now))
		}
		return len(now) == 1 && now[0].Labels[v1alpha1.LabelRevision] != before, fmt.Sprint(names(now))
	})
	service = trial.untilSettled("uni")
	if ready := meta.FindStatusCondition(service.Status.Conditions, v1alpha1.ConditionMetricsFlowing); ready.Status != "True" {
		t.Errorf("metrics: %+v", ready)
	}
}
