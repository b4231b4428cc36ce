package controllers_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers"
)

// scraping makes the operator read the engines' metrics once a second, without a Prometheus.
func scraping(c *controllers.Config) { c.ScrapeInterval, c.PrometheusURL = time.Second, "" }

// values are those of series that say whether an engine is idle and its ledger adds up.
var values = regexp.MustCompile(`(?m)^((?:sglang:num_\w*reqs|sluice_requests_in_flight|sluice_kv_\w+_bytes_total)(?:\{[^}]*\})?) .*$`)

// exported is what a real engine of the pod's role exports, with one rank: golden text of engine/metrics. Idle, it holds nothing
// and has handed over sent bytes; else its counters stand still while it holds requests.
func exported(t *testing.T, role v1alpha1.Role, idle bool, sent int) string {
	t.Helper()
	raw, err := os.ReadFile("../engine/metrics/testdata/" + role.EngineType() + ".prom")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(`pp_rank="2"`, `pp_rank="0"`, `tp_rank="1"`, `tp_rank="0"`).Replace(string(raw))
	return values.ReplaceAllStringFunc(text, func(line string) string {
		series, _, _ := strings.Cut(line, " ")
		if i := strings.LastIndex(line, "} "); i >= 0 {
			series = line[:i+1]
		}
		switch {
		case strings.HasPrefix(series, "sluice_kv_") && strings.Contains(series, `outcome="done"`):
			return fmt.Sprint(series, " ", sent)
		case strings.HasPrefix(series, "sluice_kv_") || strings.HasPrefix(series, "sglang:num_paused_reqs") || idle:
			return series + " 0"
		default:
			return line
		}
	})
}

// exporters makes engines export what real ones do: a prefill engine has sent what the two decode engines received.
func exporters(t *testing.T) func(*corev1.Pod) string {
	texts := map[v1alpha1.Role]string{}
	for role, sent := range map[v1alpha1.Role]int{v1alpha1.RolePrefill: 2000, v1alpha1.RoleDecode: 1000, v1alpha1.RoleUnified: 0} {
		texts[role] = exported(t, role, true, sent)
	}
	return func(pod *corev1.Pod) string { return texts[v1alpha1.Role(pod.Labels[v1alpha1.LabelRole])] }
}

// untilScraped waits until every engine's metrics were asked for n more times.
func (t *trial) untilScraped(n int) {
	t.Helper()
	from := t.kubelet.scrapes()
	t.until("scrapes", func() (bool, string) {
		scrapes := t.kubelet.scrapes()
		return scrapes >= from+n, fmt.Sprintf("%d scrapes, from %d", scrapes, from)
	})
}

// TestProofOfMetrics: what real engines export flows; one whose exporter stops is named with the cause, alone, and when it is
// back nothing is missing. Neither costs a write while nothing changes.
func TestProofOfMetrics(t *testing.T) {
	trial := newTrial(t, scraping)
	trial.kubelet.setExport(exporters(t))
	trial.apply(strings.Replace(chat, "drainSeconds: 600}", "drainSeconds: 600, replicas: 2}", 1))
	trial.untilSettled("chat")
	trial.untilCondition("chat", v1alpha1.ConditionLedgerConsistent, metav1.ConditionTrue, "EveryLawHolds")
	trial.untilCondition("chat", v1alpha1.ConditionDegraded, metav1.ConditionFalse, "EveryRankMoves")

	// The verdict on hand-overs, and the last good news, come some scrapes later.
	trial.untilScraped(12)
	before := trial.operator.written()
	trial.untilScraped(5)
	if diff := cmp.Diff(before, trial.operator.written()); diff != "" {
		t.Errorf("writes while engines are scraped and nothing changes (-before +after):\n%s", diff)
	}

	mute := trial.pods("decode")[1]
	trial.kubelet.setExports(mute, "")
	stopped := trial.untilCondition("chat", v1alpha1.ConditionMetricsFlowing, metav1.ConditionFalse, "TargetDown")
	message := meta.FindStatusCondition(stopped.Status.Conditions, v1alpha1.ConditionMetricsFlowing).Message
	if want := "pool decode: no fresh series of chat-decode-1-0/"; !strings.HasPrefix(message, want) || strings.Contains(message, "prefill") || strings.Contains(message, "decode-0-0") {
		t.Errorf("the condition says %q, want %q and nobody else", message, want)
	}
	trial.untilEvent("TargetDown", "MetricsFlowing is False: no fresh series of chat-decode-1-0/")
	trial.untilCondition("chat", v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")

	trial.kubelet.setExports(mute, exporters(t)(mute))
	trial.untilCondition("chat", v1alpha1.ConditionMetricsFlowing, metav1.ConditionTrue, "AllRanksReport")
}
