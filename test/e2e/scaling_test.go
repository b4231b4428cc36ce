//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

// TestScaling puts load on a service until its decode pool grows, and takes it away until the pool is small again. A steady
// stream of requests must not lose one on the way.
func TestScaling(t *testing.T) {
	ns := namespace(t, "e2e-scaling")
	apply(t, ns, "chat", scaled)
	request := completions(reach(t, ns, "chat"))
	steady := trial.StartLoad(t.Context(), 2, request(12))
	defer steady.Stop()
	stepAndBack(t, ns, "decode", 20, request(200))
	report := steady.Stop()
	t.Log("steady: ", report)
	if report.Failed() > 0 || report.Done < 50 {
		t.Errorf("steady load over scale-out and scale-in: %s; want no failure and at least 50 answers", report)
	}
}

// completions gives requests of so many tokens.
func completions(base string) func(tokens int) func(context.Context, int) error {
	return func(tokens int) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			_, err := trial.Complete(ctx, base, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("scale ", n), MaxTokens: tokens, IgnoreEOS: true, Stream: true}, nil)
			return err
		}
	}
}

// stepAndBack puts clients on a pool of service chat with one replica until a second one is ready, takes them away, and waits
// until the pool has one replica again. It prints how long the pool took to want more, and to have them.
func stepAndBack(t *testing.T, ns, pool string, clients int, request func(context.Context, int) error) {
	t.Helper()
	began := time.Now()
	heavy := trial.StartLoad(t.Context(), clients, request)
	defer heavy.Stop()
	var wanted time.Duration // 0 until the demand is above 1
	look := func(done func(*v1alpha1.EnginePool) bool) func(context.Context) (string, bool, error) {
		return func(ctx context.Context) (string, bool, error) {
			obj, err := cluster.Pool(ctx, ns, "chat", pool)
			if err != nil {
				return "", false, err
			}
			if wanted == 0 && ptr.Deref(obj.Spec.Replicas, 1) > 1 {
				wanted = time.Since(began)
			}
			return fmt.Sprintf("demand %d, allocated %d, ready %d, draining %d", ptr.Deref(obj.Spec.Replicas, -1),
				obj.Status.Allocated, obj.Status.ReadyReplicas, obj.Status.DrainingReplicas), done(obj), nil
		}
	}
	until(t, 4*time.Minute, "the pool to scale out", look(func(p *v1alpha1.EnginePool) bool { return p.Status.ReadyReplicas >= 2 }))
	t.Logf("load step: more demand after %s, a new replica ready after %s", wanted.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond))
	svc, err := cluster.Service(t.Context(), ns, "chat")
	if err != nil {
		t.Fatal(err)
	}
	if !apimeta.IsStatusConditionTrue(svc.Status.Conditions, v1alpha1.ConditionScalingActive) {
		t.Errorf("ScalingActive is not True while the pool scales: %+v", svc.Status.Conditions)
	}
	if report := heavy.Stop(); report.Failed() > 0 {
		t.Errorf("heavy load: %s", report)
	}
	until(t, 5*time.Minute, "the pool to scale in", look(func(p *v1alpha1.EnginePool) bool {
		return p.Status.ReadyReplicas == 1 && p.Status.Replicas == 1 && ptr.Deref(p.Spec.Replicas, -1) == 1
	}))
}
