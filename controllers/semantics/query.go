package semantics

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// queryWindow is the time over which Prometheus counts events for a quantile.
const queryWindow = "2m"

// Query gives the PromQL of a signal of a pool as autoscalers divide it: the values of all replicas added, or of a shared
// signal the pool's value. selector is the inside of the braces that picks the pool's series, for example
// `namespace="team-a",inference_service="chat",pool="decode"`. What is no number selects nothing, so that the answer is empty
// and not 0. ok is false where Prometheus does not have what the signal reads, or the service sets no objective.
func (s Signal) Query(selector string, slo *v1alpha1.SLOSpec) (promql string, ok bool) {
	switch s.Type {
	case v1alpha1.MetricUtilization:
		// Kept while nothing runs, so it counts as 0 then.
		busy := fmt.Sprintf("(%s + on (replica) %s > bool 0)", perReplica(Sum, selector, "sglang:num_running_reqs"), perReplica(Sum, selector, "sglang:num_queue_reqs"))
		return fmt.Sprintf("sum(%s * on (replica) %s)", perReplica(Mean, selector, "sglang:utilization"), busy), true
	case v1alpha1.MetricTokenUsage:
		return fmt.Sprintf("sum(%s)", perReplica(Mean, selector, "sglang:token_usage")), true
	case v1alpha1.MetricQueueLength:
		return fmt.Sprintf("sum(%s)", perReplica(Sum, selector, QueueFamilies()...)), true
	case v1alpha1.MetricConcurrency:
		return fmt.Sprintf("sum(%s)", perReplica(Sum, selector, "sglang:num_running_reqs")), true
	case v1alpha1.MetricTTFT, v1alpha1.MetricITL:
		threshold, quantile, ok := s.Objective(slo)
		if !ok {
			return "", false
		}
		number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
		latency := fmt.Sprintf("(histogram_quantile(%s, sum by (le) (rate(%s_bucket{%s}[%s]))) / %s >= 0)", number(quantile), s.Family(), selector, queryWindow, number(threshold))
		// Only engines that say that nothing runs or waits make it 0: without series there is no answer.
		idle := fmt.Sprintf("(sum(%s) == 0)", perReplica(Sum, selector, append(QueueFamilies(), "sglang:num_running_reqs")...))
		return latency + " or on () " + idle, true
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
// total.
func perReplica(fold Fold, selector string, names ...string) string {
	if len(names) == 1 {
		selector = strings.TrimSuffix(selector+",priority=\"\"", ",")
		return fmt.Sprintf("%s by (replica) (max by (replica, dp_rank) (%s{%s} >= 0))", operator(fold), names[0], strings.TrimPrefix(selector, ","))
	}
	selector = strings.TrimPrefix(fmt.Sprintf(`%s,__name__=~"%s",priority=""`, selector, strings.Join(names, "|")), ",")
	return fmt.Sprintf("%s by (replica) (max by (__name__, replica, dp_rank) ({%s} >= 0))", operator(fold), selector)
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
