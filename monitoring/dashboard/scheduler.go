package dashboard

func stagePanels(q *queries) []panel {
	byEngine, byStage := []string{"engine_type"}, []string{"engine_type", "stage"}
	const family, legend = "sglang:per_stage_req_latency_seconds", "{{engine_type}} {{stage}}"
	return []panel{
		{
			title: "Requests by Stage", unit: number, look: stacked, empty: noTraffic,
			help: "Mean number of requests in each stage: the seconds that requests spent there, per second, counted when they leave it. docs/stages.md says what each is; " +
				"laps of a stage are not added to it. Stages without samples are shown as they are now: prefill_waiting by the waiting queue, decode_forward by the running batch, " +
				"on a unified engine together with decode_waiting. Nothing counts requests in prefill_prepare, which is short but for grammars.",
			targets: []target{
				{q.grown("rate", family, "_sum", byStage, []string{`stage!~"chunked_prefill|fake_output"`}), legend},
				{q.total("sglang:num_queue_reqs", byEngine, `engine_type!="decode"`), "{{engine_type}} prefill_waiting now"},
				{q.total("sglang:num_running_reqs", byEngine, `engine_type!="prefill"`), "{{engine_type}} decode_forward now"},
			},
		},
		{title: "Time of a Stage, Mean", unit: seconds, empty: noTraffic, targets: []target{{q.mean(family, byStage), legend}}},
		{title: "Time of a Stage, P99", unit: seconds, empty: noTraffic, targets: []target{{q.quantile(0.99, family, byStage), legend}}},
		{title: "Stages Ended", unit: perSec, targets: []target{{q.samples(family, byStage), legend}}},
	}
}

func schedulerPanels(q *queries) []panel {
	replica, legend := q.options.Replica, q.options.legend()
	return []panel{
		{
			title: "What the Loop Does", unit: ratio, look: stacked,
			help:    "Wall time of the scheduler's loop by what it did, in parts of its time and added over engines. The parts of one rank add up to 1.",
			targets: []target{{q.rate("sglang:scheduler_stage_seconds_total", []string{"category"}), "{{category}}"}},
		},
		{
			title: "Hidden Behind the Device", unit: ratio, look: stacked, help: "The same time by whether the device computed meanwhile. Work under none is time that the device waits for.",
			targets: []target{{q.rate("sglang:scheduler_stage_seconds_total", []string{"forward_overlap"}), "overlap {{forward_overlap}}"}},
		},
		{
			title: "Idle", unit: ratio, top: 1, help: "Part of the wall time without a request and with nothing to compute, mean over data-parallel ranks.",
			targets: []target{{share(q.rate("sglang:scheduler_idle_seconds_total", replica), q.rate("sglang:scheduler_stage_seconds_total", replica)), legend}},
		},
		{
			title: "Device Occupancy", unit: percent, top: 100, empty: "idle, or SGLANG_ENABLE_METRICS_DEVICE_TIMER is not set",
			help:    "Share of the wall time in which the device computes, of the busiest rank. Low with a high utilization: requests are there, but the device waits.",
			targets: []target{{q.highest("sglang:fwd_occupancy", replica), legend}},
		},
		{
			title: "Device Time by Work", unit: ratio, look: stacked, empty: "SGLANG_ENABLE_METRICS_DEVICE_TIMER is not set", help: "Busy time of devices per second, by what they computed.",
			targets: []target{{q.rate("sglang:forward_execution_seconds_total", []string{"category"}), "{{category}}"}},
		},
		{
			title: "Turns of the Loop", unit: perSec, help: "Turns of the scheduler's loop per second.",
			targets: []target{{q.rate("sglang:scheduler_iterations_total", replica), legend}},
		},
		{
			title: "CPU of Rank Processes", unit: number, help: "CPUs that the processes of ranks keep busy, one of each set of copies.",
			targets: []target{{q.rate("sglang:scheduler_process_cpu_seconds_total", replica), legend}},
		},
		{
			title: "Tokens Processed", unit: tokensPerSec, look: stacked, help: "Prompt tokens computed and found, and tokens decoded, step by step.",
			targets: []target{{q.rate("sglang:realtime_tokens_total", []string{"mode"}), "{{mode}}"}},
		},
		{
			title: "Estimated Compute of a Device", unit: "flops", empty: "--enable-mfu-metrics is off", help: "Operations per second by the model's shapes, of the busiest rank. Over what the device can do, this is its utilization.",
			targets: []target{{aggregate("max", replica, q.eachRate("sglang:estimated_flops_per_gpu_total")), legend}},
		},
		{
			title: "Estimated Memory Traffic of a Device", unit: "binBps", empty: "--enable-mfu-metrics is off", help: "Bytes that a rank reads and writes per second by the model's shapes, of the busiest rank.",
			targets: []target{
				{aggregate("max", replica, q.eachRate("sglang:estimated_read_bytes_per_gpu_total")), "read " + legend},
				{aggregate("max", replica, q.eachRate("sglang:estimated_write_bytes_per_gpu_total")), "written " + legend},
			},
		},
		{
			title: "Tokens of a Turn", unit: tokens, empty: noTraffic, help: "Decoded tokens and computed prompt tokens over turns of the loop.",
			targets: []target{{share(
				q.rate("sglang:realtime_tokens_total", replica, `mode=~"decode|prefill_compute"`), q.rate("sglang:scheduler_iterations_total", replica),
			), legend}},
		},
	}
}

