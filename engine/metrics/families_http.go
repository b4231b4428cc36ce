package metrics

// The API process: HTTP.
var (
	httpRequests  = http(counter("sglang:http_requests_total", "requests", "HTTP requests received.", OnAll, "endpoint", "method"))
	httpResponses = http(counter("sglang:http_responses_total", "responses", "HTTP responses begun.", OnAll, "endpoint", "method", "status_code"))
	httpActive    = &Family{
		Name: "sglang:http_requests_active", Kind: Gauge, Help: "HTTP requests in flight.", Unit: "requests", Source: FromHTTP,
		Labels: []string{"endpoint", "method"}, Merge: LiveSum, Engines: OnAll, SumOver: overEndpoint,
	}
)

// httpFamilies are what the API process tells about HTTP.
var httpFamilies = []*Family{
	httpRequests,
	httpResponses,
	httpActive,
}
