//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

// untilFlowing waits until MetricsFlowing of service chat is as a look wants it, and logs what it took.
func untilFlowing(t *testing.T, ns, what string, look func(status, reason, message string) bool) {
	t.Helper()
	from := time.Now()
	until(t, 2*time.Minute, "MetricsFlowing of "+ns+"/chat: "+what, func(ctx context.Context) (string, bool, error) {
		svc, err := cluster.Service(ctx, ns, "chat")
		if err != nil {
			return "", false, err
		}
		c := apimeta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionMetricsFlowing)
		if c == nil {
			return "absent", false, nil
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message), look(string(c.Status), c.Reason, c.Message), nil
	})
	t.Logf("%s: after %s", what, time.Since(from).Round(100*time.Millisecond))
}

// untilMissing waits until the ranks of pods, and no others, are missing for a cause.
func untilMissing(t *testing.T, ns, cause string, detail string, pods ...corev1.Pod) {
	t.Helper()
	untilFlowing(t, ns, cause, func(status, reason, message string) bool {
		named := 0
		for _, pod := range pods {
			if strings.Contains(message, pod.Name+"/0 ("+cause+": ") {
				named++
			}
		}
		return status == "False" && reason == cause && named == len(pods) && strings.Count(message, "-0/0 (") == len(pods) && strings.Contains(message, detail)
	})
}

func untilAllFlow(t *testing.T, ns string) {
	t.Helper()
	untilFlowing(t, ns, "every rank again", func(status, _, _ string) bool { return status == "True" })
}

// checkStoppedExporter stops the API process of a decode engine: it takes connections and answers nothing.
func checkStoppedExporter(t *testing.T, red string) {
	pod := decodePods(t, red)[1]
	pid, err := processOf(&pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}
	}
	defer resume()
	untilMissing(t, red, "TargetDown", " does not answer in time)", pod)
	resume()
	untilAllFlow(t, red)
}

// decodePods gives the two decode pods of the service.
func decodePods(t *testing.T, red string) []corev1.Pod {
	t.Helper()
	pods, err := cluster.EnginePods(t.Context(), red, "chat", "decode")
	if err != nil || len(pods) != 2 {
		t.Fatalf("%d decode pods, error %v; want 2", len(pods), err)
	}
	return pods
}

// processOf finds the API process of an engine pod among the processes of this machine, by the pod's uid in its cgroup.
func processOf(pod *corev1.Pod) (pid int, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range processes {
		group, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !strings.Contains(strings.ReplaceAll(string(group), "_", "-"), string(pod.UID)) {
			continue
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		if args := strings.Split(string(line), "\x00"); len(args) > 1 && args[1] == "serve" {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("no process of pod %s on this machine", pod.Name)
}

// denyAll lets nobody reach the decode engines. Nothing in the dev cluster enforces it; checkBlocked does in its place.
const denyAll = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-decode}
spec:
  podSelector: {matchLabels: {inference.sluice.dev/pool: decode}}
  policyTypes: [Ingress]
`

// prometheusPod gives the pod of Prometheus.
func prometheusPod(t *testing.T) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(trial.MonitoringNamespace), client.MatchingLabels{"prometheus": "main"}); err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods of Prometheus, error %v; want 1", len(pods.Items), err)
	}
	return &pods.Items[0]
}

// checkBlocked closes the way from Prometheus to a decode engine, which the operator still reaches.
func checkBlocked(t *testing.T, red string) {
	if err := cluster.Apply(t.Context(), red, denyAll); err != nil {
		t.Fatal(err)
	}
	pod := decodePods(t, red)[0]
	unblock, err := cluster.Block(t.Context(), prometheusPod(t), &pod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Unblock(context.Background()); err != nil {
			t.Error(err)
		}
	})
	untilMissing(t, red, "PolicyBlocks", "NetworkPolicy "+red+"/deny-decode selects the pod)", pod)
	if err := unblock(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilAllFlow(t, red)
}

// checkSelector makes Prometheus pass over the monitors of the namespace. It goes on answering with the last samples.
func checkSelector(t *testing.T, base, red string) {
	label := func(value string) {
		t.Helper()
		ns := &corev1.Namespace{}
		ns.Name = red
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, trial.UnmonitoredLabel, value)
		if err := cluster.Client.Patch(context.Background(), ns, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := cluster.EnginePods(t.Context(), red, "chat", "")
	if err != nil {
		t.Fatal(err)
	}
	label(`"true"`)
	defer label("null")
	untilScraped(t, base, red, false)
	untilMissing(t, red, "MonitorSelectorMismatch", "", pods...)
	label("null")
	untilScraped(t, base, red, true)
	untilAllFlow(t, red)
}

// untilScraped waits until Prometheus has taken the monitors of a namespace, or has let go of them. Its configuration is a
// mounted Secret, and the reloader beside it misses changes of such files but for a look every three minutes.
func untilScraped(t *testing.T, base, ns string, scraped bool) {
	t.Helper()
	until(t, 6*time.Minute, fmt.Sprintf("Prometheus to scrape %s: %t", ns, scraped), func(ctx context.Context) (string, bool, error) {
		pools, err := trial.ScrapePools(ctx, base)
		own := slices.ContainsFunc(pools, func(pool string) bool { return strings.HasPrefix(pool, "serviceMonitor/"+ns+"/") })
		return strings.Join(pools, " "), own == scraped, err
	})
}