// rankPanels show every rank as it tells of itself, copies too.
func rankPanels(q *queries) []panel {
	replica := q.options.Replica
	legend := q.options.legend() + " dp{{dp_rank}} tp{{tp_rank}} pp{{pp_rank}}"
	// spread compares the busiest with the mean of a replica's data-parallel ranks.
	spread := func(each string) string {
		return share(aggregate("max", replica, each), aggregate("avg", replica, each))
	}
	return []panel{
		{title: "Running by Rank", unit: number, targets: []target{{q.each("sglang:num_running_reqs"), legend}}},
		{title: "Waiting by Rank", unit: number, targets: []target{{q.each("sglang:num_queue_reqs"), legend}}, help: "Uneven queues: routing sends requests to the wrong ranks. Even queues and uneven tokens: some requests are longer."},
		{title: "KV Usage by Rank", unit: ratio, top: 1, warn: 0.8, bad: 0.95, targets: []target{{q.each("sglang:full_token_usage"), legend}}},
		{title: "Tokens by Rank", unit: tokensPerSec, targets: []target{{q.eachRate("sglang:realtime_tokens_total", `mode=~"decode|prefill_compute"`), legend}}},
		{
			title: "Idle by Rank", unit: ratio, targets: []target{{q.eachRate("sglang:scheduler_idle_seconds_total"), legend}},
			help: "Part of the time without a request. A rank that idles while others queue gets too few requests.",
		},
		{
			title: "Busiest Rank over the Mean", unit: number, empty: noTraffic, warn: 1.5, bad: 2, below: true,
			help: "1 when all ranks of a replica do alike, the number of its ranks when one does everything.",
			targets: []target{
				{spread(q.eachRate("sglang:realtime_tokens_total", `mode=~"decode|prefill_compute"`)), "tokens " + q.options.legend()},
				{spread(q.each("sglang:num_running_reqs")), "running " + q.options.legend()},
			},
		},
	}
}

func grammarPanels(q *queries) []panel {
	const none = "no request with a grammar in this window"
	return []panel{
		{
			title: "Requests with a Grammar", unit: reqPerSec, empty: none, help: "And those whose grammar was there already, was wrong or aborted, or was not ready in time.",
			targets: []target{
				{q.rate("sglang:num_grammar_total", nil), "all"},
				{q.rate("sglang:num_grammar_cache_hit_total", nil), "there already"},
				{q.rate("sglang:num_grammar_aborted_total", nil), "aborted"},
				{q.rate("sglang:num_grammar_timeout_total", nil), "timed out"},
			},
		},
		{title: "Time to Compile", unit: seconds, empty: none, targets: quantiles(q, "sglang:grammar_compilation_time_seconds")},
		{
			title: "Time of a Mask", unit: seconds, empty: none, help: "Time to find out which tokens may come next: the mean of a request and its worst.",
			targets: []target{
				{q.mean("sglang:grammar_tree_traversal_time_avg", byModel), "mean " + modelLegend},
				{q.quantile(0.99, "sglang:grammar_tree_traversal_time_max", byModel), "worst, P99 " + modelLegend},
			},
		},
		{
			title: "Size of Grammars", unit: number, empty: none, help: "States of the automaton, and schemas in a JSON schema.",
			targets: []target{
				{q.mean("sglang:grammar_ebnf_size", byModel), "states " + modelLegend},
				{q.mean("sglang:grammar_schema_count", byModel), "schemas " + modelLegend},
			},
		},
	}
}
