package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Severities: whom an alert concerns.
const (
	severityCritical = "critical" // somebody has to look now
	severityWarning  = "warning"  // somebody has to look today
)

// alert is one alerting rule.
type alert struct {
	name     string
	severity string
	wait     string // for; empty for at once
	expr     string
	labels   map[string]string
	// summary is one line with the number. SERVICE in it, and in description, becomes the service's name.
	summary string
	// description says what holds, with the numbers, and why that is bad.
	description string
	anchor      string // of the page in docs/ that says what to do
	help        string // a line of docs/alerts.md
}

// Thresholds of alerts that no objective gives.
const (
	kvPressure      = 0.95 // locked share of KV memory
	stormShare      = 0.1  // generated tokens that retraction throws away, of those generated
	stormRequests   = 5    // retracted requests within 5 minutes that are a storm
	imbalance       = 1.5  // busiest data-parallel rank over the mean
	imbalanceTokens = 10   // tokens per second below which ranks cannot be compared
	errorShare      = 0.05 // answers that are server errors
	fewErrors       = 5    // server errors within 5 minutes that say nothing yet
)

// faults are the outcomes that neither the client nor the request brings about.
const faults = `outcome=~"internal_error|transfer_failed|bootstrap_failed|timeout|preempted"`

// alerts are those that need no objective, for the roles that the service has.
func alerts(s *scope, service *v1alpha1.InferenceService) []alert {
	list := slices.Concat(memoryAlerts(s), rankAlerts(s), routerAlerts(s, service), scrapeAlerts(s), ledgerAlerts(s))
	if slices.ContainsFunc(service.Spec.Pools, func(p v1alpha1.PoolSpec) bool { return p.Role == v1alpha1.RolePrefill }) {
		list = append(list, stallAlert(s))
	}
	return list
}

func memoryAlerts(s *scope) []alert {
	return []alert{
		{
			name: "SluiceKVPressure", severity: severityWarning, wait: "10m", anchor: "diagnosis.md#kv-memory",
			expr:        fmt.Sprintf("%s > %s", s.level("sglang:token_usage"), number(kvPressure)),
			summary:     "Running requests lock {{ $value | humanizePercentage }} of the KV memory of {{ $labels.pool }} replica {{ $labels.replica }}",
			description: fmt.Sprintf("For 10 minutes running requests have locked more than %s %% of the KV memory of replica {{ $labels.replica }} of pool {{ $labels.pool }} (data-parallel rank {{ $labels.dp_rank }}). Nothing is left that could be evicted: new requests wait and running ones are about to be retracted.", percent(kvPressure)),
			help:        fmt.Sprintf("running requests lock more than %s %% of a rank's KV memory", percent(kvPressure)),
		},
		{
			name: "SluiceRetractionStorm", severity: severityWarning, wait: "5m", anchor: "diagnosis.md#retractions",
			expr: fmt.Sprintf("%s\n/\n%s > %s\nand\n%s * 300 >= %d",
				s.recorded(poolLost), s.recorded(poolGenerated), number(stormShare), s.recorded(poolRetracted), stormRequests),
			summary:     "Pool {{ $labels.pool }} throws {{ $value | humanizePercentage }} of its tokens away by retraction",
			description: fmt.Sprintf("More than %s %% of the tokens that pool {{ $labels.pool }} generates are lost to retraction and generated again: it admits more than its KV memory holds.", percent(stormShare)),
			help:        fmt.Sprintf("more than %s %% of the generated tokens are retracted, and at least %d requests within 5 minutes", percent(stormShare), stormRequests),
		},
	}
}

func stallAlert(s *scope) alert {
	return alert{
		name: "SluiceTransferStall", severity: severityCritical, wait: "5m", anchor: "diagnosis.md#hand-over-stalls",
		expr: aggregate("sum", nil, s.recorded(poolQueued, `queue=~"bootstrap|inflight|prealloc|transfer"`)) + " > 0\nunless\n" +
			s.increase("sglang:kv_transfer_total_mb", "_count", "5m", nil) + " > 0",
		summary:     "{{ $value }} requests wait for a hand-over and no KV arrives",
		description: "{{ $value }} requests of SERVICE are between prefill and decode engines, and for 5 minutes and more not one transfer has ended.",
		help:        "requests are between prefill and decode, and no transfer ended within 5 minutes",
	}
}

