package metrics

import "github.com/prometheus/client_golang/prometheus"

// Kind of a family.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Family is one row of the table.
type Family struct {
	Name   string
	Kind   Kind
	Help   string
	Labels []string
	// Buckets are upper bounds in seconds, of histograms only.
	Buckets []float64
	// Bound says how many series there are at most.
	Bound string
}

// Labels that tell objects apart. They are those of the engines' series, so that both can be joined.
const (
	LabelNamespace = "namespace"
	LabelTenant    = "tenant"
	LabelService   = "inference_service"
	LabelPool      = "pool"
)

// exchange are the bounds for requests to an engine.
func exchange() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
}

// What objects say of themselves.
var (
	Condition = Family{
		"sluice_condition", Gauge, "1 for the status and the reason that a condition has now; other statuses have no series. Of an InferenceService pool is empty.",
		[]string{"kind", LabelNamespace, "name", LabelTenant, LabelService, LabelPool, "type", "status", "reason"}, nil, "conditions × objects: 10 a service, 7 a pool",
	}
	PoolReplicas = Family{
		"sluice_pool_replicas", Gauge, "Replicas of a pool: demand is what is asked for, allocated what is granted, present those with pods; of these ready serve, updated have the newest revision and stay, draining leave.",
		[]string{LabelNamespace, LabelTenant, LabelService, LabelPool, "role", "state"}, nil, "6 a pool",
	}
)

// What the controllers decide.
var (
	PlanActions = Family{
		"sluice_operator_plan_actions_total", Counter, "What plans decided about replicas, and why. keep is a plan without an action: AsAllocated when nothing is to do, Waiting while replicas start, drain or back off.",
		[]string{"action", "reason", "result"}, nil, "20",
	}
	ScalingDecisions = Family{
		"sluice_operator_scaling_decisions_total", Counter, "Changes of pools' demand that were written to status.lastDecisions, by who made them and where they went; begin is a pool's first.",
		[]string{"by", "direction"}, nil, "3 for each of 4 authors",
	}
	ObjectChanges = Family{
		"sluice_operator_object_changes_total", Counter, "What was done with objects that the operator makes: created, updated, applied (one of both, server-side), restored (somebody else had changed it), deleted, unchanged or failed.",
		[]string{"kind", "change"}, nil, "7 a kind",
	}
	Events = Family{
		"sluice_operator_events_total", Counter, "Events that were recorded, by their type and reason.",
		[]string{"type", "reason"}, nil, "reasons of events",
	}
)

// How the load of engines is read.
var (
	Polls = Family{"sluice_operator_polls_total", Counter, "Polls of engines for their load, by result.", []string{"result"}, nil, "6"}

	PollSeconds = Family{
		"sluice_operator_poll_seconds", Histogram, "Duration of polls of engines for their load.", nil, exchange()[:11], "1",
	}
	Samples   = Family{"sluice_operator_samples", Gauge, "Leader pods by the state of their newest sample.", []string{"state"}, nil, "3"}
	SampleAge = Family{"sluice_operator_sample_age_seconds", Gauge, "Age of the oldest sample that is fresh.", nil, nil, "1"}
)

// The proof that metrics arrive.
var (
	Scrapes = Family{
		"sluice_operator_scrapes_total", Counter, "Scrapes of engines by the operator, as the proof that their metrics are there, by result.", []string{"result"}, nil, "6",
	}
	ScrapeSeconds    = Family{"sluice_operator_scrape_seconds", Histogram, "Duration of the operator's scrapes of engines.", nil, exchange(), "1"}
	PrometheusChecks = Family{
		"sluice_operator_prometheus_checks_total", Counter, "Pools that Prometheus was asked about, by result.", []string{"result"}, nil, "2",
	}
	MissingRanks = Family{
		"sluice_operator_missing_ranks", Gauge, "Ranks whose series do not arrive, by cause.", []string{LabelNamespace, LabelService, LabelPool, "cause"}, nil, "8 a pool",
	}
	FrozenRanks      = Family{"sluice_operator_frozen_ranks", Gauge, "Ranks that hold work and do none.", []string{LabelNamespace, LabelService, LabelPool}, nil, "1 a pool"}
	LedgerViolations = Family{
		"sluice_operator_ledger_violations", Gauge, "Breaches of the laws of the ledger that the living engines of a pool count, by law.",
		[]string{LabelNamespace, LabelService, LabelPool, "law"}, nil, "6 a pool",
	}
	KVBytes = Family{
		"sluice_operator_kv_bytes", Gauge, "Bytes of KV handed over since the set of pods was last another: sent, failed and received.",
		[]string{LabelNamespace, LabelService, "side"}, nil, "3 a service",
	}
	KVLawBroken = Family{
		"sluice_operator_kv_law_broken", Gauge, "1 when what prefill engines sent is not what decode engines received.", []string{LabelNamespace, LabelService}, nil, "1 a service",
	}
)

