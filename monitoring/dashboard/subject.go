package dashboard

import (
	"fmt"
	"slices"
)

// Subject is what one dashboard of a set is about.
type Subject struct {
	Key   string // a DNS label of at most 12 characters, for names and UIDs
	Title string
	Help  string

	// top are the panels above the first row, rows what is below.
	top  func(*queries) []panel
	rows func(*queries) []row
}

// Subjects are the dashboards of a set, in the order in which they are read. Together they have every panel of the single
// dashboard.
func Subjects() []Subject {
	return []Subject{
		{"overview", "Overview", "What the services do, for whom, and whether they keep to what they should.", overviewPanels, overviewRows},
		{"pipeline", "Prefill and Decode", "Where requests are between the router and their last token, and how KV gets from prefill to decode.", pipelinePanels, pipelineRows},
		{"ranks", "Ranks", "Every rank beside the others: who has the work, who waits, and what the scheduler does with its time.", rankHeats, rankRows},
		{"memory", "Cache and Memory", "What KV memory holds, what the prefix cache saves, and what retraction costs.", nil, memoryRows},
		{"requests", "Requests and SLO", "Latencies, outcomes and queues of requests.", nil, requestRows},
		{"diagnosis", "Diagnosis", "Five complaints, and for each the numbers that decide what is behind it, in the order in which to read them.", readFirst, diagnosisRows},
	}
}

// BuildSubject gives the dashboard of one subject. Its title is that of the subject, then that of the options.
func BuildSubject(o Options, s Subject) (Dashboard, error) {
	o.UID += "-" + s.Key
	o.Title = s.Title + " / " + o.Title
	return assemble(o, s.Help, s.top, s.rows)
}

// overviewPanels are a line of single figures above the first eight panels of the single dashboard.
func overviewPanels(q *queries) []panel {
	figure := func(title, unit, expr, help string) panel {
		return panel{title: title, unit: unit, look: value, width: 4, height: 4, empty: "no traffic", help: help, targets: []target{{expr, "all"}}}
	}
	// A request passes a prefill and a decode engine; the decode engine's count is that of clients.
	const once = `engine_type!="prefill"`
	within := figure("Kept to the SLO", ratio, q.within(q.options.TTFT, "sglang:time_to_first_token_seconds", nil),
		fmt.Sprintf("Share of requests whose first token came within %v s.", q.options.TTFT))
	within.top = 1
	usage := figure("KV Usage", ratio, q.highest("sglang:token_usage", nil), "Locked share of KV memory, of the fullest rank.")
	usage.warn, usage.bad = 0.8, 0.95
	violations := figure("Violations", number, q.total("sluice_ledger_violations_total", nil), "Breaches of the conservation laws of the ledger since start. Anything but 0 is a fault of an engine.")
	violations.bad = 1
	return append([]panel{
		figure("Requests", reqPerSec, q.rate("sglang:num_requests_total", nil, once), "Requests that ended, per second."),
		figure("Tokens Generated", tokensPerSec, q.rate("sglang:realtime_tokens_total", nil, `mode="decode"`), "Tokens decoded per second."),
		figure("First Token, P99", seconds, q.quantile(0.99, "sglang:time_to_first_token_seconds", nil), "From the arrival of a request to its first output."),
		within, usage, violations,
	}, original(q)...)
}

func overviewRows(q *queries) []row {
	by, legend := []string{"inference_service"}, "{{inference_service}}"
	return []row{{"By Service", []panel{
		{title: "Running by Service", unit: number, targets: []target{{q.total("sglang:num_running_reqs", by), legend}}, help: "Requests in running batches, on prefill engines those of the batch just computed."},
		{title: "Waiting by Service", unit: number, targets: []target{{q.total("sglang:num_queue_reqs", by), legend}}, help: "Requests in waiting queues."},
		{title: "Tokens by Service", unit: tokensPerSec, targets: []target{{q.rate("sglang:realtime_tokens_total", by, `mode="decode"`), legend}}, help: "Tokens decoded per second."},
		{
			title: "Server Errors by Service", unit: ratio, warn: 0.01, bad: 0.05, empty: "no router is scraped, or it had no request", help: "Share of the routers' answers with a status of 500 or more.",
			targets: []target{{share(
				aggregate("sum", by, q.rate("sluice_router_requests_total", by, `code=~"5.."`)+" or 0 * "+q.rate("sluice_router_requests_total", by)), q.rate("sluice_router_requests_total", by),
			), legend}},
		},
		{title: "Utilization by Pool", unit: ratio, warn: 0.8, bad: 1, empty: "a prefill engine has no utilization", help: "Of the busiest rank. It stays at its last value while nothing runs.",
			targets: []target{{q.highest("sglang:utilization", []string{"inference_service", "pool"}) + " >= 0", "{{inference_service}} {{pool}}"}}},
		{title: "In Flight by Pool", unit: number, targets: []target{{q.total("sluice_requests_in_flight", []string{"inference_service", "pool"}), "{{inference_service}} {{pool}}"}}, help: "Requests that have not ended, wherever they are."},
	}}}
}

