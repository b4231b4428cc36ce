package semantics

import "github.com/sluice-dev/sluice/api/v1alpha1"

// amount is a gauge of a rank that adds up: requests, tokens, bytes.
func amount(name, unit string, owners []v1alpha1.Role) Number {
	return Number{Name: name, Source: FromMetrics, Kind: Gauge, Unit: unit, Owners: owners, Ranks: Sum, Copies: Repeated, Replicas: Sum}
}

// queue is an amount of requests that has a series for each priority beside the total.
func queue(name string, owners []v1alpha1.Role) Number {
	n := amount(name, "requests", owners)
	n.Priorities = Repeats
	return n
}

// level is a gauge that does not add up: a ratio.
func level(name, unit string, owners []v1alpha1.Role) Number {
	n := amount(name, unit, owners)
	n.Ranks, n.Replicas = Mean, Mean
	return n
}

// constant is a gauge that is the same everywhere in a pool.
func constant(name, unit string, owners []v1alpha1.Role) Number {
	n := amount(name, unit, owners)
	n.Ranks, n.Replicas, n.WhenIdle = Same, Same, Constant
	return n
}

// capacity is an amount that never changes.
func capacity(name, unit string, owners []v1alpha1.Role) Number {
	n := amount(name, unit, owners)
	n.WhenIdle = Constant
	return n
}

// counter counts events of a rank.
func counter(name, unit string, owners []v1alpha1.Role, labels ...string) Number {
	n := amount(name, unit, owners)
	n.Kind, n.Labels = Counter, labels
	return n
}

// histogram collects observations of a rank.
func histogram(name, unit string, owners []v1alpha1.Role, labels ...string) Number {
	n := counter(name, unit, owners, labels...)
	n.Kind = Histogram
	return n
}

// with changes a row.
func with(n Number, change func(*Number)) Number {
	change(&n)
	return n
}

func kept(n *Number)    { n.WhenIdle = Kept }
func repeats(n *Number) { n.Priorities = Repeats }
func own(n *Number)     { n.Copies = Own }
func apart(n *Number)   { n.Ranks, n.Replicas = Never, Never }
func byBounds(n *Number) {
	// Keys may be in several ranks, so their counts do not add up over ranks.
	n.Ranks, n.Replicas, n.WhenIdle, n.Labels = Never, Never, Kept, []string{"gt", "le"}
}

