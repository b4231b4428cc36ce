package rules

import (
	"fmt"
	"strconv"
	"strings"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/metrics"
)

// Thresholds of alerts about the operator.
const (
	reconcileErrors    = 0.1 // reconciles that fail, of all
	fewReconcileErrors = 5   // failures within 5 minutes that say nothing yet
	slowReconcile      = 5   // seconds, at the 99th percentile
	longQueue          = 100 // objects that wait
	manyReplacements   = 5   // replicas replaced within 30 minutes, over all pools
	unanswered         = 0.5 // questions to Prometheus that fail, of all
	expiresSoonDays    = 14
	expiresNowDays     = 2
)

// operatorOwned are the labels of a pool or a service among those of the operator's series.
var (
	bySluiceService = []string{metrics.LabelNamespace, metrics.LabelTenant, metrics.LabelService}
	bySluicePool    = []string{metrics.LabelNamespace, metrics.LabelTenant, metrics.LabelService, metrics.LabelPool}
)

// Operator gives the rules about an operator that Prometheus scrapes as a job. They ask for the operator's own series and for
// those of its libraries, each once whichever pod tells it.
func Operator(job, runbooks string) monitoringv1.RuleGroup {
	group := monitoringv1.RuleGroup{Name: "sluice.operator"}
	for _, a := range operatorAlerts(job) {
		labels := map[string]string{"severity": a.severity}
		for name, value := range a.labels {
			labels[name] = value
		}
		group.Rules = append(group.Rules, a.rule(labels, strings.NewReplacer(), runbooks))
	}
	return group
}

// self writes expressions over the series of one operator.
type self struct{ job string }

func (s self) of(family metrics.Family, where ...string) string {
	return s.named(family.Name, where...)
}

func (s self) named(name string, where ...string) string {
	return name + "{" + strings.Join(append([]string{"job=" + strconv.Quote(s.job)}, where...), ", ") + "}"
}

// holds selects the objects of a kind of which a condition has a status, each once and whatever the reason, so that an alert
// goes on when the reason changes or another operator leads.
func (s self) holds(kind, condition, status string, by []string) string {
	return aggregate("max", by, s.of(metrics.Condition, `kind="`+kind+`"`, `type=~"`+condition+`"`, `status="`+status+`"`)) + " == 1"
}

func operatorAlerts(job string) []alert {
	s := self{job}
	return append(append(s.processAlerts(), s.objectAlerts()...), s.metricsAPIAlerts()...)
}

