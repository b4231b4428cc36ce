//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/docrun"
	"github.com/sluice-dev/sluice/hack/trial"
)

// adapted scales on what another adapter of custom.metrics.k8s.io has.
const adapted = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - name: all
    role: Unified
    scheduler: {maxRunningRequests: 4}
    autoscaling:
      provider: External
      maxReplicas: 2
      behavior: {scaleDown: {stabilizationWindowSeconds: 5}}
      metrics: [{type: Utilization, target: "0.6"}, {type: QueueLength, target: 8}]
`

// checkAdapter installs prometheus-adapter with the commands of docs/scaling.md in the place of the operator's metrics API. A
// pool then scales out under load and back without any, on what the engines say and Prometheus has stored.
func checkAdapter(t *testing.T) {
	green := namespace(t, "e2e-green")
	apply(t, green, "chat", adapted)
	runAdapterCommands(t, green)

	base := reach(t, green, "chat")
	look := func(done func(*v1alpha1.EnginePool) bool) func(context.Context) (string, bool, error) {
		return func(ctx context.Context) (string, bool, error) {
			pool, err := cluster.Pool(ctx, green, "chat", "all")
			if err != nil {
				return "", false, err
			}
			active := apimeta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionScalingActive)
			if active == nil {
				return "no condition ScalingActive", false, nil
			}
			return fmt.Sprintf("demand %d, ready %d; ScalingActive %s %s: %s", ptr.Deref(pool.Spec.Replicas, -1), pool.Status.ReadyReplicas, active.Status, active.Reason, active.Message), done(pool), nil
		}
	}
	until(t, 2*time.Minute, "the autoscaler to read the adapter", look(func(p *v1alpha1.EnginePool) bool {
		return apimeta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionScalingActive)
	}))
	load := trial.StartLoad(t.Context(), 6, func(ctx context.Context, n int) error {
		_, err := trial.Complete(ctx, base, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("scale ", n), MaxTokens: 200, IgnoreEOS: true, Stream: true}, nil)
		return err
	})
	defer load.Stop()
	until(t, 3*time.Minute, "the pool to scale out", look(func(p *v1alpha1.EnginePool) bool { return p.Status.ReadyReplicas == 2 }))
	if report := load.Stop(); report.Failed() > 0 || report.Done == 0 {
		t.Errorf("the load: %s", report)
	}
	until(t, 3*time.Minute, "the pool to scale in", look(func(p *v1alpha1.EnginePool) bool {
		return ptr.Deref(p.Spec.Replicas, -1) == 1 && p.Status.ReadyReplicas == 1 && p.Status.Replicas == 1
	}))
	pool, err := cluster.Pool(t.Context(), green, "chat", "all")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range pool.Status.LastDecisions {
		t.Logf("%s: %d to %d: %s", d.By, d.From, d.To, d.Reason)
	}
	if err := cluster.DeleteService(t.Context(), green, "chat", 2*time.Minute); err != nil {
		t.Fatal(err)
	}
}

// adapterRunner is what docs/scaling.md calls runAdapterCommands in its marks.
const adapterRunner = "adapter"

// runAdapterCommands types the commands of docs/scaling.md for another adapter, with this cluster's names in the place of the
// example's.
func runAdapterCommands(t *testing.T, ns string) {
	t.Helper()
	ctx := t.Context()
	image, err := cluster.LoadAdapter(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(cluster.Root, trial.AdapterObjects))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"image: " + trial.AdapterImage, "--prometheus-url=" + trial.PrometheusURL} {
		if !strings.Contains(string(text), part) {
			t.Fatalf("%s does not say %s", trial.AdapterObjects, part)
		}
	}
	folder := t.TempDir()
	objects := filepath.Join(folder, "objects.yaml")
	if err := os.WriteFile(objects, []byte(strings.ReplaceAll(string(text), trial.AdapterImage, image)), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl, err := cluster.KubectlPath(ctx)
	if err != nil {
		t.Fatal(err)
	}
	helm, err := cluster.HelmPath(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{kubectl, helm} {
		if err := os.Symlink(program, filepath.Join(folder, filepath.Base(program))); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig, "PATH="+folder+":"+os.Getenv("PATH"), "HOME="+t.TempDir())
	session, err := docrun.Open(cluster.Root, t.TempDir(), env)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}()
	blocks := readPage(t, "docs/scaling.md").Run(adapterRunner)
	if len(blocks) == 0 {
		t.Fatal("docs/scaling.md has no commands for another adapter")
	}
	runner := docrun.Runner{Session: session, Replace: strings.NewReplacer(trial.AdapterObjects, objects, "team-a", ns).Replace, Limit: commandLimit, Log: t.Logf}
	for _, block := range blocks {
		if err := runner.Run(ctx, block); err != nil {
			t.Fatal(err)
		}
	}
}
