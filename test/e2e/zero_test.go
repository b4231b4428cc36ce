//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

// sleepyUnified and sleepyPair have no replica while nobody asks.
const (
	sleepyUnified = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: plain}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - name: all
    role: Unified
    autoscaling: {minReplicas: 0, maxReplicas: 2, scaleToZeroAfterSeconds: 10, metrics: [{type: Concurrency, target: 8}]}
`
	sleepyPair = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - name: prefill
    role: Prefill
    autoscaling: {minReplicas: 0, maxReplicas: 2, scaleToZeroAfterSeconds: 10, metrics: [{type: QueueLength, target: 8}]}
  - name: decode
    role: Decode
    autoscaling: {minReplicas: 0, maxReplicas: 2, scaleToZeroAfterSeconds: 10, metrics: [{type: Utilization, target: "0.8"}]}
`
)

// TestScaleToZero lets two services fall asleep, one of unified engines and one of a pair of pools, and asks each something: the
// request waits in the router, wakes what it needs and is answered as if nothing had been.
func TestScaleToZero(t *testing.T) {
	ns := namespace(t, "e2e-zero")
	apply(t, ns, "plain", sleepyUnified)
	apply(t, ns, "chat", sleepyPair)
	pools := map[string][]string{"plain": {"all"}, "chat": {"prefill", "decode"}}
	request := trial.Completion{Model: "tiny", Prompt: "Who is there?", MaxTokens: 16}
	before := map[string]string{}
	for service := range pools {
		text, err := trial.Complete(t.Context(), reach(t, ns, service), request, nil)
		if err != nil || text == "" {
			t.Fatalf("service %s before it sleeps: %q, error %v", service, text, err)
		}
		before[service] = text
	}
	for service, names := range pools {
		for _, pool := range names {
			untilAsleep(t, ns, service, pool)
		}
		svc, err := cluster.Service(t.Context(), ns, service)
		if err != nil {
			t.Fatal(err)
		}
		for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionScalingActive} {
			if !apimeta.IsStatusConditionTrue(svc.Status.Conditions, condition) {
				t.Errorf("%s of %s is not True while it sleeps: %+v", condition, service, apimeta.FindStatusCondition(svc.Status.Conditions, condition))
			}
		}
	}
	for service, names := range pools {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		began := time.Now()
		text, err := trial.Complete(ctx, reach(t, ns, service), request, nil)
		cancel()
		if err != nil {
			t.Fatalf("the request that woke %s: %v", service, err)
		}
		t.Logf("service %s: from asleep to the whole answer %s", service, time.Since(began).Round(100*time.Millisecond))
		if diff := cmp.Diff(before[service], text); diff != "" {
			t.Errorf("service %s says something else after its sleep (-before +after):\n%s", service, diff)
		}
		for _, pool := range names {
			checkWoken(t, ns, service, pool)
		}
	}
}

// untilAsleep waits until a pool has no engine, and looks for what its status says then.
func untilAsleep(t *testing.T, ns, service, pool string) {
	t.Helper()
	until(t, 2*time.Minute, fmt.Sprintf("pool %s of %s to sleep", pool, service), func(ctx context.Context) (string, bool, error) {
		obj, err := cluster.Pool(ctx, ns, service, pool)
		if err != nil {
			return "", false, err
		}
		pods, err := cluster.EnginePods(ctx, ns, service, pool)
		if err != nil {
			return "", false, err
		}
		active := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionScalingActive)
		if active == nil {
			return "no condition", false, nil
		}
		state := fmt.Sprintf("demand %d, %d pods, ScalingActive %s %s", ptr.Deref(obj.Spec.Replicas, -1), len(pods), active.Status, active.Reason)
		return state, ptr.Deref(obj.Spec.Replicas, -1) == 0 && len(pods) == 0 && active.Status == "True" && active.Reason == "Asleep", nil
	})
}

// checkWoken looks for who put the pool to sleep and who woke it: in the status, and as events.
func checkWoken(t *testing.T, ns, service, pool string) {
	t.Helper()
	until(t, 30*time.Second, fmt.Sprintf("the decisions about pool %s of %s", pool, service), func(ctx context.Context) (string, bool, error) {
		obj, err := cluster.Pool(ctx, ns, service, pool)
		if err != nil {
			return "", false, err
		}
		var got []string
		for _, d := range obj.Status.LastDecisions {
			got = append(got, fmt.Sprintf("%s %d -> %d", d.By, d.From, d.To))
		}
		// It may have slept before it was asked for the first time, and may sleep again.
		all := strings.Join(got, ", ")
		return all, strings.HasPrefix(all, "Other 0 -> 1, ") && strings.Contains(all, "Idle 1 -> 0, WakeUp 0 -> 1"), nil
	})
	until(t, 30*time.Second, "the events", func(ctx context.Context) (string, bool, error) {
		var list eventsv1.EventList
		if err := cluster.Client.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return "", false, err
		}
		seen := map[string]bool{}
		for _, event := range list.Items {
			if event.Regarding.Kind == "EnginePool" && event.Regarding.Name == service+"-"+pool && event.Type == corev1.EventTypeNormal {
				seen[event.Reason] = true
			}
		}
		return fmt.Sprint(seen), seen["PutToSleep"] && seen["WokenUp"], nil
	})
}