func rankAlerts(s *scope) []alert {
	work := s.rate("sglang:realtime_tokens_total", "", "15m", byDP, `mode=~"decode|prefill_compute"`, `dp_rank!=""`)
	return []alert{
		{
			name: "SluiceRankImbalance", severity: severityWarning, wait: "15m", anchor: "diagnosis.md#some-ranks-are-busier-than-others",
			expr: fmt.Sprintf("%s\n/\n%s > %s\nand\n%s > %d\nand\n%s > 1",
				aggregate("max", byReplica, work), aggregate("avg", byReplica, work), number(imbalance),
				aggregate("sum", byReplica, work), imbalanceTokens, aggregate("count", byReplica, work)),
			summary:     "The busiest rank of {{ $labels.pool }} replica {{ $labels.replica }} does {{ $value | humanize }} times the mean",
			description: fmt.Sprintf("For 15 minutes the busiest data-parallel rank of replica {{ $labels.replica }} of pool {{ $labels.pool }} has computed more than %s times the tokens of the mean: the others idle while it has a queue.", number(imbalance)),
			help:        fmt.Sprintf("a data-parallel rank computes more than %s times the mean of its replica", number(imbalance)),
		},
		{
			name: "SluiceEngineFrozen", severity: severityCritical, wait: "3m", anchor: "diagnosis.md#an-engine-stands-still",
			expr: s.held() + " > 0\nunless\n" + s.increase("sglang:scheduler_iterations_total", "", "3m", byDP) + " > 0\nunless\n" +
				s.sum("sglang:num_paused_reqs", byDP) + " > 0",
			summary:     "A rank of {{ $labels.pool }} replica {{ $labels.replica }} holds {{ $value }} requests and stands still",
			description: "Replica {{ $labels.replica }} of pool {{ $labels.pool }} (data-parallel rank {{ $labels.dp_rank }}) has {{ $value }} requests, and its scheduler has not turned for 3 minutes. It answers scrapes; it answers no client.",
			help:        "a rank holds requests and its scheduler has not turned for 3 minutes",
		},
	}
}

func routerAlerts(s *scope, service *v1alpha1.InferenceService) []alert {
	ready := aggregate("max", []string{"role"}, s.router("sluice_router_engines", `state="ready"`, `role=~"`+strings.Join(roleLabels(service), "|")+`"`))
	asked := "(" + aggregate("sum", nil, s.router("sluice_router_in_flight_requests")) + " > 0\nor\n" +
		"sum(rate(" + s.router("sluice_router_requests_total", `code="503"`) + "[5m])) > 0)"
	patience := wakeMinutes(service)
	answers := func(where ...string) string {
		return "sum(rate(" + s.router("sluice_router_requests_total", where...) + "[5m]))"
	}
	return []alert{
		{
			name: "SluiceRouterWithoutEngines", severity: severityCritical, wait: fmt.Sprintf("%dm", patience), anchor: "diagnosis.md#the-router-has-no-engines",
			expr:        ready + " == 0\nand on ()\n" + asked,
			summary:     "Clients ask SERVICE and no {{ $labels.role }} engine is ready",
			description: fmt.Sprintf("For %d minutes the router of SERVICE has had requests and no {{ $labels.role }} engine to send them to.", patience),
			help:        "the router has requests and no ready engine of a role",
		},
		{
			name: "SluiceServerErrors", severity: severityCritical, wait: "5m", anchor: "diagnosis.md#server-errors",
			expr:        fmt.Sprintf("%s > %s\nand\n%s * 300 >= %d", quotient(answers(`code=~"5.."`), answers()), number(errorShare), answers(`code=~"5.."`), fewErrors),
			summary:     "{{ $value | humanizePercentage }} of the answers of SERVICE are server errors",
			description: fmt.Sprintf("More than %s %% of the answers that clients of SERVICE get have a status of 500 or more.", percent(errorShare)),
			help:        fmt.Sprintf("more than %s %% of the router's answers have a status of 500 or more", percent(errorShare)),
		},
		{
			name: "SluiceRequestsEndBadly", severity: severityWarning, wait: "10m", anchor: "diagnosis.md#requests-end-badly",
			expr: fmt.Sprintf("%s > %s\nand\n%s * 300 >= %d",
				quotient(aggregate("sum", byPool, s.recorded(poolOutcomes, faults)), aggregate("sum", byPool, s.recorded(poolOutcomes))), number(errorShare),
				aggregate("sum", byPool, s.recorded(poolOutcomes, faults)), fewErrors),
			summary:     "{{ $value | humanizePercentage }} of the requests of pool {{ $labels.pool }} end without their answer",
			description: fmt.Sprintf("More than %s %% of the requests that pool {{ $labels.pool }} ends, it ends by a failed hand-over, a timeout, a pre-emption or an error of its own.", percent(errorShare)),
			help:        fmt.Sprintf("more than %s %% of a pool's requests end in a failure that is not the client's", percent(errorShare)),
		},
	}
}

