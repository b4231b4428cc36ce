package dashboard

// noModel ends the help of panels whose series have no model.
const noModel = " These series have no model or rank: filter by instance."

// asked leaves out what probes, scrapers and routers ask for.
const asked = `endpoint!~"/metrics/?|/health.*|/v1/loads|/server_info"`

func httpPanels(q *queries) []panel {
	replica, legend := q.options.Replica, q.options.legend()
	byEndpoint := []string{"endpoint", "method"}
	return []panel{
		{
			title: "HTTP Requests in Flight", unit: number, help: "By route." + noModel,
			targets: []target{{q.total("sglang:http_requests_active", byEndpoint), "{{method}} {{endpoint}}"}},
		},
		{
			title: "HTTP Requests", unit: reqPerSec, help: "Received, by route; paths without a route are one." + noModel,
			targets: []target{{q.rate("sglang:http_requests_total", byEndpoint), "{{method}} {{endpoint}}"}},
		},
		{
			title: "HTTP Answers by Status", unit: reqPerSec, look: stacked, help: "Answers begun." + noModel,
			targets: []target{{q.rate("sglang:http_responses_total", []string{"status_code"}), "{{status_code}}"}},
		},
		{
			title: "HTTP Server Errors", unit: ratio, warn: 0.001, bad: 0.01, help: "Share of answers with a status of 500 or more; probes, /metrics and /v1/loads are left out." + noModel,
			targets: []target{{share(
				orZero(q.rate("sglang:http_responses_total", nil, `status_code=~"5.."`, asked)), q.rate("sglang:http_responses_total", nil, asked),
			), "5xx"}},
		},
		{
			title: "Routing Keys in Flight", unit: number, help: "Distinct routing keys of requests in flight. Many at once: the balancer in front spreads requests over engines." + noModel,
			targets: []target{{q.total("sglang:routing_keys_active", replica), legend}},
		},
		{
			title: "Functions of the API Process", unit: seconds, empty: noTraffic,
			help:    "P99 of the time of functions on a request's way. generate_request rises and recv_requests of the scheduler does not: the way in is what is slow." + noModel,
			targets: []target{{q.quantile(0.99, "sglang:func_latency_seconds", []string{"name"}), "{{name}}"}},
		},
		{
			title: "Time of /v1/loads", unit: seconds, empty: "nobody asks for the load", targets: quantiles(q, "sglang:get_loads_duration_seconds"),
			help: "Routers and operators poll it; it asks every rank.",
		},
	}
}

func enginePanels(q *queries) []panel {
	replica, legend := q.options.Replica, q.options.legend()
	constant := func(title, unit, expr, help string) panel {
		return panel{title: title, unit: unit, look: value, width: 6, height: 5, help: help, targets: []target{{expr, legend}}}
	}
	return []panel{
		constant("KV Capacity", tokens, q.total("sglang:max_total_num_tokens", replica), "Tokens that the KV pools of a replica's data-parallel ranks hold."),
		constant("KV Capacity of Sliding-Window Layers", tokens, q.total("sglang:max_total_num_tokens_swa", replica), "The same for the pool of layers that look at a window."),
		constant("Pages", number, q.total("sglang:num_pages", replica), "Pages of the KV pools."),
		constant("Page Size", tokens, q.highest("sglang:page_size", replica), "Tokens in a page."),
		constant("Longest Sequence", tokens, q.highest("sglang:context_len", replica), "Prompt and answer together."),
		constant("Weights", gibibytes, q.total("sglang:weight_memory_usage_gb", replica), "Memory of the weights, over all ranks that export."),
		constant("KV Memory", gibibytes, q.total("sglang:kv_cache_memory_usage_gb", replica), "Memory of the KV pools, over all ranks that export."),
		constant("Left at Start", gibibytes, q.highest("sglang:startup_available_gpu_memory_gb", replica), "Device memory that was free when weights and KV were there."),
		constant("Cap of Running Requests", requests, q.total("sglang:max_running_requests_under_SLO", replica), "Running requests at which utilization reads 1."),
		{
			title: "Phases of the Start", unit: seconds, look: value, targets: []target{{q.highest("sglang:startup_time_seconds", append([]string{"phase"}, replica...)), legend + " {{phase}}"}},
			help: "Time of each phase, of the slowest rank.",
		},
		{
			title: "Steps of the Start", unit: seconds, look: value, targets: []target{{q.highest("sglang:startup_latency_breakdown_seconds_max", []string{"context"}), "{{context}}"}},
			help: "Longest time of each step." + noModel,
		},
	}
}

