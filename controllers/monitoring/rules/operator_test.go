package rules

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	promrules "github.com/prometheus/prometheus/rules"

	"github.com/sluice-dev/sluice/controllers/metrics"
)

// operatorJob is that of the release in these tests.
const operatorJob = "sluice-operator"

// operatorSeries reads a series a line, "POD NAME{LABELS} VALUES", as Prometheus has them of an operator's monitor; a pod that
// begins with "other" is of another release.
func operatorSeries(t *testing.T, lines string) map[string][]parser.SequenceValue {
	t.Helper()
	all := map[string][]parser.SequenceValue{}
	for line := range strings.Lines(lines) {
		pod, desc, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			continue
		}
		metric, values, err := parser.ParseSeriesDesc(strings.TrimSpace(desc))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		b := labels.NewBuilder(metric).Set("pod", pod).Set("instance", pod+":8080").Set("job", operatorJob)
		if strings.HasPrefix(pod, "other") {
			b.Set("job", "other-operator")
		}
		if metric.Get("namespace") == "" {
			b.Set("namespace", "sluice-system")
		}
		all[b.Labels().String()] = values
	}
	return all
}

// operatorFires gives the alerts that fire at the end of a load, one value a minute.
func operatorFires(t *testing.T, lines string) (list []fired) {
	t.Helper()
	p := newPrometheus(t)
	end := p.append(t, time.Minute, operatorSeries(t, lines))
	group, made := p.group(t, "operator", Operator(operatorJob, "").Rules)
	for at := epoch; !at.After(end); at = at.Add(time.Minute) {
		group.Eval(t.Context(), at)
	}
	for _, r := range made {
		if err := r.LastError(); err != nil {
			t.Errorf("rule %s: %v", r.Name(), err)
		}
		for _, a := range r.(*promrules.AlertingRule).ActiveAlerts() {
			if a.State == promrules.StateFiring {
				given := a.Labels.Map()
				delete(given, labels.AlertName)
				list = append(list, fired{r.Name(), given, a.Annotations.Get("summary")})
			}
		}
	}
	slices.SortFunc(list, func(a, b fired) int { return strings.Compare(a.Name+a.Summary, b.Name+b.Summary) })
	return list
}

// alive is an operator that is well, with 300 days for its certificates.
const alive = `
a up 1x75
a leader_election_master_status{name="lease"} 1x75
a controller_runtime_reconcile_total{controller="enginepool",result="success"} 0+60x75
a controller_runtime_reconcile_errors_total{controller="enginepool"} 0x75
a controller_runtime_reconcile_time_seconds_bucket{controller="enginepool",le="0.1"} 0+60x75
a controller_runtime_reconcile_time_seconds_bucket{controller="enginepool",le="+Inf"} 0+60x75
a workqueue_depth{name="enginepool",controller="enginepool",priority=""} 1x75
a sluice_operator_plan_actions_total{action="replace",reason="Replace",result="done"} 0x75
a sluice_operator_prometheus_checks_total{result="ok"} 0+4x75
a sluice_operator_prometheus_checks_total{result="error"} 0x75
a sluice_operator_api_service_registered{api_service="v1beta2.custom.metrics.k8s.io"} 1x75
a sluice_operator_certificate_expiry_timestamp_seconds{certificate="serving"} 1825920000x75
a sluice_condition{kind="InferenceService",namespace="team-a",name="chat",tenant="acme",inference_service="chat",type="Ready",status="True",reason="Serving"} 1x75
a sluice_condition{kind="InferenceService",namespace="team-a",name="chat",tenant="acme",inference_service="chat",type="Progressing",status="False",reason="AsAllocated"} 1x75
a sluice_condition{kind="EnginePool",namespace="team-a",name="chat-decode",tenant="acme",inference_service="chat",pool="decode",type="MetricsFlowing",status="True",reason="AllRanksReport"} 1x75
`

// instead replaces the line of alive that begins so.
func instead(t *testing.T, begin, with string) string {
	t.Helper()
	var lines []string
	found := false
	for line := range strings.Lines(alive) {
		if strings.HasPrefix(line, begin) {
			found = true
			lines = append(lines, strings.TrimSpace(with)+"\n")
			continue
		}
		lines = append(lines, line)
	}
	if !found {
		t.Fatalf("no line of the load begins with %q", begin)
	}
	return strings.Join(lines, "")
}