// The operator itself.
var (
	CertificateExpiry = Family{
		"sluice_operator_certificate_expiry_timestamp_seconds", Gauge, "When a certificate of the metrics API ends, in Unix time. It is renewed when two thirds of its life are over.",
		[]string{"certificate"}, nil, "2",
	}
	Registered = Family{
		"sluice_operator_api_service_registered", Gauge, "1 when an APIService of the metrics API points to this operator and trusts its certificate; 0 when it is missing, another adapter's, or could not be read.",
		[]string{"api_service"}, nil, "3",
	}
	BuildInfo = Family{"sluice_operator_build_info", Gauge, "1, with the version of the operator.", []string{"version"}, nil, "1"}
)

// Families lists the table, in the order in which it is read.
func Families() []Family {
	return []Family{
		Condition, PoolReplicas,
		PlanActions, ScalingDecisions, ObjectChanges, Events,
		Polls, PollSeconds, Samples, SampleAge,
		Scrapes, ScrapeSeconds, PrometheusChecks, MissingRanks, FrozenRanks, LedgerViolations, KVBytes, KVLawBroken,
		CertificateExpiry, Registered, BuildInfo,
	}
}

// Borrowed lists the families of libraries that the operator exports too and that its rules and dashboard ask for.
func Borrowed() []Family {
	controller := []string{"controller"}
	queue := []string{"name", "controller", "priority"}
	return []Family{
		{"controller_runtime_reconcile_total", Counter, "Reconciles, by controller and result: success, error, requeue, requeue_after.", []string{"controller", "result"}, nil, "5 a controller"},
		{"controller_runtime_reconcile_errors_total", Counter, "Reconciles that failed, by controller.", controller, nil, "1 a controller"},
		{"controller_runtime_reconcile_time_seconds", Histogram, "Duration of reconciles, by controller.", controller, nil, "1 a controller"},
		{"controller_runtime_active_workers", Gauge, "Workers that reconcile now, by controller.", controller, nil, "1 a controller"},
		{"workqueue_depth", Gauge, "Objects that wait to be reconciled, by queue.", queue, nil, "priorities × controllers"},
		{"workqueue_queue_duration_seconds", Histogram, "Wait of objects for their reconcile, by queue.", queue[:2], nil, "1 a controller"},
		{"rest_client_requests_total", Counter, "Requests to the API server, by method and status code.", []string{"code", "host", "method"}, nil, "codes × methods"},
		{"leader_election_master_status", Gauge, "1 on the operator that leads.", []string{"name"}, nil, "1"},
		{"process_resident_memory_bytes", Gauge, "Memory of the process.", nil, nil, "1"},
		{"process_cpu_seconds_total", Counter, "Processor time of the process.", nil, nil, "1"},
		{"go_goroutines", Gauge, "Goroutines of the process.", nil, nil, "1"},
	}
}

// Desc describes the family to a collector.
func (f Family) Desc() *prometheus.Desc { return prometheus.NewDesc(f.Name, f.Help, f.Labels, nil) }

// CounterVec makes the counters of a family.
func (f Family) CounterVec() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help}, f.Labels)
}

// Histogram makes the histogram of a family without labels.
func (f Family) Histogram() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: f.Name, Help: f.Help, Buckets: f.Buckets})
}

// GaugeValue gives a sample of a family that is read at each scrape; the values of its labels in the order of the table.
func (f Family) GaugeValue(value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(f.Desc(), prometheus.GaugeValue, value, labels...)
}
