package metrics

// The API process: requests and tokens.
var (
	promptTokens        = front(counter("sglang:prompt_tokens_total", "tokens", "Prompt tokens of finished requests.", OnAll, "is_streaming"))
	generationTokens    = front(counter("sglang:generation_tokens_total", "tokens", "Generated tokens of finished requests.", OnAll, "is_streaming"))
	cachedTokens        = front(counter("sglang:cached_tokens_total", "tokens", "Prompt tokens served from the cache, by where they were.", OnAll, "cache_source"))
	promptHistogram     = front(histogram("sglang:prompt_tokens_histogram", "tokens", "Prompt lengths of finished requests.", OnAll, bucketsTokens))
	uncachedHistogram   = front(histogram("sglang:uncached_prompt_tokens_histogram", "tokens", "Prompt tokens that had to be computed, of finished requests.", OnAll, bucketsTokens))
	generationHistogram = front(histogram("sglang:generation_tokens_histogram", "tokens", "Output lengths of finished requests.", OnAll, bucketsTokens))
	timeToFirstToken    = front(histogram("sglang:time_to_first_token_seconds", "seconds", "Time from arrival to the first output batch.", OnUnified|OnDecode, bucketsTTFT, "is_streaming"))
	interTokenLatency   = front(histogram("sglang:inter_token_latency_seconds", "seconds", "Interval between output batches over their new tokens, one sample a token.", OnUnified|OnDecode, bucketsITL))
	timePerOutputToken  = front(histogram("sglang:request_time_per_output_token_seconds", "seconds", "Time from the first token to the end over the tokens after the first.", OnUnified|OnDecode, bucketsITL, "is_streaming"))
	e2eRequestLatency   = front(histogram("sglang:e2e_request_latency_seconds", "seconds", "Time from arrival to the end.", OnAll, bucketsE2E, "is_streaming"))
	numRequests         = front(counter("sglang:num_requests_total", "requests", "Finished requests, aborted ones included.", OnAll, "is_streaming"))
	numSORequests       = front(counter("sglang:num_so_requests_total", "requests", "Finished requests whose answer a grammar bounded.", OnAll))
	numAbortedRequests  = front(counter("sglang:num_aborted_requests_total", "requests", "Aborts sent to the scheduler.", OnAll))
	getLoadsDuration    = front(histogram("sglang:get_loads_duration_seconds", "seconds", "Time to serve /v1/loads.", OnAll, bucketsGetLoads))
	startupTime         = &Family{
		Name: "sglang:startup_time_seconds", Kind: Gauge, Help: "Time of a phase of the start, of the slowest rank.", Unit: "seconds",
		Source: FromFront, Labels: []string{"phase"}, Merge: MostRecent, Engines: OnAll,
	}
)

// The API process: what became of the requests. The three are read under one cut: at every scrape submitted is the sum of
// the outcomes plus in flight.
var (
	requestsSubmitted = front(counter("sluice_requests_submitted_total", "requests", "Sequences that clients asked for; a request that is refused before its prompts are known is one.", OnAll))
	requestOutcomes   = front(counter("sluice_request_outcomes_total", "requests", "Sequences that have ended, by how.", OnAll, "outcome"))
	requestsInFlight  = &Family{
		Name: "sluice_requests_in_flight", Kind: Gauge, Help: "Sequences that have not ended.", Unit: "requests", Source: FromFront,
		Merge: LiveSum, Engines: OnAll,
	}
)

// frontFamilies are what the API process tells about requests and tokens.
var frontFamilies = []*Family{
	promptTokens,
	generationTokens,
	cachedTokens,
	promptHistogram,
	uncachedHistogram,
	generationHistogram,
	timeToFirstToken,
	interTokenLatency,
	timePerOutputToken,
	e2eRequestLatency,
	numRequests,
	numSORequests,
	numAbortedRequests,
	getLoadsDuration,
	startupTime,
	requestsSubmitted,
	requestOutcomes,
	requestsInFlight,
}