// schedulerNumbers are what every scheduler may tell.
func schedulerNumbers() []Number {
	return []Number{
		queue("sglang:num_running_reqs", all()),
		queue("sglang:num_queue_reqs", all()),
		amount("sglang:gen_throughput", "tokens/s", all()),
		with(level("sglang:cache_hit_rate", "ratio", all()), kept),
		with(amount("sglang:decode_sum_seq_lens", "tokens", decoding()), kept),
		// On a prefill engine the sample is there and reads -1, so prefill is no owner.
		with(level("sglang:utilization", "ratio", decoding()), func(n *Number) { n.Sentinel, n.WhenIdle = MinusOneOnPrefill, Kept }),
		with(level("sglang:fwd_occupancy", "percent", all()), func(n *Number) { n.Sentinel = NaNWhenIdle }),
		with(level("sglang:new_token_ratio", "ratio", all()), kept),

		level("sglang:token_usage", "ratio", all()),
		level("sglang:full_token_usage", "ratio", all()),
		level("sglang:swa_token_usage", "ratio", all()),
		amount("sglang:num_used_tokens", "tokens", all()),
		amount("sglang:kv_available_tokens", "tokens", all()),
		amount("sglang:kv_evictable_tokens", "tokens", all()),
		amount("sglang:kv_used_tokens", "tokens", all()),
		amount("sglang:swa_available_tokens", "tokens", all()),
		amount("sglang:swa_evictable_tokens", "tokens", all()),
		amount("sglang:swa_used_tokens", "tokens", all()),

		capacity("sglang:max_total_num_tokens", "tokens", all()),
		capacity("sglang:max_total_num_tokens_swa", "tokens", all()),
		capacity("sglang:max_running_requests_under_SLO", "requests", decoding()),
		constant("sglang:page_size", "tokens", all()),
		capacity("sglang:num_pages", "pages", all()),
		constant("sglang:context_len", "tokens", all()),
		with(capacity("sglang:weight_memory_usage_gb", "GiB", all()), own),
		with(capacity("sglang:kv_cache_memory_usage_gb", "GiB", all()), own),
		with(constant("sglang:startup_available_gpu_memory_gb", "GiB", all()), apart),

		amount("sglang:num_streaming_sessions", "sessions", unified()),
		amount("sglang:streaming_session_held_tokens", "tokens", unified()),

		with(amount("sglang:num_unique_running_routing_keys", "keys", decoding()), func(n *Number) { apart(n); kept(n) }),
		with(amount("sglang:routing_key_running_req_count", "keys", decoding()), byBounds),
		with(amount("sglang:routing_key_all_req_count", "keys", decoding()), byBounds),

		with(amount("sglang:num_retracted_reqs", "requests", decoding()), kept),
		amount("sglang:num_grammar_queue_reqs", "requests", all()),
		amount("sglang:num_paused_reqs", "requests", all()),
		counter("sglang:num_retracted_requests_total", "requests", decoding()),
		counter("sglang:num_retracted_input_tokens_total", "tokens", decoding()),
		counter("sglang:num_retracted_output_tokens_total", "tokens", decoding()),

		counter("sglang:num_queue_rejected_requests_total", "requests", all(), "reason"),
		with(histogram("sglang:queue_time_seconds", "seconds", all()), repeats),
		histogram("sglang:per_stage_req_latency_seconds", "seconds", all(), "stage"),
		counter("sglang:realtime_tokens_total", "tokens", all(), "mode"),

		counter("sglang:prefill_effective_tokens_total", "tokens", all(), "mode"),
		counter("sglang:forward_execution_seconds_total", "seconds", all(), "category"),
		counter("sglang:estimated_flops_per_gpu_total", "operations", all()),
		counter("sglang:estimated_read_bytes_per_gpu_total", "bytes", all()),
		counter("sglang:estimated_write_bytes_per_gpu_total", "bytes", all()),

		counter("sglang:scheduler_iterations_total", "iterations", all()),
		counter("sglang:scheduler_idle_seconds_total", "seconds", all()),
		counter("sglang:scheduler_process_cpu_seconds_total", "seconds", all()),
		counter("sglang:scheduler_stage_seconds_total", "seconds", all(), "category", "forward_overlap"),

		histogram("sglang:grammar_compilation_time_seconds", "seconds", all()),
		counter("sglang:num_grammar_cache_hit_total", "requests", all()),
		counter("sglang:num_grammar_aborted_total", "requests", all()),
		counter("sglang:num_grammar_timeout_total", "requests", all()),
		counter("sglang:num_grammar_total", "requests", all()),
		histogram("sglang:grammar_schema_count", "schemas", all()),
		histogram("sglang:grammar_ebnf_size", "states", all()),
		histogram("sglang:grammar_tree_traversal_time_avg", "seconds", all()),
		histogram("sglang:grammar_tree_traversal_time_max", "seconds", all()),

		histogram("sglang:eviction_duration_seconds", "seconds", prefilling()),
		counter("sglang:evicted_tokens_total", "tokens", prefilling()),
	}
}

// handoverNumbers are what a scheduler tells that hands KV over or receives it.
func handoverNumbers() []Number {
	return []Number{
		queue("sglang:num_prefill_bootstrap_queue_reqs", prefill()),
		queue("sglang:num_prefill_inflight_queue_reqs", prefill()),
		queue("sglang:num_decode_prealloc_queue_reqs", decode()),
		queue("sglang:num_decode_transfer_queue_reqs", decode()),
		queue("sglang:num_decode_host_receive_queue_reqs", decode()),
		amount("sglang:num_decode_deferred_kv_release_reqs", "requests", decode()),
		level("sglang:pending_prealloc_token_usage", "ratio", decode()),
		histogram("sglang:kv_transfer_speed_gb_s", "GiB/s", prefill()),
		histogram("sglang:kv_transfer_latency_ms", "milliseconds", prefill()),
		histogram("sglang:kv_transfer_total_mb", "MiB", prefill()),
		histogram("sglang:kv_transfer_bootstrap_ms", "milliseconds", pairing()),
		histogram("sglang:kv_transfer_alloc_ms", "milliseconds", pairing()),
		histogram("sglang:decode_deferred_kv_release_seconds", "seconds", decode()),
		counter("sglang:decode_deferred_kv_release_total", "requests", decode(), "outcome"),
		counter("sglang:num_prefill_retries_total", "requests", prefill()),
		counter("sglang:num_bootstrap_failed_reqs_total", "requests", pairing()),
		counter("sglang:num_transfer_failed_reqs_total", "requests", pairing()),
		process(counter("sluice_kv_sent_bytes_total", "bytes", prefill(), "outcome")),
		process(counter("sluice_kv_received_bytes_total", "bytes", decode(), "outcome")),
	}
}
