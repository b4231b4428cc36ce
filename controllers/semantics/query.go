package semantics

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const (
	// queryWindow is the time over which Prometheus counts events for a quantile, and for which an engine whose numbers stop
	// counts as one that should have some. After that it is one that serves nobody, which its readiness has found out before.
	queryWindow = "2m"
	// queryReplica tells the replicas of a pool apart, those of two revisions that serve side by side too.
	queryReplica = "replica, revision"
)

// Query gives the PromQL of a signal of a pool as autoscalers divide it: the values of all replicas added, or of a shared
// signal the pool's value. selector is the inside of the braces that picks the pool's series, for example
// `namespace="team-a",inference_service="chat",pool="decode"`; ranks is how many DP ranks a replica has. The answer is empty,
// and not 0 or less than all of it, when a rank tells what is no number, when an engine that had numbers of late lacks those of a
// rank, and when there are too few events for a quantile. ok is false where Prometheus does not have what the signal reads, or
// the service sets no objective.
func (s Signal) Query(selector string, ranks int, slo *v1alpha1.SLOSpec) (promql string, ok bool) {
	running := "sglang:num_running_reqs"
	whole := func(value, family string) (string, bool) {
		return fmt.Sprintf("(%s) unless on () %s", value, missing(selector, family, ranks)), true
	}
	switch s.Type {
	case v1alpha1.MetricUtilization:
		// Kept while nothing runs, and not there before the first batch, so it counts as 0 while there is no request.
		held := perReplica(Sum, selector, running, "sglang:num_queue_reqs")
		return whole(fmt.Sprintf("sum(%[1]s == 0 or on (%[3]s) %[2]s + on (%[3]s) %[1]s * 0 or on (%[3]s) %[1]s * NaN) >= 0",
			held, perReplica(Mean, selector, "sglang:utilization"), queryReplica), running)
	case v1alpha1.MetricTokenUsage:
		return whole(fmt.Sprintf("sum(%s) >= 0", perReplica(Mean, selector, "sglang:token_usage")), "sglang:token_usage")
	case v1alpha1.MetricQueueLength:
		return whole(fmt.Sprintf("sum(%s) >= 0", perReplica(Sum, selector, QueueFamilies()...)), "sglang:num_queue_reqs")
	case v1alpha1.MetricConcurrency:
		return whole(fmt.Sprintf("sum(%s) >= 0", perReplica(Sum, selector, running)), running)
	case v1alpha1.MetricTTFT, v1alpha1.MetricITL:
		threshold, quantile, ok := s.Objective(slo)
		if !ok {
			return "", false
		}
		number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
		latency := fmt.Sprintf("histogram_quantile(%s, sum by (le) (rate(%s[%s]))) / %s >= 0", number(quantile), pick(selector, s.Family()+"_bucket"), queryWindow, number(threshold))
		events := fmt.Sprintf("sum(increase(%s[%s])) >= %d", pick(selector, s.Family()+"_count"), queryWindow, MinEvents)
		// Only engines that say that nothing runs or waits make it 0: without series there is no answer.
		idle := fmt.Sprintf("sum(%s) == 0", perReplica(Sum, selector, append(QueueFamilies(), running)...))
		return whole(fmt.Sprintf("(%s and on () (%s)) or on () (%s)", latency, events, idle), running)
	default:
		return "", false
	}
}

// QueueFamilies are the queues in which requests wait, of all roles: num_waiting_reqs of /v1/loads but for retracted ones,
// which have no family.
func QueueFamilies() []string {
	return []string{
		"sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs", "sglang:num_prefill_bootstrap_queue_reqs",
		"sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs",
	}
}

// perReplica folds families over the ranks of each replica by the registry: of repeated ranks one counts, of priorities the
// total. What is no number is NaN, and so is then what is made of it.
func perReplica(fold Fold, selector string, names ...string) string {
	series, by := pick(selector+`,priority=""`, names...), queryReplica+", dp_rank"
	if len(names) > 1 {
		// The name goes into a label that arithmetic keeps.
		series = fmt.Sprintf(`label_replace(%s, "family", "$1", "__name__", "(.+)")`, series)
		by += ", family"
	}
	return fmt.Sprintf("%s by (%s) (max by (%s) (%s >= 0 <= %g or %s * NaN))", operator(fold), queryReplica, by, series, maxNumber, series)
}

// pick selects series of families, under both spellings of their names: some gateways write _ for a colon.
func pick(selector string, names ...string) string {
	return fmt.Sprintf(`{__name__=~"%s",%s}`, strings.ReplaceAll(strings.Join(names, "|"), ":", "[:_]"), selector)
}

// missing gives something while an engine that is still a target, and of which there were series of a family of late, lacks ranks
// of it. An engine that starts has none yet and is left out.
func missing(selector, family string, ranks int) string {
	series := pick(selector+`,priority=""`, family)
	return fmt.Sprintf("group(last_over_time(%[2]s[%[4]s]) and on (%[1]s) up{%[3]s} unless on (%[1]s) count by (%[1]s) (group by (%[1]s, dp_rank) (%[2]s)) >= %[5]d)",
		queryReplica, series, selector, queryWindow, max(1, ranks))
}

func operator(fold Fold) string {
	if fold == Mean {
		return "avg"
	}
	return string(fold)
}

// QueriedFamilies are the families that a signal's query reads.
func (s Signal) QueriedFamilies() []string {
	switch s.Type {
	case v1alpha1.MetricUtilization:
		return []string{"sglang:utilization", "sglang:num_running_reqs", "sglang:num_queue_reqs"}
	case v1alpha1.MetricTokenUsage:
		return []string{"sglang:token_usage"}
	case v1alpha1.MetricQueueLength:
		return QueueFamilies()
	case v1alpha1.MetricConcurrency:
		return []string{"sglang:num_running_reqs"}
	case v1alpha1.MetricTTFT, v1alpha1.MetricITL:
		return slices.Concat([]string{s.Family()}, QueueFamilies(), []string{"sglang:num_running_reqs"})
	default:
		return nil
	}
}