// processAlerts are about the operator as a program.
func (s self) processAlerts() []alert {
	errors := aggregate("sum", []string{"controller"}, "rate("+s.named("controller_runtime_reconcile_errors_total")+"[5m])")
	all := aggregate("sum", []string{"controller"}, "rate("+s.named("controller_runtime_reconcile_total")+"[5m])")
	checks := func(where ...string) string {
		return "sum(rate(" + s.of(metrics.PrometheusChecks, where...) + "[10m]))"
	}
	return []alert{
		{
			name: "SluiceOperatorDown", severity: severityCritical, wait: "5m", anchor: "diagnosis.md#no-operator-runs",
			expr:        "absent(" + s.named("up") + " == 1)",
			labels:      map[string]string{"job": s.job},
			summary:     "Prometheus reaches no operator",
			description: "For 5 minutes Prometheus has scraped no operator. Engines and routers go on serving; nothing is scaled, replaced, rolled out or observed, and autoscalers read no number.",
			help:        "Prometheus reaches no operator",
		},
		{
			name: "SluiceOperatorWithoutLeader", severity: severityCritical, wait: "5m", anchor: "diagnosis.md#no-operator-runs",
			expr:        "max(" + s.named("leader_election_master_status") + ") == 0",
			summary:     "Operators run and none leads",
			description: "For 5 minutes no operator has held the lease. Autoscalers are answered; nothing else is done.",
			help:        "operators run and none of them leads",
		},
		{
			name: "SluiceOperatorReconcileErrors", severity: severityWarning, wait: "15m", anchor: "diagnosis.md#the-operator-is-refused",
			expr:        fmt.Sprintf("%s > %s\nand\n%s * 300 >= %d", quotient(errors, all), number(reconcileErrors), errors, fewReconcileErrors),
			summary:     "{{ $value | humanizePercentage }} of the reconciles of {{ $labels.controller }} fail",
			description: fmt.Sprintf("For 15 minutes more than %s %% of the reconciles of the controller {{ $labels.controller }} have failed: the API server refuses what it writes, or does not answer.", percent(reconcileErrors)),
			help:        fmt.Sprintf("more than %s %% of a controller's reconciles fail, and at least %d within 5 minutes", percent(reconcileErrors), fewReconcileErrors),
		},
		{
			name: "SluiceOperatorSlow", severity: severityWarning, wait: "15m", anchor: "diagnosis.md#the-operator-is-slow",
			expr: fmt.Sprintf("histogram_quantile(0.99, %s) > %d",
				aggregate("sum", []string{"le", "controller"}, "rate("+s.named("controller_runtime_reconcile_time_seconds_bucket")+"[5m])"), slowReconcile),
			summary:     "Reconciles of {{ $labels.controller }} take {{ $value | humanizeDuration }} at the 99th percentile",
			description: fmt.Sprintf("For 15 minutes one in a hundred reconciles of the controller {{ $labels.controller }} has taken longer than %d s: the API server, or an engine that is told something, answers slowly.", slowReconcile),
			help:        fmt.Sprintf("one in a hundred reconciles takes longer than %d s", slowReconcile),
		},
		{
			name: "SluiceOperatorQueueGrows", severity: severityWarning, wait: "10m", anchor: "diagnosis.md#the-operator-is-slow",
			expr:        fmt.Sprintf("%s > %d", aggregate("max", []string{"name"}, aggregate("sum", []string{"name", "pod", "instance"}, s.named("workqueue_depth", `name=~"inferenceservice|enginepool"`))), longQueue),
			summary:     "{{ $value }} objects wait in the queue {{ $labels.name }}",
			description: fmt.Sprintf("For 10 minutes more than %d objects have waited in the operator's queue {{ $labels.name }}: changes are noticed late.", longQueue),
			help:        fmt.Sprintf("more than %d objects wait to be reconciled", longQueue),
		},
		{
			name: "SluicePrometheusUnanswered", severity: severityWarning, wait: "15m", anchor: "diagnosis.md#prometheus-does-not-answer-the-operator",
			expr:        fmt.Sprintf("%s > %s", quotient(checks(`result="error"`), checks()), number(unanswered)),
			summary:     "{{ $value | humanizePercentage }} of the operator's questions to Prometheus fail",
			description: "For 15 minutes Prometheus has not answered most questions of the operator, so that nobody proves that the engines' metrics are stored.",
			help:        fmt.Sprintf("more than %s %% of the operator's questions to Prometheus fail", percent(unanswered)),
		},
	}
}

