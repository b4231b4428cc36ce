package dashboard

func memoryPanels(q *queries) []panel {
	replica, legend := q.options.Replica, q.options.legend()
	return []panel{
		{
			title: "KV Usage by Pool", unit: ratio, top: 1, warn: 0.8, bad: 0.95,
			help: "Locked share of each pool, of the fullest rank. Cached pages that no request locks are not in it. Beyond 0.9, retractions are near.",
			targets: []target{
				{q.highest("sglang:token_usage", replica), "fullest " + legend},
				{q.highest("sglang:full_token_usage", replica), "full attention " + legend},
				{q.highest("sglang:swa_token_usage", replica), "sliding window " + legend},
			},
		},
		{
			title: "KV Tokens", unit: tokens, look: stacked, help: "Tokens of the pools' pages that running work locks, that hold cached KV, and that are free. Together they are the capacity.",
			targets: []target{
				{q.total("sglang:kv_used_tokens", nil), "used"},
				{q.total("sglang:kv_evictable_tokens", nil), "cached"},
				{q.total("sglang:kv_available_tokens", nil), "free"},
			},
		},
		{
			title: "KV Tokens of Sliding-Window Layers", unit: tokens, look: stacked, empty: "no model with sliding-window layers", help: "The same for the pool of layers that look at a window.",
			targets: []target{
				{q.total("sglang:swa_used_tokens", nil), "used"},
				{q.total("sglang:swa_evictable_tokens", nil), "cached"},
				{q.total("sglang:swa_available_tokens", nil), "free"},
			},
		},
		{
			title: "KV Tokens in Use", unit: tokens, help: "Tokens in use, and of these the ones that sessions keep between their turns.",
			targets: []target{
				{q.total("sglang:num_used_tokens", replica), "in use " + legend},
				{q.total("sglang:streaming_session_held_tokens", replica), "sessions " + legend},
			},
		},
		{
			title: "Streaming Sessions", unit: number, empty: "sessions are off: --enable-streaming-session", help: "Open streaming sessions.",
			targets: []target{{q.total("sglang:num_streaming_sessions", replica), legend}},
		},
		{
			title: "Hit Rate by Source", unit: ratio, top: 1, empty: "no prompt was computed in this window",
			help: "Share of prompt tokens found in a cache, by where, without those of retracted requests that are computed again.",
			targets: []target{{shareOfAll(
				q.rate("sglang:prefill_effective_tokens_total", []string{"mode"}, `mode!="input"`),
				q.rate("sglang:prefill_effective_tokens_total", nil),
			), "{{mode}}"}},
		},
		{
			title: "Prompt Tokens, Computed and Found", unit: tokensPerSec, look: stacked, help: "What prefill did with prompt tokens, repeated work included.",
			targets: []target{{q.rate("sglang:realtime_tokens_total", []string{"mode"}, `mode=~"prefill_.*"`), "{{mode}}"}},
		},
		{
			title: "Cached Tokens by Source", unit: tokensPerSec, look: stacked, empty: "no cached token in this window",
			help:    "Prompt tokens of finished requests that came from a cache, by where it is. A drift from device to slower sources makes hits dearer. Prefill and decode engines both tell of the same tokens.",
			targets: []target{{q.rate("sglang:cached_tokens_total", []string{"engine_type", "cache_source"}), "{{engine_type}} {{cache_source}}"}},
		},
		{
			title: "Hit Rate of the Last Prefill", unit: ratio, top: 1, help: "SGLang's gauge: the last prefill batch alone, kept until the next.",
			targets: []target{{q.highest("sglang:cache_hit_rate", replica), legend}},
		},
		{
			title: "Evictions", unit: tokensPerSec, empty: "nothing was evicted yet, or the engine has no prefix cache", help: "Tokens whose KV the prefix cache gave up.",
			targets: []target{{q.rate("sglang:evicted_tokens_total", replica), legend}},
		},
		{
			title: "Time of an Eviction", unit: seconds, empty: "nothing was evicted in this window", help: "Time of one eviction that freed something; it holds the scheduler up.",
			targets: []target{
				{q.quantile(0.99, "sglang:eviction_duration_seconds", replica), "P99 " + legend},
				{q.mean("sglang:eviction_duration_seconds", replica), "Avg " + legend},
			},
		},
	}
}

func retractionPanels(q *queries) []panel {
	replica, legend := q.options.Replica, q.options.legend()
	return []panel{
		{
			title: "Retracted Requests", unit: reqPerSec, warn: 0.1, bad: 1, help: "Requests per second that lost their KV to others and are computed again.",
			targets: []target{{q.rate("sglang:num_retracted_requests_total", replica), legend}},
		},
		{
			title: "Retracted Tokens", unit: tokensPerSec, help: "Prompt tokens and generated tokens of retracted requests: the work that is done twice.",
			targets: []target{
				{q.rate("sglang:num_retracted_input_tokens_total", replica), "prompt " + legend},
				{q.rate("sglang:num_retracted_output_tokens_total", replica), "generated " + legend},
			},
		},
		{
			title: "Retracted at Once", unit: number, help: "Requests of the last retraction before a report.",
			targets: []target{{q.total("sglang:num_retracted_reqs", replica), legend}},
		},
		{
			title: "Repeated Share of Prefill", unit: ratio, top: 1, empty: "no prompt was computed in this window",
			help: "Share of the prompt tokens of prefill batches that belong to work done before. In the window after a restart it means nothing.",
			targets: []target{{"1 - " + share(
				q.growth("sglang:prefill_effective_tokens_total", replica),
				q.growth("sglang:realtime_tokens_total", replica, `mode=~"prefill_compute|prefill_cache"`),
			), legend}},
		},
	}
}