// pipelinePanels show all requests at once, by where they are.
func pipelinePanels(q *queries) []panel {
	at := func(family, legend string) target { return target{q.total(family, nil), legend} }
	return []panel{
		{
			title: "Where Requests Are", unit: requests, look: stacked, width: 24, height: 10, empty: "no prefill and decode engines",
			help: "Requests by queue, in the order in which they pass them. What grows is what everything behind it waits for.",
			targets: []target{
				at("sglang:num_prefill_bootstrap_queue_reqs", "1 prefill: bootstrap"),
				{q.total("sglang:num_queue_reqs", nil, `engine_type="prefill"`), "2 prefill: waiting"},
				{q.total("sglang:num_running_reqs", nil, `engine_type="prefill"`), "3 prefill: computed"},
				at("sglang:num_decode_prealloc_queue_reqs", "4 decode: prealloc"),
				at("sglang:num_prefill_inflight_queue_reqs", "5 prefill: inflight"),
				at("sglang:num_decode_transfer_queue_reqs", "6 decode: transfer"),
				{q.total("sglang:num_queue_reqs", nil, `engine_type="decode"`), "7 decode: waiting"},
				{q.total("sglang:num_running_reqs", nil, `engine_type="decode"`), "8 decode: running"},
			},
		},
		{
			title: "Tokens of Both Sides", unit: tokensPerSec, help: "Prompt tokens that prefill engines computed, and tokens that decode engines generated. Their ratio is that of prompts to answers; the pools have to fit it.",
			targets: []target{
				{q.rate("sglang:realtime_tokens_total", nil, `mode="prefill_compute"`), "prompt, computed"},
				{q.rate("sglang:realtime_tokens_total", nil, `mode="decode"`), "generated"},
			},
		},
		{
			title: "First Token through the Pipeline", unit: seconds, empty: noTraffic, help: "From the arrival of a request at the decode engine to its first token, and what the transfer of KV took of it.",
			targets: []target{
				{q.quantile(0.99, "sglang:time_to_first_token_seconds", nil), "first token P99"},
				{q.quantile(0.5, "sglang:time_to_first_token_seconds", nil), "first token P50"},
				{q.quantile(0.99, "sglang:kv_transfer_latency_ms", nil) + " / 1000", "transfer P99"},
			},
		},
	}
}

func pipelineRows(q *queries) []row {
	return []row{{"Hand-over", handoverPanels(q)}, {"Stages of a Request", stagePanels(q)}, {"Router", routerPanels(q)}}
}

// rankHeats show each rank as a line of a map: its colour is the value.
func rankHeats(q *queries) []panel {
	legend := q.options.legend() + " dp{{dp_rank}} tp{{tp_rank}} pp{{pp_rank}}"
	each := func(title, unit, expr, help string) panel {
		return panel{title: title, unit: unit, look: perRank, help: help, targets: []target{{expr, legend}}}
	}
	return []panel{
		each("Running, Rank by Rank", requests, q.each("sglang:num_running_reqs"), "Requests in the running batch of each rank."),
		each("Waiting, Rank by Rank", requests, q.each("sglang:num_queue_reqs"), "Requests in the waiting queue of each rank. One bright line: routing sends requests to the wrong ranks."),
		each("Tokens, Rank by Rank", tokensPerSec, q.eachRate("sglang:realtime_tokens_total", `mode=~"decode|prefill_compute"`), "Tokens that each rank computes per second."),
		each("KV Usage, Rank by Rank", ratio, q.each("sglang:full_token_usage"), "Locked share of each rank's KV memory."),
		each("Idle, Rank by Rank", ratio, q.eachRate("sglang:scheduler_idle_seconds_total"), "Part of the time in which each rank has no request."),
		each("Turns, Rank by Rank", perSec, q.eachRate("sglang:scheduler_iterations_total"), "Turns of each rank's scheduler per second. A dark line with requests stands still."),
	}
}

func rankRows(q *queries) []row {
	return []row{{"Rank by Rank", rankPanels(q)}, {"Scheduler Time", schedulerPanels(q)}, {"Engine and Start", enginePanels(q)}}
}

func memoryRows(q *queries) []row {
	return []row{{"KV Pools and Prefix Cache", memoryPanels(q)}, {"Retraction", retractionPanels(q)}}
}

func requestRows(q *queries) []row {
	return []row{{"Requests and SLO", requestPanels(q)}, {"Queues and Utilization", queuePanels(q)}, {"Grammars", grammarPanels(q)}, {"HTTP and API Process", httpPanels(q)}}
}

// pick gives the panels of these titles, in this order; a title that is not there fails the build.
func pick(q *queries, from []panel, titles ...string) []panel {
	list := make([]panel, 0, len(titles))
	for _, title := range titles {
		i := slices.IndexFunc(from, func(p panel) bool { return p.title == title })
		if i < 0 {
			q.missing = append(q.missing, "panel "+title)
			continue
		}
		p := from[i]
		p.id = 0
		list = append(list, p)
	}
	return list
}
