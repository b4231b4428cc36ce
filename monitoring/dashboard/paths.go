package dashboard

import (
	"slices"
	"strings"
)

// path is one of the five ways from a complaint to its cause, as docs/diagnosis.md goes them.
type path struct {
	title  string
	anchor string // in docs/diagnosis.md
	// reading says which number decides what, line by line.
	reading []string
	panels  func(q *queries) []panel
}

// paths are in the order in which they are read.
var paths = []path{
	{
		"1. P99 is worse: does it wait, or is it computed slowly?", "p99-is-worse-does-it-wait-or-is-it-computed-slowly",
		[]string{
			"**Queue time up, running near the cap, queue growing:** the cap is the limit. More replicas, or a higher `--max-running-requests`.",
			"**Queue time up, KV usage at 0.9 or more:** memory is the limit.",
			"**Queue time up, both low:** admission holds requests back: grammars, a pause, priorities.",
			"**Queue time flat:** steps are dearer. `prefill_forward` up: path 2. Inter-token latency up: path 4.",
		},
		func(q *queries) []panel {
			return slices.Concat(
				pick(q, queuePanels(q), "Queue Time"), pick(q, stagePanels(q), "Time of a Stage, P99"), pick(q, requestPanels(q), "Inter-Token Latency"),
				pick(q, queuePanels(q), "Running Against the Cap"), pick(q, original(q), "Number Queued Requests"), pick(q, memoryPanels(q), "KV Usage by Pool"))
		},
	},
	{
		"2. The hit rate is good and the first token is late", "the-hit-rate-is-good-and-the-first-token-is-late",
		[]string{
			"**Hits drift away from `device`:** the device's cache is too small for what is shared.",
			"**A long tail of computed tokens:** a few long prompts share nothing. Smaller chunks let others through.",
			"**The repeated share is up:** retracted requests are computed again. Memory is short.",
			"**None of these:** it is not the prefix cache. Back to path 1.",
		},
		func(q *queries) []panel {
			return slices.Concat(
				pick(q, original(q), "Cache Hit Rate"), pick(q, memoryPanels(q), "Cached Tokens by Source"), pick(q, requestPanels(q), "Prompt Tokens of a Request"),
				pick(q, retractionPanels(q), "Repeated Share of Prefill", "Retracted Requests"), pick(q, original(q), "Time-To-First-Token Latency"))
		},
	},
	{
		"3. Some ranks are busier than others", "some-ranks-are-busier-than-others",
		[]string{
			"**Some idle much, queues uneven:** routing sends requests to the wrong ranks.",
			"**Nobody idles, queues even, the busiest far over the mean:** lengths differ. Balance by tokens.",
			"**Near 1:** the ranks are alike; the complaint is about something else.",
		},
		func(q *queries) []panel {
			return pick(q, rankPanels(q), "Waiting by Rank", "Tokens by Rank", "Idle by Rank", "Busiest Rank over the Mean")
		},
	},
	{
		"4. Tokens come slowly", "tokens-come-slowly",
		[]string{
			"**Occupancy high:** the device is the limit: longer sequences, or prefill between decodes.",
			"**Occupancy down, idle up:** requests do not arrive. Path 5.",
			"**Occupancy down, nobody idle:** the loop says what it does instead: `recv_requests` waits for input or for other ranks, `process_batch_result` works on answers, `get_next_batch_to_run` decides.",
		},
		func(q *queries) []panel {
			return slices.Concat(
				pick(q, original(q), "Token Generation Throughput (Tokens / S)", "Num Running Requests"),
				pick(q, schedulerPanels(q), "Device Occupancy", "Device Time by Work", "What the Loop Does", "Hidden Behind the Device", "Idle"),
				pick(q, queuePanels(q), "Length of Running Sequences"))
		},
	},
	{
		"5. All engines are slow at once", "all-engines-are-slow-at-once",
		[]string{
			"**One endpoint up:** clients: more of them, or longer answers.",
			"**Many routing keys on each engine:** the balancer spreads what belongs together.",
			"**`tokenize_request` and `dispatch_request` up, the loop flat:** the API process is the limit.",
			"**The router waits for a usable engine:** engines of a role are missing, draining or set aside.",
		},
		func(q *queries) []panel {
			return slices.Concat(
				pick(q, httpPanels(q), "HTTP Requests in Flight", "Routing Keys in Flight", "Functions of the API Process"),
				pick(q, routerPanels(q), "Added by the Router", "Wait for a Usable Engine", "Engines that the Router Knows"))
		},
	},
}

// readFirst is the order in which to read.
func readFirst(q *queries) []panel {
	return []panel{words("The order in which to read", q.options.Docs, "the-order-in-which-to-read", []string{
		"**Who is slow?** First tokens or the others, all requests or some.",
		"**Do requests wait, or are they computed slowly?** Path 1.",
		"**What are they short of?** Memory, a place in the batch, the prefix cache, the other engine of a hand-over. Paths 1 and 2.",
		"**Is it one rank?** Path 3. **Is it each step?** Path 4. **Is it before the engine?** Path 5.",
		"What happened to one request is in its own record: `/debug/requests` of the engines and of the router.",
	})}
}

func diagnosisRows(q *queries) []row {
	list := make([]row, 0, len(paths)+2)
	for _, p := range paths {
		list = append(list, row{p.title, append([]panel{words("How to read it", q.options.Docs, p.anchor, p.reading)}, p.panels(q)...)})
	}
	return append(list, row{"Do the numbers hold?", ledgerPanels(q)}, row{"Metrics Store", storePanels(q)})
}

// words are lines to read, and where there is more.
func words(title, docs, anchor string, lines []string) panel {
	text := "- " + strings.Join(lines, "\n- ")
	if docs != "" {
		text += "\n\n[More in the documentation](" + strings.TrimSuffix(docs, "/") + "/diagnosis.md#" + anchor + ")"
	}
	return panel{title: title, look: prose, width: 24, height: uint32(4 + len(lines)), text: text}
}
