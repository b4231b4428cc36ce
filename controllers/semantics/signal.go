package semantics

import (
	"slices"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Names of the signals in custom.metrics.k8s.io and external.metrics.k8s.io.
const (
	MetricUtilization  = "sluice_utilization"
	MetricPrefillDelay = "sluice_prefill_delay_seconds"
	MetricQueueLength  = "sluice_queue_length"
	MetricTokenUsage   = "sluice_token_usage"
	MetricTTFT         = "sluice_ttft_slo_ratio"
	MetricITL          = "sluice_itl_slo_ratio"
	MetricConcurrency  = "sluice_concurrency"
)

// Signal is one row of the table of signals.
type Signal struct {
	Type v1alpha1.ScalingMetricType
	// Metric is its name in the metrics API.
	Metric string
	Unit   string
	// Roles for which it is defined.
	Roles []v1alpha1.Role
	// Formula in words, for people.
	Formula string
	// Pool folds the values of replicas into that of their pool.
	Pool Fold
	// Reads are the rows of the registry that it is made of: fields of /v1/loads, then families.
	Reads []Ref
	// Shared means that every replica has the value of its pool, since a quantile of a replica means little.
	Shared bool
}

// Ref names a row of the registry.
type Ref struct {
	Source Source
	Name   string
}

func load(names ...string) (refs []Ref) {
	for _, name := range names {
		refs = append(refs, Ref{FromLoads, name})
	}
	return refs
}

// Families that the latency signals read.
const (
	FamilyTTFT = "sglang:time_to_first_token_seconds"
	FamilyITL  = "sglang:inter_token_latency_seconds"
)

// Signals gives the table.
func Signals() []Signal {
	return []Signal{
		{
			Type: v1alpha1.MetricUtilization, Metric: MetricUtilization, Unit: "ratio", Roles: decoding(), Pool: Mean,
			Formula: "mean over DP ranks of max(running / cap under SLO, token usage / 0.9)", Reads: load("utilization"),
		},
		{
			Type: v1alpha1.MetricPrefillDelay, Metric: MetricPrefillDelay, Unit: "seconds", Roles: prefilling(), Pool: Mean,
			Formula: "uncached waiting tokens of all DP ranks / (their tokens per second of prefill, added)",
			Reads:   load("num_waiting_uncached_tokens", "total_prefill_uncached_tokens", "total_prefill_busy_us"),
		},
		{
			Type: v1alpha1.MetricQueueLength, Metric: MetricQueueLength, Unit: "requests", Roles: all(), Pool: Sum,
			Formula: "requests in all waiting queues, added over DP ranks", Reads: load("num_waiting_reqs"),
		},
		{
			Type: v1alpha1.MetricTokenUsage, Metric: MetricTokenUsage, Unit: "ratio", Roles: all(), Pool: Mean,
			Formula: "mean over DP ranks of locked KV tokens / capacity", Reads: load("token_usage"),
		},
		{
			Type: v1alpha1.MetricTTFT, Metric: MetricTTFT, Unit: "share of slo.ttft.threshold", Roles: decoding(), Pool: Same, Shared: true,
			Formula: "quantile slo.ttft.objective of the pool's times to the first token / slo.ttft.threshold",
			Reads:   append(load("num_running_reqs", "num_waiting_reqs"), Ref{FromMetrics, FamilyTTFT}),
		},
		{
			Type: v1alpha1.MetricITL, Metric: MetricITL, Unit: "share of slo.itl.threshold", Roles: decoding(), Pool: Same, Shared: true,
			Formula: "quantile slo.itl.objective of the pool's times between tokens / slo.itl.threshold",
			Reads:   append(load("num_running_reqs", "num_waiting_reqs"), Ref{FromMetrics, FamilyITL}),
		},
		{
			Type: v1alpha1.MetricConcurrency, Metric: MetricConcurrency, Unit: "requests", Roles: all(), Pool: Sum,
			Formula: "running requests, added over DP ranks", Reads: load("num_running_reqs"),
		},
	}
}

// SignalOf finds the row of a type.
func SignalOf(kind v1alpha1.ScalingMetricType) (s Signal, ok bool) {
	return find(func(s Signal) bool { return s.Type == kind })
}

// SignalNamed finds the row of a metric.
func SignalNamed(metric string) (s Signal, ok bool) {
	return find(func(s Signal) bool { return s.Metric == metric })
}

func find(is func(Signal) bool) (Signal, bool) {
	rows := Signals()
	if i := slices.IndexFunc(rows, is); i >= 0 {
		return rows[i], true
	}
	return Signal{}, false
}

// Defined says whether pools of the role have the signal.
func (s Signal) Defined(role v1alpha1.Role) bool { return slices.Contains(s.Roles, role) }

// Fold makes one value in thousandths of those of several replicas; there is at least one. Means are rounded half up.
func (s Signal) Fold(milli []int64) int64 { return foldMilli(s.Pool, milli) }

func foldMilli(fold Fold, milli []int64) int64 {
	switch fold {
	case Max:
		return slices.Max(milli)
	case Same:
		return milli[0]
	}
	var sum int64
	for _, v := range milli {
		sum += v
	}
	if fold == Sum {
		return sum
	}
	n := int64(len(milli))
	return (sum + n/2) / n
}
