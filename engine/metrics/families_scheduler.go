package metrics

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

// Times of requests in the scheduler, and its work.
var (
	queueTime  = histogram("sglang:queue_time_seconds", "seconds", "Wait of a request before its first forward pass.", OnAll, bucketsQueueTime)
	stageTime  = histogram("sglang:per_stage_req_latency_seconds", "seconds", "Time of one stage of a request.", OnAll, bucketsStage, "stage")
	realTokens = counter("sglang:realtime_tokens_total", "tokens", "Tokens processed: computed prompt tokens, prompt tokens found in the cache, decoded tokens.", OnAll, "mode")
)

// schedulerFamilies are what every scheduler may have.
var schedulerFamilies = []*Family{
	numRunningReqs,
	numQueueReqs,
	genThroughput,
	cacheHitRate,
	utilization,
	tokenUsage,
	fullTokenUsage,
	numUsedTokens,
	kvAvailableTokens,
	kvEvictableTokens,
	kvUsedTokens,
	maxTotalNumTokens,
	maxRunningSLO,
	numRetractedReqs,
	numGrammarQueueReqs,
	numPausedReqs,
	numRetractedRequests,
	numRetractedInputTokens,
	numRetractedOutputTokens,
	queueTime,
	stageTime,
	realTokens,
}