func scrapeAlerts(s *scope) []alert {
	known := aggregate("max", []string{"engine_type"}, `label_replace(`+s.router("sluice_router_engines", `state="ready"`)+`, "engine_type", "$1", "role", "(.*)")`)
	scraped := aggregate("count", []string{"engine_type"}, aggregate("max", byReplica, s.targets())+" == 1")
	return []alert{
		{
			name: "SluiceScrapeGap", severity: severityWarning, wait: "5m", anchor: "diagnosis.md#a-gap-in-the-metrics",
			expr:        "up{" + s.matchers(nil) + "} == 0",
			summary:     "Prometheus cannot scrape {{ $labels.pod }} ({{ $labels.instance }})",
			description: "For 5 minutes Prometheus has got no metrics of {{ $labels.instance }} of SERVICE. Everything that is computed from them leaves it out.",
			help:        "a target of the service cannot be scraped",
		},
		{
			name: "SluiceEnginesNotScraped", severity: severityWarning, wait: "10m", anchor: "diagnosis.md#a-gap-in-the-metrics",
			expr:        fmt.Sprintf("%s\n-\n(%s or %s * 0) > 0", known, scraped, known),
			summary:     "{{ $value }} ready {{ $labels.engine_type }} engines of SERVICE are not scraped",
			description: "The router sends requests to {{ $value }} {{ $labels.engine_type }} engines more than Prometheus scrapes: they have no target, or their targets have other labels.",
			help:        "the router knows more ready engines than Prometheus scrapes",
		},
		{
			name: "SluiceMetricsStoreFaults", severity: severityWarning, anchor: "diagnosis.md#metrics-themselves",
			expr:        s.increase("sluice_metrics_store_faults_total", "", "15m", append([]string{"reason"}, byReplica...)) + " > 0",
			summary:     "Metrics of processes of {{ $labels.pool }} replica {{ $labels.replica }} cannot be read: {{ $labels.reason }}",
			description: "Within 15 minutes {{ $value | humanize }} stores of metrics of replica {{ $labels.replica }} of pool {{ $labels.pool }} could not be read ({{ $labels.reason }}): what they counted is missing from everything.",
			help:        "an engine cannot read the metrics of one of its own processes",
		},
	}
}

func ledgerAlerts(s *scope) []alert {
	submitted := s.sum("sluice_requests_submitted_total", byReplica)
	part := func(name string) string { return "(" + s.sum(name, byReplica) + " or " + submitted + " * 0)" }
	return []alert{
		{
			name: "SluiceLedgerViolation", severity: severityCritical, anchor: "diagnosis.md#ledger-violation",
			expr:        s.increase("sluice_ledger_violations_total", "", "15m", append([]string{"law"}, byReplica...)) + " > 0",
			summary:     "{{ $labels.pool }} replica {{ $labels.replica }} broke the law {{ $labels.law }}",
			description: "Replica {{ $labels.replica }} of pool {{ $labels.pool }} broke the conservation law {{ $labels.law }} {{ $value | humanize }} times within 15 minutes. That is a fault of the engine: its log has every number of the equation.",
			help:        "an engine broke a conservation law of its ledger within 15 minutes",
		},
		{
			name: "SluiceOutcomesDoNotAddUp", severity: severityWarning, wait: "5m", anchor: "diagnosis.md#outcomes-do-not-add-up",
			expr:        submitted + "\n-\n" + part("sluice_request_outcomes_total") + "\n-\n" + part("sluice_requests_in_flight") + " != 0",
			summary:     "{{ $value }} requests of {{ $labels.pool }} replica {{ $labels.replica }} were lost or counted twice",
			description: "Of the requests that clients submitted to replica {{ $labels.replica }} of pool {{ $labels.pool }}, {{ $value }} have neither ended nor are under way; below 0, as many were counted twice.",
			help:        "submitted requests are not those that ended and those in flight together",
		},
	}
}

// wakeMinutes is for how many minutes a router may have requests and no engine: 5, and where a pool may be empty, longer than
// requests are held while it wakes.
func wakeMinutes(service *v1alpha1.InferenceService) int32 {
	const least = 5
	if !slices.ContainsFunc(service.Spec.Pools, func(p v1alpha1.PoolSpec) bool { return p.Autoscaling != nil && p.Autoscaling.Min() == 0 }) {
		return least
	}
	seconds := int32(v1alpha1.DefaultWakeUpSeconds)
	if service.Spec.Router.WakeUpSeconds != nil {
		seconds = *service.Spec.Router.WakeUpSeconds
	}
	return max(least, seconds/60+1)
}

// roleLabels are the router's words for the roles of a service, each once.
func roleLabels(service *v1alpha1.InferenceService) []string {
	var list []string
	for _, pool := range service.Spec.Pools {
		if role := pool.Role.EngineType(); !slices.Contains(list, role) {
			list = append(list, role)
		}
	}
	slices.Sort(list)
	return list
}
