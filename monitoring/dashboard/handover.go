package dashboard

// noTransfer is shown where engines hand nothing over.
const noTransfer = "no hand-over in this window, or no prefill and decode engines"

func handoverPanels(q *queries) []panel {
	replica, legend := q.options.Replica, q.options.legend()
	return []panel{
		{
			title: "Queues of Prefill Engines", unit: number, empty: "no prefill engine", help: "Requests whose bootstrap the decode engine has not done yet, and those whose KV is still being sent.",
			targets: []target{
				{q.total("sglang:num_prefill_bootstrap_queue_reqs", replica), "bootstrap " + legend},
				{q.total("sglang:num_prefill_inflight_queue_reqs", replica), "inflight " + legend},
			},
		},
		{
			title: "Queues of Decode Engines", unit: number, empty: "no decode engine",
			help: "Requests that wait for pages, whose KV is arriving, and that have ended while a transfer may still touch their pages.",
			targets: []target{
				{q.total("sglang:num_decode_prealloc_queue_reqs", replica), "prealloc " + legend},
				{q.total("sglang:num_decode_transfer_queue_reqs", replica), "transfer " + legend},
				{q.total("sglang:num_decode_host_receive_queue_reqs", replica), "host receive " + legend},
				{q.total("sglang:num_decode_deferred_kv_release_reqs", replica), "deferred release " + legend},
			},
		},
		{
			title: "Transfer Time", unit: milliseconds, empty: noTransfer, targets: quantiles(q, "sglang:kv_transfer_latency_ms"),
			help: "Time of one KV transfer after the prompt was computed: what the forward passes did not hide.",
		},
		{
			title: "Transfer Speed", unit: gibPerSec, empty: noTransfer, targets: quantiles(q, "sglang:kv_transfer_speed_gb_s"),
			help: "Bytes of one KV transfer over its time.",
		},
		{
			title: "Transferred", unit: "MiBs", empty: noTransfer, help: "KV handed over per second.",
			targets: []target{{q.grown("rate", "sglang:kv_transfer_total_mb", "_sum", replica, nil), legend}},
		},
		{
			title: "Bytes of Ended Hand-overs", unit: "binBps", empty: noTransfer,
			help: "KV bytes per second of hand-overs that have ended, by how: sent and done is what decode engines received. Failed ones were sent for nothing.",
			targets: []target{
				{q.rate("sluice_kv_sent_bytes_total", []string{"outcome"}), "sent {{outcome}}"},
				{q.rate("sluice_kv_received_bytes_total", []string{"outcome"}), "received {{outcome}}"},
			},
		},
		{
			title: "KV of a Request", unit: mebibytes, empty: noTransfer, help: "Bytes of one KV transfer.", targets: quantiles(q, "sglang:kv_transfer_total_mb"),
		},
		{
			title: "Bootstrap", unit: milliseconds, empty: noTransfer, help: "Until the two engines of a transfer had met, as each side saw it.",
			targets: quantiles(q, "sglang:kv_transfer_bootstrap_ms"),
		},
		{
			title: "Wait for Pages", unit: milliseconds, empty: noTransfer, help: "Wait of a transfer for KV pages. Long on decode engines: their memory is what requests wait for.",
			targets: quantiles(q, "sglang:kv_transfer_alloc_ms"),
		},
		{
			title: "Memory Asked for by Waiting Transfers", unit: ratio, warn: 0.5, bad: 1, empty: "no decode engine",
			help:    "Tokens that wait for pages over the capacity of the pool, of the rank with most.",
			targets: []target{{q.highest("sglang:pending_prealloc_token_usage", replica), legend}},
		},
		{
			title: "Failures of the Hand-over", unit: reqPerSec, warn: 0.01, bad: 0.1, empty: "no prefill and decode engines",
			help: "Requests whose engines did not meet, whose transfer failed, and prompts that were computed again.",
			targets: []target{
				{q.rate("sglang:num_bootstrap_failed_reqs_total", replica), "bootstrap " + legend},
				{q.rate("sglang:num_transfer_failed_reqs_total", replica), "transfer " + legend},
				{q.rate("sglang:num_prefill_retries_total", replica), "computed again " + legend},
			},
		},
		{
			title: "Deferred Release", unit: perSec, empty: "no transfer outlived its request", help: "Ended requests whose pages a transfer kept, by why they were free in the end.",
			targets: []target{{q.rate("sglang:decode_deferred_kv_release_total", []string{"outcome"}), "{{outcome}}"}},
		},
		{
			title: "Pages Held for Transfers", unit: requests, empty: "no decode engine", help: "Mean number of ended requests whose pages a transfer kept: the seconds that they were kept, per second.",
			targets: []target{{q.grown("rate", "sglang:decode_deferred_kv_release_seconds", "_sum", replica, nil), legend}},
		},
	}
}
