package metrics

// The families. Only what the engine really has is here: a family appears in the table together with its mechanism.
//
// A gauge of the scheduler is the state of one rank, so ranks of one replica may be added only over data-parallel ranks;
// tensor- and pipeline-parallel ranks of a replica report the same requests. Counters of events follow the same rule.
var (
	overDP       = []string{"dp_rank"}
	overEndpoint = []string{"endpoint", "method"}
)

// Gauges of the scheduler: requests and throughput.
var (
	numRunningReqs = gauge("sglang:num_running_reqs", "requests", "Requests in the running batch; on a prefill engine the batch just computed.", OnAll, OnEveryReport, overDP)
	numQueueReqs   = gauge("sglang:num_queue_reqs", "requests", "Requests in the scheduler's waiting queue.", OnAll, OnEveryReport, overDP)
	genThroughput  = gauge("sglang:gen_throughput", "tokens/s", "Output tokens per second over the last decode window; 0 when idle or older than 30 s.", OnAll, OnEveryReport, overDP)
	cacheHitRate   = gauge("sglang:cache_hit_rate", "ratio", "Share of prompt tokens found in the prefix cache at the latest prefill report.", OnAll, OnPrefillReport, nil)
	utilization    = gauge("sglang:utilization", "ratio", "max(running / cap of running requests, token_usage / 0.9), may exceed 1; -1 on a prefill engine.", OnAll, OnPrefillReport|OnDecodeReport, nil)
)

// Gauges of the scheduler: the KV pool.
var (
	tokenUsage        = gauge("sglang:token_usage", "ratio", "Locked share of the fullest KV pool, rounded to 2 decimals.", OnAll, OnEveryReport, nil)
	fullTokenUsage    = gauge("sglang:full_token_usage", "ratio", "Locked share of the full-attention pool, not rounded.", OnAll, OnEveryReport, nil)
	numUsedTokens     = gauge("sglang:num_used_tokens", "tokens", "Token slots in use.", OnAll, OnEveryReport, overDP)
	kvAvailableTokens = gauge("sglang:kv_available_tokens", "tokens", "Free slots of the KV pool.", OnAll, OnEveryReport, overDP)
	kvEvictableTokens = gauge("sglang:kv_evictable_tokens", "tokens", "Slots that hold cached KV which no request locks.", OnAll, OnEveryReport, overDP)
	kvUsedTokens      = gauge("sglang:kv_used_tokens", "tokens", "Slots locked by running work.", OnAll, OnEveryReport, overDP)
	maxTotalNumTokens = gauge("sglang:max_total_num_tokens", "tokens", "Capacity of the KV pool.", OnAll, OnEveryReport, overDP)
	maxRunningSLO     = gauge("sglang:max_running_requests_under_SLO", "requests", "Running requests at which utilization reads 1.", OnUnified|OnDecode, OnEveryReport, overDP)
)

// Retraction.
var (
	numRetractedReqs         = gauge("sglang:num_retracted_reqs", "requests", "Requests of the last retraction since the previous report.", OnUnified|OnDecode, OnPrefillReport|OnDecodeReport, overDP)
	numGrammarQueueReqs      = gauge("sglang:num_grammar_queue_reqs", "requests", "Requests whose grammar is being compiled.", OnAll, OnEveryReport, overDP)
	numPausedReqs            = gauge("sglang:num_paused_reqs", "requests", "Requests that keep their place and their KV through a pause.", OnAll, OnEveryReport, overDP)
	numRetractedRequests     = counter("sglang:num_retracted_requests_total", "requests", "Requests retracted since start.", OnUnified|OnDecode)
	numRetractedInputTokens  = counter("sglang:num_retracted_input_tokens_total", "tokens", "Prompt tokens of retracted requests.", OnUnified|OnDecode)
	numRetractedOutputTokens = counter("sglang:num_retracted_output_tokens_total", "tokens", "Tokens that retracted requests had generated.", OnUnified|OnDecode)
)

// Hand-over between prefill and decode.
var (
	prefillBootstrapQueue = gauge("sglang:num_prefill_bootstrap_queue_reqs", "requests", "Prefill engine: requests that wait for the decode engine's handshake.", OnPrefill, OnEveryReport, overDP)
	prefillInflightQueue  = gauge("sglang:num_prefill_inflight_queue_reqs", "requests", "Prefill engine: requests whose KV is still being sent.", OnPrefill, OnEveryReport, overDP)
	decodePreallocQueue   = gauge("sglang:num_decode_prealloc_queue_reqs", "requests", "Decode engine: requests that wait for KV pages.", OnDecode, OnEveryReport, overDP)
	decodeTransferQueue   = gauge("sglang:num_decode_transfer_queue_reqs", "requests", "Decode engine: requests whose KV is arriving.", OnDecode, OnEveryReport, overDP)
	decodeHostReceive     = gauge("sglang:num_decode_host_receive_queue_reqs", "requests", "Decode engine: requests of the transfer queue staged in host memory.", OnDecode, OnEveryReport, overDP)
	decodeDeferredRelease = gauge("sglang:num_decode_deferred_kv_release_reqs", "requests", "Decode engine: ended requests whose pages a transfer may still touch.", OnDecode, OnEveryReport, overDP)
	pendingPrealloc       = gauge("sglang:pending_prealloc_token_usage", "ratio", "Decode engine: tokens that wait for KV pages over the pool's capacity.", OnDecode, OnEveryReport, nil)

	kvTransferSpeed     = histogram("sglang:kv_transfer_speed_gb_s", "GiB/s", "Speed of one KV transfer.", OnPrefill, bucketsTransferSpeed)
	kvTransferLatency   = histogram("sglang:kv_transfer_latency_ms", "milliseconds", "Time of one KV transfer.", OnPrefill, bucketsTransferLatency)
	kvTransferTotal     = histogram("sglang:kv_transfer_total_mb", "MiB", "Size of one KV transfer.", OnPrefill, bucketsTransferSize)
	kvTransferBootstrap = histogram("sglang:kv_transfer_bootstrap_ms", "milliseconds", "Time until the two engines of a transfer had shaken hands.", OnPrefill|OnDecode, bucketsTransferWait)
	kvTransferAlloc     = histogram("sglang:kv_transfer_alloc_ms", "milliseconds", "Wait of a transfer for KV pages.", OnPrefill|OnDecode, bucketsTransferWait)
	bootstrapFailed     = counter("sglang:num_bootstrap_failed_reqs_total", "requests", "Requests whose engines did not meet.", OnPrefill|OnDecode)
	transferFailed      = counter("sglang:num_transfer_failed_reqs_total", "requests", "Requests whose KV transfer failed.", OnPrefill|OnDecode)
)

