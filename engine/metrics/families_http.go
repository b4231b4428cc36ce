package metrics

// The API process: HTTP.
var (
	httpRequests  = http(counter("sglang:http_requests_total", "requests", "HTTP requests received.", OnAll, "endpoint", "method"))
	httpResponses = http(counter("sglang:http_responses_total", "responses", "HTTP responses begun.", OnAll, "endpoint", "method", "status_code"))
	httpActive    = &Family{
		Name: "sglang:http_requests_active", Kind: Gauge, Help: "HTTP requests in flight.", Unit: "requests", Source: FromHTTP,
		Labels: []string{"endpoint", "method"}, Merge: LiveSum, Engines: OnAll, SumOver: overEndpoint,
	}
	// A key with requests in several API processes counts in each.
	routingKeysActive = &Family{
		Name: "sglang:routing_keys_active", Kind: Gauge, Help: "Distinct routing keys of requests in flight.", Unit: "keys", Source: FromProcess,
		Merge: LiveSum, Engines: OnAll,
	}
)

// The API process about its own work.
var (
	funcLatency = &Family{
		Name: "sglang:func_latency_seconds", Kind: Histogram, Help: "Time of functions of the API process: generate_request from arrival to answer, tokenize_request of it until the prompt is tokens, dispatch_request to hand a sequence over, get_loads.", Unit: "seconds",
		Source: FromProcess, Labels: []string{"name"}, Buckets: bucketsFunc, Engines: OnAll,
	}
	startupBreakdown = &Family{
		Name: "sglang:startup_latency_breakdown_seconds_max", Kind: Gauge, Help: "Longest time of a step of the start.", Unit: "seconds",
		Source: FromProcess, Labels: []string{"context"}, Merge: MostRecent, Engines: OnAll,
	}
)

// httpFamilies are what the API process tells about HTTP.
var httpFamilies = []*Family{
	httpRequests,
	httpResponses,
	httpActive,
	routingKeysActive,
	funcLatency,
	startupBreakdown,
}
