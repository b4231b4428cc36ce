//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/hack/trial"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

// cluster is the one installation that all tests share.
var cluster *trial.Trial

// keepVariable keeps the cluster after the tests when it is set, for a look at what is there.
const keepVariable = "SLUICE_E2E_KEEP"

func TestMain(m *testing.M) {
	code, err := around(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func around(m *testing.M) (code int, err error) {
	ctx := context.Background()
	root, err := buildcache.FindRoot(".")
	if err != nil {
		return 1, err
	}
	if os.Getenv("KUBECONFIG") == "" && os.Geteuid() != 0 {
		return 1, errors.New("the dev cluster needs root; run as root, or set KUBECONFIG to a cluster")
	}
	if os.Getenv(keepVariable) == "" {
		defer func() { err = errors.Join(err, trial.Down(ctx, root, os.Stdout)) }()
	}
	cluster, err = trial.Up(ctx, root, os.Stdout)
	if err != nil {
		return 1, err
	}
	if err := cluster.Install(ctx); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// namespace makes a namespace with the model in it, and removes it when the test ends, after printing what is in it if
// the test failed.
func namespace(t *testing.T, name string) string {
	t.Helper()
	ctx := t.Context()
	if err := cluster.EnsureNamespace(ctx, name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if t.Failed() {
			describe(ctx, t, name)
		}
		if os.Getenv(keepVariable) != "" {
			return
		}
		if err := cluster.RemoveNamespace(ctx, name); err != nil {
			t.Error(err)
		}
	})
	if err := cluster.EnsureModel(ctx, name); err != nil {
		t.Fatal(err)
	}
	return name
}

// describe prints what a reader of a failed test wants to know.
func describe(ctx context.Context, t *testing.T, namespace string) {
	for _, args := range [][]string{
		{"get", "inferenceservices.inference.sluice.dev,enginepools.inference.sluice.dev,hpa", "-n", namespace, "-o", "yaml"},
		{"get", "pods", "-n", namespace, "-o", "wide"},
		{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
		{"logs", "-n", trial.SystemNamespace, "-l", "app.kubernetes.io/name=sluice-operator", "--tail=100"},
		{"logs", "-n", namespace, "-l", "inference.sluice.dev/service", "--tail=40", "--prefix"},
	} {
		out, err := cluster.Kubectl(ctx, args...)
		t.Logf("kubectl %v: %v\n%s", args, err, out)
	}
}

// apply applies a manifest and waits until the service is ready.
func apply(t *testing.T, namespace, service, manifest string) {
	t.Helper()
	if err := cluster.Apply(t.Context(), namespace, manifest); err != nil {
		t.Fatal(err)
	}
	if err := cluster.UntilReady(t.Context(), namespace, service, 4*time.Minute); err != nil {
		t.Fatal(err)
	}
}

// reach gives the base URL of a service's router.
func reach(t *testing.T, namespace, service string) string {
	t.Helper()
	base, stop, err := cluster.Reach(t.Context(), namespace, trial.RouterName(service))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return base
}

// until fails the test when a condition does not come to hold.
func until(t *testing.T, limit time.Duration, what string, look func(context.Context) (string, bool, error)) {
	t.Helper()
	if err := cluster.Until(t.Context(), limit, what, look); err != nil {
		t.Fatal(err)
	}
}

// operatorPod gives the operator's only pod that is not on its way out.
func operatorPod(t *testing.T) corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(trial.SystemNamespace), client.MatchingLabels{"app.kubernetes.io/name": "sluice-operator"}); err != nil {
		t.Fatal(err)
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	if len(pods.Items) != 1 {
		t.Fatalf("%d operator pods, want 1", len(pods.Items))
	}
	return pods.Items[0]
}