func ledgerPanels(q *queries) []panel {
	return []panel{
		{
			title: "Violations", unit: number, look: value, bad: 1, help: "Breaches of the conservation laws of docs/ledger.md since start. Anything but 0 is a fault of the engine: its log has the numbers." + noModel,
			targets: []target{{q.total("sluice_ledger_violations_total", []string{"law"}), "{{law}}"}},
		},
		{
			title: "Violations over Time", unit: number, bad: 1, help: "Breaches in each window." + noModel,
			targets: []target{{q.increase("sluice_ledger_violations_total", []string{"law"}), "{{law}}"}},
		},
		{
			title: "Requests: Submitted less Ended less in Flight", unit: number, below: true, bad: 1, help: "0 at every scrape: every request that came is under way or has ended in one outcome.",
			targets: []target{{
				q.total("sluice_requests_submitted_total", q.options.Replica) + "\n- " + q.total("sluice_request_outcomes_total", q.options.Replica) +
					"\n- " + q.total("sluice_requests_in_flight", q.options.Replica), q.options.legend(),
			}},
		},
		{
			title: "Requests Submitted and Ended", unit: reqPerSec, targets: []target{
				{q.rate("sluice_requests_submitted_total", byModel), "submitted " + modelLegend},
				{q.rate("sluice_request_outcomes_total", byModel), "ended " + modelLegend},
			},
		},
		{
			title: "KV: Capacity less Free, Cached and Used", unit: tokens, below: true, help: "Law E1 as the gauges of a report tell it: 0. Used holds what is reserved; a scrape amid a report may differ for a moment.",
			targets: []target{{
				q.total("sglang:max_total_num_tokens", q.options.Replica) + "\n- " + q.total("sglang:kv_available_tokens", q.options.Replica) +
					"\n- " + q.total("sglang:kv_evictable_tokens", q.options.Replica) + "\n- " + q.total("sglang:kv_used_tokens", q.options.Replica), q.options.legend(),
			}},
		},
		{
			title: "Scheduler Time Accounted for", unit: ratio, empty: "the scheduler has not flushed its times in this window",
			help:    "Seconds of all categories of the loop per second: 1 for every data-parallel rank of the replica.",
			targets: []target{{q.rate("sglang:scheduler_stage_seconds_total", q.options.Replica), q.options.legend()}},
		},
	}
}

func storePanels(q *queries) []panel {
	return []panel{
		{
			title: "Processes that Write Metrics", unit: number, help: "Counters of those that ended still count." + noModel,
			targets: []target{{q.total("sluice_metrics_store_processes", []string{"state"}), "{{state}}"}},
		},
		{
			title: "Faults of the Store", unit: number, bad: 1, help: "Stores and series that could not be read or written, by reason, and series that wait for room on the disk." + noModel,
			targets: []target{
				{q.increase("sluice_metrics_store_faults_total", []string{"reason"}), "{{reason}}"},
				{q.total("sluice_metrics_store_waiting_series", nil), "waiting for room"},
			},
		},
		{
			title: "Series", unit: number, help: "Series that /metrics has." + noModel,
			targets: []target{{q.total("sluice_metrics_series", q.options.Replica), q.options.legend()}},
		},
		{
			title: "Label Values Refused", unit: number, warn: 1, empty: "no family has a budget: --metrics-max-label-values", help: "Updates whose label values were beyond --metrics-max-label-values and count under other, by family." + noModel,
			targets: []target{{q.increase("sluice_metrics_label_values_refused_total", []string{"family"}), "{{family}}"}},
		},
		{
			title: "Spans Lost", unit: number, warn: 1, help: "Spans that no collector got: it is slow or gone, or the queue of the export was full. Requests don't wait for it." + noModel,
			targets: []target{{q.increase("sluice_trace_spans_lost_total", q.options.Replica), q.options.legend()}},
		},
	}
}
