package semantics

import "github.com/sluice-dev/sluice/api/v1alpha1"

// front makes a row one of the API process: no ranks, and each request in the series of its priority.
func front(n Number) Number {
	n.Ranks, n.Copies, n.Priorities = Same, NoRanks, Parts
	return n
}

// process makes a row one of a process about itself, which knows no priorities.
func process(n Number) Number {
	n.Ranks, n.Copies = Same, NoRanks
	return n
}

// frontNumbers are what the API process tells about requests and tokens.
func frontNumbers() []Number {
	return []Number{
		front(counter("sglang:prompt_tokens_total", "tokens", all(), "is_streaming")),
		front(counter("sglang:generation_tokens_total", "tokens", all(), "is_streaming")),
		front(counter("sglang:cached_tokens_total", "tokens", all(), "cache_source")),
		front(histogram("sglang:prompt_tokens_histogram", "tokens", all())),
		front(histogram("sglang:uncached_prompt_tokens_histogram", "tokens", all())),
		front(histogram("sglang:generation_tokens_histogram", "tokens", all())),
		front(histogram("sglang:time_to_first_token_seconds", "seconds", decoding(), "is_streaming")),
		front(histogram("sglang:inter_token_latency_seconds", "seconds", decoding())),
		front(histogram("sglang:request_time_per_output_token_seconds", "seconds", decoding(), "is_streaming")),
		front(histogram("sglang:e2e_request_latency_seconds", "seconds", all(), "is_streaming")),
		front(counter("sglang:num_requests_total", "requests", all(), "is_streaming")),
		front(counter("sglang:num_so_requests_total", "requests", all())),
		front(counter("sglang:num_aborted_requests_total", "requests", all())),
		front(histogram("sglang:get_loads_duration_seconds", "seconds", all())),
		with(front(constant("sglang:startup_time_seconds", "seconds", all())), func(n *Number) { n.Replicas, n.Labels = Max, []string{"phase"} }),
		front(counter("sluice_requests_submitted_total", "requests", all())),
		front(counter("sluice_request_outcomes_total", "requests", all(), "outcome")),
		front(amount("sluice_requests_in_flight", "requests", all())),
	}
}

// processNumbers are what the API process tells about HTTP and about itself.
func processNumbers() []Number {
	labelled := func(n Number, labels ...string) Number { n.Labels = labels; return n }
	return []Number{
		process(counter("sglang:http_requests_total", "requests", all(), "endpoint", "method")),
		process(counter("sglang:http_responses_total", "responses", all(), "endpoint", "method", "status_code")),
		process(labelled(amount("sglang:http_requests_active", "requests", all()), "endpoint", "method")),
		// A key may be in several replicas.
		with(process(amount("sglang:routing_keys_active", "keys", all())), func(n *Number) { n.Replicas = Never }),
		process(histogram("sglang:func_latency_seconds", "seconds", all(), "name")),
		with(process(labelled(constant("sglang:startup_latency_breakdown_seconds_max", "seconds", all()), "context")), func(n *Number) { n.Replicas = Max }),

		process(counter("sluice_trace_spans_lost_total", "spans", all())),
		process(counter("sluice_ledger_violations_total", "breaches", all(), "law")),
		process(counter("sluice_metrics_label_values_refused_total", "updates", all(), "family")),
		process(amount("sluice_metrics_series", "series", all())),
		process(counter("sluice_metrics_store_faults_total", "faults", all(), "reason")),
		process(labelled(amount("sluice_metrics_store_processes", "processes", all()), "state")),
		process(amount("sluice_metrics_store_waiting_series", "series", all())),
	}
}

// loadNumbers are the fields of /v1/loads.
func loadNumbers() []Number {
	field := func(name string, kind Kind, unit string, owners []v1alpha1.Role, fold Fold) Number {
		return Number{Name: name, Source: FromLoads, Kind: kind, Unit: unit, Owners: owners, Ranks: fold, Copies: Repeated, Replicas: fold}
	}
	return []Number{
		field("num_running_reqs", Gauge, "requests", all(), Sum),
		field("num_waiting_reqs", Gauge, "requests", all(), Sum),
		field("num_waiting_uncached_tokens", Gauge, "tokens", prefilling(), Sum),
		field("num_used_tokens", Gauge, "tokens", all(), Sum),
		field("num_total_tokens", Gauge, "tokens", all(), Sum),
		field("num_active_tokens", Gauge, "tokens", all(), Sum),
		with(field("max_total_num_tokens", Gauge, "tokens", all(), Sum), func(n *Number) { n.WhenIdle = Constant }),
		with(field("max_running_requests", Gauge, "requests", all(), Sum), func(n *Number) { n.WhenIdle = Constant }),
		field("token_usage", Gauge, "ratio", all(), Mean),
		field("gen_throughput", Gauge, "tokens/s", all(), Sum),
		with(field("cache_hit_rate", Gauge, "ratio", all(), Mean), kept),
		with(field("utilization", Gauge, "ratio", decoding(), Mean), func(n *Number) { n.Sentinel = MinusOneOnPrefill }),
		field("total_prefill_uncached_tokens", Counter, "tokens", prefilling(), Sum),
		field("total_prefill_busy_us", Counter, "microseconds", prefilling(), Sum),
		field("total_generated_tokens", Counter, "tokens", all(), Sum),

		with(field("memory.weight_gb", Gauge, "GiB", all(), Sum), func(n *Number) { n.WhenIdle = Constant }),
		with(field("memory.kv_cache_gb", Gauge, "GiB", all(), Sum), func(n *Number) { n.WhenIdle = Constant }),
		with(field("memory.graph_gb", Gauge, "GiB", all(), Sum), func(n *Number) { n.WhenIdle = Constant }),
		with(field("memory.token_capacity", Gauge, "tokens", all(), Sum), func(n *Number) { n.WhenIdle = Constant }),

		field("disaggregation.prefill_bootstrap_queue_reqs", Gauge, "requests", prefill(), Sum),
		field("disaggregation.prefill_inflight_queue_reqs", Gauge, "requests", prefill(), Sum),
		field("disaggregation.decode_prealloc_queue_reqs", Gauge, "requests", decode(), Sum),
		field("disaggregation.decode_transfer_queue_reqs", Gauge, "requests", decode(), Sum),
		field("disaggregation.decode_retracted_queue_reqs", Gauge, "requests", decode(), Sum),
		with(field("disaggregation.kv_transfer_speed_gb_s", Gauge, "GiB/s", prefill(), Never), kept),
		with(field("disaggregation.kv_transfer_latency_ms", Gauge, "milliseconds", prefill(), Max), kept),

		field("queues.waiting", Gauge, "requests", all(), Sum),
		field("queues.grammar", Gauge, "requests", all(), Sum),
		field("queues.paused", Gauge, "requests", all(), Sum),
		field("queues.retracted", Gauge, "requests", decoding(), Sum),
		field("queues.prealloc_ready", Gauge, "requests", decode(), Sum),
	}
}
