package rules

// recording is one recording rule. Its series have the labels of the scope, those of by and its own.
type recording struct {
	name   string
	expr   string
	labels map[string]string
	help   string // a line of docs/alerts.md
}

// queues are the queues in which a request waits, by the value of the label queue, with the families that count them.
var queues = []struct{ queue, family string }{
	{"waiting", "sglang:num_queue_reqs"},
	{"grammar", "sglang:num_grammar_queue_reqs"},
	{"bootstrap", "sglang:num_prefill_bootstrap_queue_reqs"},
	{"inflight", "sglang:num_prefill_inflight_queue_reqs"},
	{"prealloc", "sglang:num_decode_prealloc_queue_reqs"},
	{"transfer", "sglang:num_decode_transfer_queue_reqs"},
}

// held are the states of tokens of KV, by the value of the label state, with the families that count them.
var held = []struct{ state, family string }{
	{"capacity", "sglang:max_total_num_tokens"},
	{"available", "sglang:kv_available_tokens"},
	{"evictable", "sglang:kv_evictable_tokens"},
	{"used", "sglang:kv_used_tokens"},
}

// Names of recorded series that others ask for.
const (
	poolRunning   = "pool:sluice_running_requests:sum"
	poolQueued    = "pool:sluice_queued_requests:sum"
	poolKV        = "pool:sluice_kv_tokens:sum"
	poolGenerated = "pool:sluice_generated_tokens:rate5m"
	poolRetracted = "pool:sluice_retracted_requests:rate5m"
	poolLost      = "pool:sluice_retracted_tokens:rate5m"
	poolOutcomes  = "pool:sluice_request_outcomes:rate5m"
)

// recordings are the series by pool, then what adds them by role.
func recordings(s *scope) []recording {
	list := []recording{{name: poolRunning, expr: s.sum("sglang:num_running_reqs", byPool), help: "requests in running batches"}}
	for _, q := range queues {
		list = append(list, recording{name: poolQueued, labels: map[string]string{"queue": q.queue}, expr: s.sum(q.family, byPool), help: "requests that wait, by queue"})
	}
	for _, k := range held {
		list = append(list, recording{name: poolKV, labels: map[string]string{"state": k.state}, expr: s.sum(k.family, byPool), help: "tokens of KV of the full-attention pools, by state"})
	}
	outcomes := append([]string{"outcome"}, byPool...)
	modes := append([]string{"mode"}, byPool...)
	list = append(list,
		recording{name: "pool:sluice_engines_up:sum", expr: aggregate("sum", byPool, aggregate("max", byReplica, s.targets())), help: "replicas of which a pod is scraped"},
		recording{name: "pool:sluice_utilization:avg", expr: aggregate("avg", byPool, s.level("sglang:utilization")), help: "mean utilization of the ranks that have one"},
		recording{name: "pool:sluice_utilization:max", expr: aggregate("max", byPool, s.level("sglang:utilization")), help: "utilization of the busiest rank"},
		recording{name: "pool:sluice_token_usage:max", expr: aggregate("max", byPool, s.level("sglang:token_usage")), help: "locked share of KV memory of the fullest rank"},
		recording{name: poolGenerated, expr: s.rate("sglang:realtime_tokens_total", "", "5m", byPool, `mode="decode"`), help: "tokens generated per second"},
		recording{name: "pool:sluice_prompt_tokens:rate5m", expr: s.rate("sglang:realtime_tokens_total", "", "5m", modes, `mode=~"prefill_.*"`), help: "prompt tokens per second, computed and found"},
		recording{name: "pool:sluice_cache_hit:ratio_rate5m", help: "share of prompt tokens that were found in the prefix cache, repeated work left out",
			expr: quotient(s.rate("sglang:prefill_effective_tokens_total", "", "5m", byPool, `mode=~".*_hit"`), s.rate("sglang:prefill_effective_tokens_total", "", "5m", byPool))},
		recording{name: poolRetracted, expr: s.rate("sglang:num_retracted_requests_total", "", "5m", byPool), help: "requests retracted per second"},
		recording{name: poolLost, expr: s.rate("sglang:num_retracted_output_tokens_total", "", "5m", byPool), help: "generated tokens of retracted requests per second"},
		recording{name: poolOutcomes, expr: s.rate("sluice_request_outcomes_total", "", "5m", outcomes), help: "requests ended per second, by outcome"},
		recording{name: "pool:sluice_kv_transferred_bytes:rate5m", expr: s.rate("sluice_kv_sent_bytes_total", "", "5m", byPool, `outcome="done"`), help: "bytes of KV handed over per second, told by prefill engines"},
	)
	for _, l := range []struct{ latency, family string }{{"ttft", "sglang:time_to_first_token_seconds"}, {"itl", "sglang:inter_token_latency_seconds"}, {"e2e", "sglang:e2e_request_latency_seconds"}} {
		for _, p := range []struct{ name, value string }{{"p50", "0.5"}, {"p99", "0.99"}} {
			list = append(list, recording{
				name: "pool:sluice_" + l.latency + "_seconds:" + p.name + "_rate5m", help: "that quantile of the latency",
				expr: "histogram_quantile(" + p.value + ", " + s.rate(l.family, "_bucket", "5m", append([]string{"le"}, byPool...)) + ")",
			})
		}
	}
	return append(list, roles(s)...)
}

// roles adds the pools of one role.
func roles(s *scope) []recording {
	by := func(more ...string) []string { return append(more, "engine_type") }
	return []recording{
		{name: "role:sluice_running_requests:sum", expr: aggregate("sum", by(), s.recorded(poolRunning)), help: "the same by role"},
		{name: "role:sluice_queued_requests:sum", expr: aggregate("sum", by("queue"), s.recorded(poolQueued)), help: "the same by role"},
		{name: "role:sluice_kv_tokens:sum", expr: aggregate("sum", by("state"), s.recorded(poolKV)), help: "the same by role"},
		{name: "role:sluice_generated_tokens:rate5m", expr: aggregate("sum", by(), s.recorded(poolGenerated)), help: "the same by role"},
		{name: "role:sluice_retracted_requests:rate5m", expr: aggregate("sum", by(), s.recorded(poolRetracted)), help: "the same by role"},
		{name: "role:sluice_request_outcomes:rate5m", expr: aggregate("sum", by("outcome"), s.recorded(poolOutcomes)), help: "the same by role"},
		{name: "role:sluice_utilization:max", expr: aggregate("max", by(), s.recorded("pool:sluice_utilization:max")), help: "the same by role"},
	}
}
