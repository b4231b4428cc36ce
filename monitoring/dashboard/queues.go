package dashboard

func queuePanels(q *queries) []panel {
	replica, legend := q.options.Replica, q.options.legend()
	byPriority := []string{priority}
	return []panel{
		{
			title: "Queue Time", unit: seconds, empty: noTraffic, targets: quantiles(q, "sglang:queue_time_seconds"),
			help: "Wait of a request before its first forward pass. Later waits, after a retraction, are in the request's own record.",
		},
		{
			title: "Running Against the Cap", unit: ratio, warn: 0.8, bad: 1, empty: "a prefill engine has no cap",
			help:    "Running requests over the number at which utilization reads 1. At 1 with a growing queue, the cap is what holds requests back.",
			targets: []target{{share(q.total("sglang:num_running_reqs", replica), q.total("sglang:max_running_requests_under_SLO", replica)), legend}},
		},
		{
			title: "Utilization", unit: ratio, warn: 0.8, bad: 1, empty: "a prefill engine has no utilization",
			help:    "The larger of running requests over their cap and of KV usage over 0.9, of the busiest rank. May exceed 1, and stays at its last value while nothing runs.",
			targets: []target{{q.highest("sglang:utilization", replica) + " >= 0", legend}},
		},
		{
			title: "Waiting by Priority", unit: number, empty: "priority scheduling is off, or no request had a priority",
			help:    "Requests in the waiting queue. The totals of the panel above count them too.",
			targets: []target{{q.total("sglang:num_queue_reqs", byPriority, `priority!=""`), "priority {{priority}}"}},
		},
		{
			title: "Running by Priority", unit: number, empty: "priority scheduling is off, or no request had a priority",
			targets: []target{{q.total("sglang:num_running_reqs", byPriority, `priority!=""`), "priority {{priority}}"}},
		},
		{
			title: "Not Waiting for a Place", unit: number, help: "Requests whose grammar is being compiled, and those that a pause keeps where they are.",
			targets: []target{
				{q.total("sglang:num_grammar_queue_reqs", replica), "grammar " + legend},
				{q.total("sglang:num_paused_reqs", replica), "paused " + legend},
			},
		},
		{
			title: "Refused by the Queue", unit: reqPerSec, warn: 0.01, help: "Requests that got no place in a batch, by reason.",
			targets: []target{{q.rate("sglang:num_queue_rejected_requests_total", []string{"reason"}), "{{reason}}"}},
		},
		{
			title: "Room Kept for Answers", unit: ratio, help: "Part of the tokens that requests may still generate for which admission keeps room. It rises when requests are retracted.",
			targets: []target{{q.highest("sglang:new_token_ratio", replica), legend}},
		},
		{
			title: "Length of Running Sequences", unit: tokens, empty: "nothing is decoded",
			help:    "Mean length of the sequences in the decode batch: what a decode step has to read.",
			targets: []target{{share(q.total("sglang:decode_sum_seq_lens", replica), q.total("sglang:num_running_reqs", replica)), legend}},
		},
		{
			title: "Routing Keys by Running Requests", unit: number, look: stacked, empty: "no running request has a routing key",
			help:    "Distinct routing keys with that many running requests: few keys with many requests make hot spots.",
			targets: []target{{q.total("sglang:routing_key_running_req_count", []string{"gt", "le"}), "more than {{gt}}, at most {{le}}"}},
		},
		{
			title: "Routing Keys by All Requests", unit: number, look: stacked, empty: "no request has a routing key",
			help:    "The same with waiting requests.",
			targets: []target{{q.total("sglang:routing_key_all_req_count", []string{"gt", "le"}), "more than {{gt}}, at most {{le}}"}},
		},
		{
			title: "Running Routing Keys", unit: number, help: "Distinct routing keys of running requests of the rank with most. Kept while a running request has none.",
			targets: []target{{q.highest("sglang:num_unique_running_routing_keys", replica), legend}},
		},
	}
}
