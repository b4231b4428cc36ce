package monitoring

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/engine/metrics"
)

// Budget is how many series one pod may give.
//
//	Series: Σ over the families of the engine type of ranks × sets of labels × series of the kind, + those of the process
//	Limit = spec.observability.sampleLimit, by default Series and a fifth
//	Σ over the families not in Dropped <= Limit, unless nothing is left that may go
type Budget struct {
	Series  int
	Limit   int
	Dropped []string // families, in the order of their names
}

const (
	// processSeries is room for go_* and process_*: client_golang's collectors give about 60.
	processSeries = 150
	// setBounds is how many bounds a histogram is taken to have where arguments set them.
	setBounds = 128
)

// essential reports whether a family stays whatever the limit: the proof of scraping, scaling or alerts rest on it.
func essential(family string) bool {
	return strings.HasPrefix(family, "sluice_") || slices.Contains([]string{
		"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_inflight_queue_reqs",
		"sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs", "sglang:pending_prealloc_token_usage",
		"sglang:num_grammar_queue_reqs", "sglang:num_paused_reqs", "sglang:num_retracted_reqs", "sglang:num_retracted_requests_total", "sglang:num_retracted_output_tokens_total",
		"sglang:utilization", "sglang:token_usage", "sglang:gen_throughput", "sglang:cache_hit_rate", "sglang:fwd_occupancy",
		"sglang:max_total_num_tokens", "sglang:max_running_requests_under_SLO",
		"sglang:kv_available_tokens", "sglang:kv_evictable_tokens", "sglang:kv_used_tokens",
		"sglang:realtime_tokens_total", "sglang:prefill_effective_tokens_total", "sglang:scheduler_iterations_total", "sglang:scheduler_idle_seconds_total",
		"sglang:queue_time_seconds", "sglang:time_to_first_token_seconds", "sglang:inter_token_latency_seconds", "sglang:e2e_request_latency_seconds",
		"sglang:num_requests_total", "sglang:num_aborted_requests_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:cached_tokens_total",
		"sglang:num_bootstrap_failed_reqs_total", "sglang:num_transfer_failed_reqs_total", "sglang:num_prefill_retries_total",
		"sglang:kv_transfer_latency_ms", "sglang:kv_transfer_total_mb", "sglang:num_queue_rejected_requests_total",
	}, family)
}

// Essential reports whether a family is kept whatever the limit of a monitor; what alerts or scales may rest on no other.
func Essential(family string) bool { return essential(family) }

// engineBudget counts the series of a pool's pods. The shape of the pool is valid; where it is not, no pod is made.
func engineBudget(pool *v1alpha1.EnginePool) Budget {
	ranks := 1
	if layout, err := plan.NewLayout(pool.Spec.EngineShape); err == nil {
		for node := range layout.Nodes {
			ranks = max(ranks, len(layout.Exporting(node, plan.AllRanksExport(pool.Spec))))
		}
	}
	args := slices.Concat(pool.Spec.Engine.Args, pool.Spec.Args)
	shape := metrics.Shape{
		EngineType:   pool.Spec.Role.EngineType(),
		Ranks:        ranks,
		Priorities:   hasFlag(args, "--enable-priority-scheduling"),
		CustomLabels: hasFlag(args, "--tokenizer-metrics-allowed-custom-labels"),
		MaxValues:    intFlag(args, "--metrics-max-label-values"),
	}
	if slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(a, "--bucket-") || strings.HasPrefix(a, "--prompt-tokens-buckets") || strings.HasPrefix(a, "--generation-tokens-buckets")
	}) {
		shape.Bounds = setBounds
	}
	var sizes []size
	for _, f := range metrics.Families() {
		if n := f.MostSeries(shape); n > 0 {
			sizes = append(sizes, size{f.Name, n})
		}
	}
	return fit(sizes, pool.Spec.Observability.SampleLimit)
}

// size is how many series a family has at most.
type size struct {
	family string
	series int
}

// fit drops what may go, the largest first and of equal ones the first by name, until the rest is within the limit.
func fit(sizes []size, limit *int32) Budget {
	b := Budget{Series: processSeries}
	for _, s := range sizes {
		b.Series += s.series
	}
	if limit == nil {
		b.Limit = b.Series + b.Series/5
		return b
	}
	b.Limit = int(*limit)
	slices.SortFunc(sizes, func(x, y size) int { return cmp.Or(cmp.Compare(y.series, x.series), cmp.Compare(x.family, y.family)) })
	left := b.Series
	for _, s := range sizes {
		if left <= b.Limit {
			break
		}
		if !essential(s.family) {
			left -= s.series
			b.Dropped = append(b.Dropped, s.family)
		}
	}
	slices.Sort(b.Dropped)
	return b
}

// routerSeries is an upper bound of what a router exports: a histogram of 16 bounds for each of 20 routes and 8 outcomes
// is the largest, with counters by code.
const routerSeries = 20*8*19 + 20*8*30 + 1000

// routerBudget has no family that may go: a router has few.
func routerBudget() Budget { return fit([]size{{"sluice_router_", routerSeries}}, nil) }

// hasFlag says whether a command line has a flag, with its value in the same or the next word.
func hasFlag(args []string, flag string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return a == flag || strings.HasPrefix(a, flag+"=") })
}

// intFlag gives the last value of a flag; 0 where it has none.
func intFlag(args []string, flag string) (value int) {
	for i, a := range args {
		text, joined := strings.CutPrefix(a, flag+"=")
		if !joined {
			if a != flag || i+1 == len(args) {
				continue
			}
			text = args[i+1]
		}
		if n, err := strconv.Atoi(text); err == nil {
			value = n
		}
	}
	return value
}