// objectAlerts are about what services and pools say of themselves.
func (s self) objectAlerts() []alert {
	service := func(condition, status string) string {
		return s.holds("InferenceService", condition, status, bySluiceService)
	}
	pool := func(condition, status string) string {
		return s.holds("EnginePool", condition, status, bySluicePool)
	}
	const where = "{{ $labels.inference_service }} in namespace {{ $labels.namespace }}"
	return []alert{
		{
			name: "SluiceServiceNotReady", severity: severityCritical, wait: "10m", anchor: "diagnosis.md#a-service-is-not-ready",
			expr:        service(v1alpha1.ConditionReady, "False"),
			summary:     "Service " + where + " is not ready",
			description: "For 10 minutes the condition Ready of InferenceService " + where + " (tenant {{ $labels.tenant }}) has been False: a pool has no ready replica, or no router is ready. Its message says which, and why.",
			help:        "the condition Ready of a service is False",
		},
		{
			name: "SluiceServiceStuck", severity: severityWarning, wait: "1h", anchor: "diagnosis.md#a-service-is-not-ready",
			expr:        service(v1alpha1.ConditionProgressing, "True"),
			summary:     "Service " + where + " has been changing for an hour",
			description: "For an hour replicas of InferenceService " + where + " have been created, drained or replaced without an end. The message of the condition Progressing says what is waited for.",
			help:        "the condition Progressing of a service is True",
		},
		{
			name: "SluicePoolDegraded", severity: severityCritical, wait: "5m", anchor: "diagnosis.md#an-engine-stands-still",
			expr:        pool(v1alpha1.ConditionDegraded, "True"),
			summary:     "A rank of pool {{ $labels.pool }} of " + where + " stands still",
			description: "For 5 minutes a rank of pool {{ $labels.pool }} of InferenceService " + where + " has held requests and computed nothing. The condition Degraded of the pool names it.",
			help:        "the condition Degraded of a pool is True",
		},
		{
			name: "SluiceMetricsNotFlowing", severity: severityWarning, wait: "10m", anchor: "diagnosis.md#a-gap-in-the-metrics",
			expr:        pool(v1alpha1.ConditionMetricsFlowing, "False"),
			summary:     "Metrics of pool {{ $labels.pool }} of " + where + " are missing",
			description: "For 10 minutes series of ranks of pool {{ $labels.pool }} of InferenceService " + where + " have not arrived. The condition MetricsFlowing of the pool names the ranks and the likely cause.",
			help:        "the condition MetricsFlowing of a pool is False",
		},
		{
			name: "SluiceLedgerInconsistent", severity: severityCritical, wait: "2m", anchor: "diagnosis.md#ledger-violation",
			expr:        service(v1alpha1.ConditionLedgerConsistent, "False"),
			summary:     "The ledger of " + where + " does not add up",
			description: "An engine of InferenceService " + where + " broke a law of its ledger, or its decode engines did not receive the KV that its prefill engines sent. The condition LedgerConsistent has the numbers.",
			help:        "the condition LedgerConsistent of a service is False",
		},
		{
			name: "SluiceScalingInactive", severity: severityWarning, wait: "15m", anchor: "diagnosis.md#a-pool-does-not-scale",
			expr:        pool(v1alpha1.ConditionScalingActive, "False"),
			summary:     "Pool {{ $labels.pool }} of " + where + " does not scale",
			description: "For 15 minutes the autoscaler of pool {{ $labels.pool }} of InferenceService " + where + " has read no number, so the pool keeps its size. The condition ScalingActive of the pool says why.",
			help:        "the condition ScalingActive of a pool is False",
		},
		{
			name: "SluiceNotProvisioned", severity: severityWarning, wait: "15m", anchor: "diagnosis.md#monitors-rules-or-dashboards-are-refused",
			expr: s.holds("InferenceService", v1alpha1.ConditionMonitoringProvisioned+"|"+v1alpha1.ConditionDashboardsProvisioned, "False",
				append([]string{"type"}, bySluiceService...)),
			summary:     "{{ $labels.type }} of " + where + " is False",
			description: "For 15 minutes a monitor, the rules or a dashboard of InferenceService " + where + " could not be made. The message of the condition {{ $labels.type }} says what was refused.",
			help:        "the condition MonitoringProvisioned or DashboardsProvisioned of a service is False",
		},
		{
			name: "SluiceReplicasFail", severity: severityWarning, anchor: "diagnosis.md#replicas-fail-again-and-again",
			expr:        fmt.Sprintf("sum(increase(%s[30m])) >= %d", s.of(metrics.PlanActions, `action="replace"`, `result="done"`), manyReplacements),
			summary:     "{{ $value | humanize }} failed replicas were replaced within 30 minutes",
			description: "Within 30 minutes {{ $value | humanize }} replicas, of all pools together, ended by themselves or froze and were replaced. Their pools' status.lastDecision and their events say which, and why.",
			help:        fmt.Sprintf("at least %d replicas, of all pools, failed within 30 minutes", manyReplacements),
		},
	}
}

// metricsAPIAlerts are about what autoscalers read.
func (s self) metricsAPIAlerts() []alert {
	expires := func(severity string, days int) alert {
		return alert{
			name: "SluiceCertificateExpires", severity: severity, wait: "1h", anchor: "diagnosis.md#the-certificate-of-the-metrics-api-ends",
			expr:        fmt.Sprintf("%s - time() < %d * 86400", aggregate("min", []string{"certificate"}, s.of(metrics.CertificateExpiry)), days),
			labels:      map[string]string{"within": strconv.Itoa(days) + "d"},
			summary:     "The {{ $labels.certificate }} certificate of the metrics API ends in {{ $value | humanizeDuration }}",
			description: "The {{ $labels.certificate }} certificate of custom.metrics.k8s.io ends in {{ $value | humanizeDuration }} and was not renewed. After that autoscalers read no number.",
			help:        fmt.Sprintf("a certificate of the metrics API ends within %d days", days),
		}
	}
	return []alert{
		{
			name: "SluiceMetricsAPINotRegistered", severity: severityWarning, wait: "15m", anchor: "diagnosis.md#a-pool-does-not-scale",
			expr:        aggregate("max", []string{"api_service"}, s.of(metrics.Registered)) + " == 0",
			summary:     "APIService {{ $labels.api_service }} does not point to this operator",
			description: "For 15 minutes the APIService {{ $labels.api_service }} has been missing or another adapter's, so autoscalers of pools read nothing from this operator. The operator's log says which.",
			help:        "an APIService of the metrics API is missing or another adapter's",
		},
		expires(severityWarning, expiresSoonDays),
		expires(severityCritical, expiresNowDays),
	}
}
