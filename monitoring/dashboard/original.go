package dashboard

// original are the eight panels of SGLang's dashboard, with their titles, ids and places.
func original(q *queries) []panel {
	replica, legend := q.options.Replica, q.options.legend()
	latency := func(id uint32, title, family, help string) panel {
		p := panel{id: id, title: title, unit: seconds, empty: noTraffic, help: help}
		p.targets = quantiles(q, family)
		return p
	}
	heatmap := func(id uint32, title, family, help string) panel {
		return panel{id: id, title: title, unit: seconds, look: heat, empty: noTraffic, help: help, targets: []target{{q.heat(family), "{{le}}"}}}
	}
	return []panel{
		latency(14, "End-to-End Request Latency", "sglang:e2e_request_latency_seconds", "From the arrival of a request to its end."),
		heatmap(17, "End-to-End Request Latency(s) Heatmap", "sglang:e2e_request_latency_seconds", "Requests by how long they took."),
		latency(20, "Time-To-First-Token Latency", "sglang:time_to_first_token_seconds",
			"From the arrival of a request to its first output. A prefill engine has none: its decode engine tells it."),
		heatmap(19, "Time-To-First-Token Seconds Heatmap", "sglang:time_to_first_token_seconds", "Requests by how long their first output took."),
		{
			id: 7, title: "Num Running Requests", unit: number, help: "Requests in the running batch; on a prefill engine those of the batch just computed. Copies of ranks are counted once.",
			targets: []target{{q.total("sglang:num_running_reqs", replica), legend}},
		},
		{
			id: 18, title: "Token Generation Throughput (Tokens / S)", unit: tokensPerSec,
			help: "Decoded tokens per second, from the counter. The dashed figure is the engine's own of its last decode window, which lasts until the next one or 30 s.",
			targets: []target{
				{q.rate("sglang:realtime_tokens_total", replica, `mode="decode"`), legend},
				{q.total("sglang:gen_throughput", replica), legend + " last window"},
			},
		},
		{
			id: 11, title: "Cache Hit Rate", unit: ratio, top: 1, empty: "no prompt was computed in this window",
			help: "Share of the prompt tokens of this window that were found in the prefix cache, from the counters, without those of retracted requests that are computed again. SGLang's gauge is the last prefill batch alone and says nothing of the window.",
			targets: []target{{share(
				q.rate("sglang:prefill_effective_tokens_total", replica, `mode=~".*_hit"`),
				q.rate("sglang:prefill_effective_tokens_total", replica),
			), legend}},
		},
		{
			id: 8, title: "Number Queued Requests", unit: number, warn: 32, bad: 256, help: "Requests in the waiting queue of the scheduler.",
			targets: []target{{q.total("sglang:num_queue_reqs", replica), legend}},
		},
	}
}
