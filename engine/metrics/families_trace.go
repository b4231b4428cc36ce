package metrics

// traceSpansLost is what every process that makes spans tells of them. The ranks' and the API process's add up.
var traceSpansLost = &Family{
	Name: "sluice_trace_spans_lost_total", Kind: Counter, Unit: "spans", Source: FromProcess, Engines: OnAll,
	Help: "Spans that no collector got: the queue of the export was full, or the collector took no message with them.",
}

// traceFamilies are what is told of the traces.
var traceFamilies = []*Family{traceSpansLost}