// complaint is a condition of chat or of its pool decode over the time.
func complaint(kind, condition, status, reason, values string) string {
	name, pool := "chat", ""
	if kind == "EnginePool" {
		name, pool = "chat-decode", `pool="decode",`
	}
	return `a sluice_condition{kind="` + kind + `",namespace="team-a",name="` + name + `",tenant="acme",inference_service="chat",` + pool +
		`type="` + condition + `",status="` + status + `",reason="` + reason + `"} ` + values + "\n"
}

func TestOperatorAlerts(t *testing.T) {
	of := func(severity string, more ...string) map[string]string { return alertLabels(severity, more...) }
	chat := func(severity string, more ...string) map[string]string {
		return of(severity, append([]string{"namespace", "team-a", "tenant", "acme", "inference_service", "chat"}, more...)...)
	}
	const ready = `a sluice_condition{kind="InferenceService",namespace="team-a",name="chat",tenant="acme",inference_service="chat",type="Ready"`
	tests := []struct {
		name, reason, load string
		want               []fired
	}{
		{name: "well", reason: "nothing is wrong", load: alive},
		{
			name: "down", reason: "the target does not answer", load: instead(t, "a up", "a up 1x60 0x14"),
			want: []fired{{"SluiceOperatorDown", of("critical", "job", operatorJob), "Prometheus reaches no operator"}},
		},
		{
			name: "gone", reason: "there is no target any more, and that of another release is none of ours", load: "a up 1x10\nother-1 up 1x75\n",
			want: []fired{{"SluiceOperatorDown", of("critical", "job", operatorJob), "Prometheus reaches no operator"}},
		},
		{name: "one of two is down", reason: "the other leads", load: alive + "b up 0x75\nb leader_election_master_status{name=\"lease\"} 0x75\n"},
		{name: "restarts", reason: "two minutes are an upgrade", load: instead(t, "a up", "a up 1x72 0x2")},
		{
			name: "nobody leads", reason: "both wait for the lease", load: instead(t, "a leader", `a leader_election_master_status{name="lease"} 1x60 0x14`) + "b leader_election_master_status{name=\"lease\"} 0x75\n",
			want: []fired{{"SluiceOperatorWithoutLeader", of("critical"), "Operators run and none leads"}},
		},
		{
			name: "reconciles fail", reason: "a quota, say", load: instead(t, "a controller_runtime_reconcile_errors", `a controller_runtime_reconcile_errors_total{controller="enginepool"} 0x30 0+30x44`),
			want: []fired{{"SluiceOperatorReconcileErrors", of("warning", "controller", "enginepool"), "50% of the reconciles of enginepool fail"}},
		},
		{name: "few reconciles fail", reason: "conflicts happen", load: instead(t, "a controller_runtime_reconcile_errors", `a controller_runtime_reconcile_errors_total{controller="enginepool"} 0+3x75`)},
		{
			name: "the only reconcile fails", reason: "four errors in five minutes of an idle operator are one object that is tried again; fewer than five say nothing",
			load: instead(t, "a controller_runtime_reconcile_errors", `a controller_runtime_reconcile_errors_total{controller="enginepool"} 0+0.7x75`),
		},
		{
			name: "slow", reason: "the API server takes its time", load: strings.ReplaceAll(alive, `le="0.1"} 0+60x75`, `le="0.1"} 0+50x75`) +
				`a controller_runtime_reconcile_time_seconds_bucket{controller="enginepool",le="10"} 0+60x75`,
			want: []fired{{"SluiceOperatorSlow", of("warning", "controller", "enginepool"), "Reconciles of enginepool take 9.406s at the 99th percentile"}},
		},
		{
			name: "the queue grows", reason: "more is to be done than is done; priorities are one queue", load: instead(t, "a workqueue_depth", `a workqueue_depth{name="enginepool",controller="enginepool",priority="0"} 80x75`) +
				`a workqueue_depth{name="enginepool",controller="enginepool",priority="100"} 80x75`,
			want: []fired{{"SluiceOperatorQueueGrows", of("warning", "name", "enginepool"), "160 objects wait in the queue enginepool"}},
		},
		{name: "two operators with a queue each", reason: "they are not added", load: instead(t, "a workqueue_depth", `a workqueue_depth{name="enginepool",controller="enginepool",priority="0"} 80x75`) + `b workqueue_depth{name="enginepool",controller="enginepool",priority="0"} 80x75`},
		{
			name: "prometheus is silent", reason: "nobody proves that metrics are stored", load: instead(t, "a sluice_operator_prometheus_checks_total{result=\"error\"}", `a sluice_operator_prometheus_checks_total{result="error"} 0+12x75`),
			want: []fired{{"SluicePrometheusUnanswered", of("warning"), "75% of the operator's questions to Prometheus fail"}},
		},
		{
			name: "not ready", reason: "for more than ten minutes, for one reason after the other", load: instead(t, ready, complaint("InferenceService", "Ready", "True", "Serving", "1x60")) +
				complaint("InferenceService", "Ready", "False", "PoolNotReady", "_x61 1x6") + complaint("InferenceService", "Ready", "False", "RouterNotReady", "_x67 1x8"),
			want: []fired{{"SluiceServiceNotReady", chat("critical"), "Service chat in namespace team-a is not ready"}},
		},
		{name: "starts", reason: "five minutes are a model that loads", load: instead(t, ready, complaint("InferenceService", "Ready", "True", "Serving", "1x70")) + complaint("InferenceService", "Ready", "False", "PoolNotReady", "_x71 1x4")},
		{
			name: "another leads meanwhile", reason: "the alert goes on with the other's series",
			load: instead(t, ready, complaint("InferenceService", "Ready", "False", "PoolNotReady", "_x50 1x10")) +
				strings.Replace(complaint("InferenceService", "Ready", "False", "PoolNotReady", "_x61 1x14"), "a ", "b ", 1),
			want: []fired{{"SluiceServiceNotReady", chat("critical"), "Service chat in namespace team-a is not ready"}},
		},
		{name: "deleted", reason: "a series that is gone complains no more", load: instead(t, ready, complaint("InferenceService", "Ready", "False", "PoolNotReady", "1x60"))},
		{name: "unknown", reason: "unknown is not False", load: instead(t, ready, complaint("InferenceService", "Ready", "Unknown", "NotObserved", "1x75"))},
		{
			name: "stuck", reason: "an hour is too long", load: alive + complaint("InferenceService", "Progressing", "True", "PoolsChanging", "1x75"),
			want: []fired{{"SluiceServiceStuck", chat("warning"), "Service chat in namespace team-a has been changing for an hour"}},
		},
		{
			name: "frozen", reason: "a rank stands still", load: alive + complaint("EnginePool", "Degraded", "True", "Frozen", "1x75"),
			want: []fired{{"SluicePoolDegraded", chat("critical", "pool", "decode"), "A rank of pool decode of chat in namespace team-a stands still"}},
		},
		{name: "not degraded", reason: "False is good here", load: alive + complaint("EnginePool", "Degraded", "False", "EveryRankMoves", "1x75")},
		{
			name: "metrics are missing", reason: "a policy blocks", load: alive + complaint("EnginePool", "MetricsFlowing", "False", "PolicyBlocks", "1x75"),
			want: []fired{{"SluiceMetricsNotFlowing", chat("warning", "pool", "decode"), "Metrics of pool decode of chat in namespace team-a are missing"}},
		},
		{
			name: "the ledger", reason: "sent is not received", load: alive + complaint("InferenceService", "LedgerConsistent", "False", "KVBytesDiffer", "1x75"),
			want: []fired{{"SluiceLedgerInconsistent", chat("critical"), "The ledger of chat in namespace team-a does not add up"}},
		},
		{
			name: "does not scale", reason: "the sample is stale", load: alive + complaint("EnginePool", "ScalingActive", "False", "StaleSample", "1x75"),
			want: []fired{{"SluiceScalingInactive", chat("warning", "pool", "decode"), "Pool decode of chat in namespace team-a does not scale"}},
		},
		{
			name: "refused monitors and dashboards", reason: "each is told", load: alive + complaint("InferenceService", "MonitoringProvisioned", "False", "ApplyFailed", "1x75") +
				complaint("InferenceService", "DashboardsProvisioned", "False", "ApplyFailed", "1x75"),
			want: []fired{
				{"SluiceNotProvisioned", chat("warning", "type", "DashboardsProvisioned"), "DashboardsProvisioned of chat in namespace team-a is False"},
				{"SluiceNotProvisioned", chat("warning", "type", "MonitoringProvisioned"), "MonitoringProvisioned of chat in namespace team-a is False"},
			},
		},
		{name: "no such resource", reason: "a cluster without prometheus-operator is no fault", load: alive + complaint("InferenceService", "MonitoringProvisioned", "Unknown", "CRDMissing", "1x75")},
		{
			name: "replicas fail", reason: "six in half an hour", load: instead(t, "a sluice_operator_plan_actions_total", `a sluice_operator_plan_actions_total{action="replace",reason="Replace",result="done"} 0x45 0+0.2x29`),
			want: []fired{{"SluiceReplicasFail", of("warning"), "5.8 failed replicas were replaced within 30 minutes"}},
		},
		{name: "one replica fails", reason: "that is what replacing is for", load: instead(t, "a sluice_operator_plan_actions_total", `a sluice_operator_plan_actions_total{action="replace",reason="Replace",result="done"} 0x60 1x14`)},
		{
			name: "another adapter", reason: "autoscalers read nothing", load: instead(t, "a sluice_operator_api_service_registered", `a sluice_operator_api_service_registered{api_service="v1beta2.custom.metrics.k8s.io"} 0x75`),
			want: []fired{{"SluiceMetricsAPINotRegistered", of("warning", "api_service", "v1beta2.custom.metrics.k8s.io"), "APIService v1beta2.custom.metrics.k8s.io does not point to this operator"}},
		},
		{
			name: "the certificate ends in ten days", reason: "the renewal failed for months", load: instead(t, "a sluice_operator_certificate", `a sluice_operator_certificate_expiry_timestamp_seconds{certificate="serving"} 1800868500x75`),
			want: []fired{{"SluiceCertificateExpires", of("warning", "certificate", "serving", "within", "14d"), "The serving certificate of the metrics API ends in 10d 0h 0m 0s"}},
		},
		{
			name: "the certificate ends today", reason: "somebody has to look now", load: instead(t, "a sluice_operator_certificate", `a sluice_operator_certificate_expiry_timestamp_seconds{certificate="serving"} 1800008100x75`),
			want: []fired{
				{"SluiceCertificateExpires", of("critical", "certificate", "serving", "within", "2d"), "The serving certificate of the metrics API ends in 1h 0m 0s"},
				{"SluiceCertificateExpires", of("warning", "certificate", "serving", "within", "14d"), "The serving certificate of the metrics API ends in 1h 0m 0s"},
			},
		},
	}
	seen := map[string]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := operatorFires(t, test.load)
			if diff := cmp.Diff(test.want, got, cmp.Transformer("sorted", func(list []fired) []fired {
				list = slices.Clone(list)
				slices.SortFunc(list, func(a, b fired) int {
					return strings.Compare(a.Name+a.Labels["severity"]+a.Summary, b.Name+b.Labels["severity"]+b.Summary)
				})
				return list
			})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
			for _, f := range got {
				seen[f.Name] = true
			}
		})
	}
	for _, a := range operatorAlerts(operatorJob) {
		if !seen[a.name] {
			t.Errorf("no test makes %s fire", a.name)
		}
	}
}

