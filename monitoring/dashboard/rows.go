package dashboard

// rows are the groups below the first eight panels, in the order in which one looks for a cause: what clients feel, where
// requests wait, what memory and the hand-over do, where time goes, and at last the engine itself.
func rows(q *queries) []row {
	return []row{
		{"Requests and SLO", requestPanels(q)},
		{"Queues and Utilization", queuePanels(q)},
		{"KV Pools and Prefix Cache", memoryPanels(q)},
		{"Retraction", retractionPanels(q)},
		{"Prefill and Decode", handoverPanels(q)},
		{"Stages of a Request", stagePanels(q)},
		{"Scheduler Time", schedulerPanels(q)},
		{"Ranks", rankPanels(q)},
		{"Grammars", grammarPanels(q)},
		{"HTTP and API Process", httpPanels(q)},
		{"Router", routerPanels(q)},
		{"Engine and Start", enginePanels(q)},
		{"Ledger", ledgerPanels(q)},
		{"Metrics Store and Traces", storePanels(q)},
	}
}

// byModel and its legend tell models and engine types apart.
var byModel = []string{"model_name", "engine_type"}

const modelLegend = "{{model_name}} {{engine_type}}"

// quantiles are the lines of a histogram of times or sizes, by model.
func quantiles(q *queries, family string, where ...string) []target {
	return []target{
		{q.quantile(0.99, family, byModel, where...), "P99 " + modelLegend},
		{q.quantile(0.9, family, byModel, where...), "P90 " + modelLegend},
		{q.quantile(0.5, family, byModel, where...), "P50 " + modelLegend},
		{q.mean(family, byModel, where...), "Avg " + modelLegend},
	}
}
