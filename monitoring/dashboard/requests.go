package dashboard

import "fmt"

// byClients are the outcomes that clients bring about.
const byClients = "aborted_client|invalid|too_long"

func requestPanels(q *queries) []panel {
	return []panel{
		{
			title: "Inter-Token Latency", unit: seconds, empty: noTraffic, targets: quantiles(q, "sglang:inter_token_latency_seconds"),
			help: "Interval between two output batches over the tokens of the second: one sample a token, the first token apart.",
		},
		{
			title: "Time per Output Token", unit: seconds, empty: noTraffic, targets: quantiles(q, "sglang:request_time_per_output_token_seconds"),
			help: "From a request's first token to its end, over its tokens after the first: one sample a request.",
		},
		{
			title: "Kept to the SLO", unit: ratio, top: 1, empty: "no request in this window, or the engine has other buckets",
			help: fmt.Sprintf("Share of requests whose first token came within %v s, and of tokens that followed within %v s.", q.options.TTFT, q.options.ITL),
			targets: []target{
				{q.within(q.options.TTFT, "sglang:time_to_first_token_seconds", byModel), "TTFT " + modelLegend},
				{q.within(q.options.ITL, "sglang:inter_token_latency_seconds", byModel), "ITL " + modelLegend},
			},
		},
		{
			title: "First Token by Kind of Answer", unit: seconds, empty: noTraffic,
			help: "Mean time to the first token. Do all requests wait, or those that stream or do not?",
			targets: []target{
				{q.mean("sglang:time_to_first_token_seconds", []string{"model_name", "engine_type", "is_streaming"}), modelLegend + " streaming {{is_streaming}}"},
			},
		},
		{
			title: "Requests", unit: reqPerSec, help: "Finished requests per second, aborted ones included.",
			targets: []target{{q.rate("sglang:num_requests_total", []string{"model_name", "engine_type", "is_streaming"}), modelLegend + " streaming {{is_streaming}}"}},
		},
		{
			title: "Outcomes", unit: reqPerSec, look: stacked,
			help:    "Requests that ended, by how. Every request ends in exactly one outcome on each engine that it passes: twice on prefill and decode engines.",
			targets: []target{{q.rate("sluice_request_outcomes_total", []string{"engine_type", "outcome"}), "{{engine_type}} {{outcome}}"}},
		},
		{
			title: "Requests in Flight", unit: number, help: "Requests that have not ended, wherever they are.",
			targets: []target{{q.total("sluice_requests_in_flight", q.options.Replica), q.options.legend()}},
		},
		{
			title: "Ended without an Answer", unit: ratio, help: "Share of ended requests that no stop and no limit ended, by whose doing it was.", warn: 0.01, bad: 0.05, empty: noTraffic,
			targets: []target{
				{share(q.rate("sluice_request_outcomes_total", byModel, `outcome!~"stop|length|`+byClients+`"`), q.rate("sluice_request_outcomes_total", byModel)), "engine " + modelLegend},
				{share(q.rate("sluice_request_outcomes_total", byModel, `outcome=~"`+byClients+`"`), q.rate("sluice_request_outcomes_total", byModel)), "clients " + modelLegend},
			},
		},
		{
			title: "Tokens of Finished Requests", unit: tokensPerSec, help: "Prompt tokens, and tokens generated, of the requests that finished.",
			targets: []target{
				{q.rate("sglang:prompt_tokens_total", byModel), "prompt " + modelLegend},
				{q.rate("sglang:generation_tokens_total", byModel), "generated " + modelLegend},
			},
		},
		{
			title: "Aborts and Structured Answers", unit: reqPerSec, help: "Aborts sent to the scheduler, and finished requests whose answer a grammar bounded.",
			targets: []target{
				{q.rate("sglang:num_aborted_requests_total", byModel), "aborts " + modelLegend},
				{q.rate("sglang:num_so_requests_total", byModel), "structured " + modelLegend},
			},
		},
		{
			title: "Prompt Tokens of a Request", unit: tokens, empty: noTraffic,
			help: "Lengths of prompts, and what of them had to be computed. A good hit rate with a long tail here still costs a long first token.",
			targets: []target{
				{q.quantile(0.99, "sglang:prompt_tokens_histogram", byModel), "prompt P99 " + modelLegend},
				{q.quantile(0.5, "sglang:prompt_tokens_histogram", byModel), "prompt P50 " + modelLegend},
				{q.quantile(0.99, "sglang:uncached_prompt_tokens_histogram", byModel), "computed P99 " + modelLegend},
				{q.quantile(0.5, "sglang:uncached_prompt_tokens_histogram", byModel), "computed P50 " + modelLegend},
			},
		},
		{
			title: "Generated Tokens of a Request", unit: tokens, empty: noTraffic, help: "Lengths of answers.",
			targets: quantiles(q, "sglang:generation_tokens_histogram"),
		},
	}
}