// TestOperatorSelectors: every selector asks for the release's operator, for a family of the table, and for labels that it has.
func TestOperatorSelectors(t *testing.T) {
	table := map[string]metrics.Family{"up": {Name: "up"}}
	for _, f := range slices.Concat(metrics.Families(), metrics.Borrowed()) {
		table[f.Name] = f
	}
	targets := []string{"job", "pod", "instance"}
	for _, r := range Operator(operatorJob, "").Rules {
		for _, s := range selectors(t, r.Expr.String()) {
			f, known := table[strings.TrimSuffix(s.Name, "_bucket")]
			if !known {
				t.Errorf("%s asks for %s, which is in no table", r.Alert, s.Name)
			}
			ours := false
			for _, m := range s.LabelMatchers {
				ours = ours || m.Name == "job" && m.Value == operatorJob && m.Type == labels.MatchEqual
				if m.Name != labels.MetricName && !slices.Contains(targets, m.Name) && !slices.Contains(f.Labels, m.Name) {
					t.Errorf("%s matches %s, which %s does not have", r.Alert, m, s.Name)
				}
			}
			if !ours {
				t.Errorf("%s asks for %s of any operator", r.Alert, s)
			}
		}
	}
}

// TestOperatorJobIsNotTheServices: rules about a service and about the operator have names of their own.
func TestOperatorJobIsNotTheServices(t *testing.T) {
	names := map[string]bool{}
	each(build(t, pair(), Options{}), func(r monitoringv1.Rule) { names[r.Alert] = true })
	for _, a := range operatorAlerts(operatorJob) {
		if names[a.name] {
			t.Errorf("%s is an alert about a service too", a.name)
		}
	}
	if len(slices.Collect(maps.Keys(names))) == 0 {
		t.Error("a service has no alerts")
	}
}