// Times of requests in the scheduler, and its work.
var (
	queueTime  = histogram("sglang:queue_time_seconds", "seconds", "Wait of a request before its first forward pass.", OnAll, bucketsQueueTime)
	stageTime  = histogram("sglang:per_stage_req_latency_seconds", "seconds", "Time of one stage of a request.", OnAll, bucketsStage, "stage")
	realTokens = counter("sglang:realtime_tokens_total", "tokens", "Tokens processed: computed prompt tokens, prompt tokens found in the cache, decoded tokens.", OnAll, "mode")
)

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
	numAbortedRequests  = front(counter("sglang:num_aborted_requests_total", "requests", "Aborts sent to the scheduler.", OnAll))
	getLoadsDuration    = front(histogram("sglang:get_loads_duration_seconds", "seconds", "Time to serve /v1/loads.", OnAll, bucketsGetLoads))
)

// The API process: HTTP.
var (
	httpRequests  = http(counter("sglang:http_requests_total", "requests", "HTTP requests received.", OnAll, "endpoint", "method"))
	httpResponses = http(counter("sglang:http_responses_total", "responses", "HTTP responses begun.", OnAll, "endpoint", "method", "status_code"))
	httpActive    = &Family{
		Name: "sglang:http_requests_active", Kind: Gauge, Help: "HTTP requests in flight.", Unit: "requests", Source: FromHTTP,
		Labels: []string{"endpoint", "method"}, Merge: LiveSum, Engines: OnAll, SumOver: overEndpoint,
	}
)

// The store about itself.
var (
	storeFaults = &Family{
		Name: "sluice_metrics_store_faults_total", Kind: Counter, Help: "Stores and series of stores that could not be read, by reason.",
		Unit: "faults", Source: FromStore, Labels: []string{"reason"}, Engines: OnAll, SumOver: []string{"reason"},
	}
	storeProcesses = &Family{
		Name: "sluice_metrics_store_processes", Kind: Gauge, Help: "Processes that wrote metrics, by whether they live.",
		Unit: "processes", Source: FromStore, Labels: []string{"state"}, Engines: OnAll, Merge: MostRecent,
	}
)

var families = []*Family{
	numRunningReqs, numQueueReqs, genThroughput, cacheHitRate, utilization,
	tokenUsage, fullTokenUsage, numUsedTokens, kvAvailableTokens, kvEvictableTokens, kvUsedTokens, maxTotalNumTokens, maxRunningSLO,
	numRetractedReqs, numGrammarQueueReqs, numPausedReqs, numRetractedRequests, numRetractedInputTokens, numRetractedOutputTokens,
	prefillBootstrapQueue, prefillInflightQueue, decodePreallocQueue, decodeTransferQueue, decodeHostReceive, decodeDeferredRelease, pendingPrealloc,
	kvTransferSpeed, kvTransferLatency, kvTransferTotal, kvTransferBootstrap, kvTransferAlloc, bootstrapFailed, transferFailed,
	queueTime, stageTime, realTokens,
	promptTokens, generationTokens, cachedTokens, promptHistogram, uncachedHistogram, generationHistogram,
	timeToFirstToken, interTokenLatency, timePerOutputToken, e2eRequestLatency, numRequests, numAbortedRequests, getLoadsDuration,
	httpRequests, httpResponses, httpActive,
	storeFaults, storeProcesses,
}

func gauge(name, unit, help string, on Engines, by Reports, sumOver []string) *Family {
	return &Family{Name: name, Kind: Gauge, Help: help, Unit: unit, Merge: MostRecent, Engines: on, Reports: by, SumOver: sumOver}
}

func counter(name, unit, help string, on Engines, labels ...string) *Family {
	return &Family{Name: name, Kind: Counter, Help: help, Unit: unit, Labels: labels, Engines: on, SumOver: append(labels, overDP...)}
}

func histogram(name, unit, help string, on Engines, buckets []float64, labels ...string) *Family {
	return &Family{Name: name, Kind: Histogram, Help: help, Unit: unit, Labels: labels, Buckets: buckets, Engines: on, SumOver: append(labels, overDP...)}
}

// front makes a family one of the API process, which has no ranks.
func front(f *Family) *Family {
	f.Source, f.SumOver = FromFront, f.Labels
	return f
}

func http(f *Family) *Family {
	f.Source, f.SumOver = FromHTTP, f.Labels
	return f
}
