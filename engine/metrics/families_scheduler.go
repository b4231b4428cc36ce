package metrics

// Gauges of the scheduler: requests and throughput.
var (
	numRunningReqs = gauge("sglang:num_running_reqs", "requests", "Requests in the running batch; on a prefill engine the batch just computed.", OnAll, OnEveryReport, overDP)
	numQueueReqs   = gauge("sglang:num_queue_reqs", "requests", "Requests in the scheduler's waiting queue.", OnAll, OnEveryReport, overDP)
	genThroughput  = gauge("sglang:gen_throughput", "tokens/s", "Output tokens per second over the last decode window; 0 when idle or older than 30 s.", OnAll, OnEveryReport, overDP)
	cacheHitRate   = gauge("sglang:cache_hit_rate", "ratio", "Share of prompt tokens found in the prefix cache at the latest prefill report.", OnAll, OnPrefillReport, nil)
	sumSeqLens     = gauge("sglang:decode_sum_seq_lens", "tokens", "Sum of the lengths of the sequences in the decode batch.", OnUnified|OnDecode, OnDecodeReport, overDP)
	utilization    = gauge("sglang:utilization", "ratio", "max(running / cap of running requests, token_usage / 0.9), may exceed 1; -1 on a prefill engine.", OnAll, OnPrefillReport|OnDecodeReport, nil)
	fwdOccupancy   = gauge("sglang:fwd_occupancy", "percent", "Share of the wall time in which the device computes; NaN when idle and without SGLANG_ENABLE_METRICS_DEVICE_TIMER.", OnAll, OnEveryReport, nil)
	newTokenRatio  = gauge("sglang:new_token_ratio", "ratio", "Part of the tokens that requests may still generate for which admission keeps room.", OnAll, OnPrefillReport, nil)
)

// Gauges of the scheduler: the KV pool.
var (
	tokenUsage        = gauge("sglang:token_usage", "ratio", "Locked share of the fullest KV pool, rounded to 2 decimals.", OnAll, OnEveryReport, nil)
	fullTokenUsage    = gauge("sglang:full_token_usage", "ratio", "Locked share of the full-attention pool, not rounded.", OnAll, OnEveryReport, nil)
	swaTokenUsage     = gauge("sglang:swa_token_usage", "ratio", "Locked share of the pool of sliding-window layers, not rounded; 0 without such layers.", OnAll, OnEveryReport, nil)
	numUsedTokens     = gauge("sglang:num_used_tokens", "tokens", "Tokens of KV memory in use.", OnAll, OnEveryReport, overDP)
	kvAvailableTokens = gauge("sglang:kv_available_tokens", "tokens", "Free tokens of the KV pool.", OnAll, OnEveryReport, overDP)
	kvEvictableTokens = gauge("sglang:kv_evictable_tokens", "tokens", "Tokens of cached KV that no request locks.", OnAll, OnEveryReport, overDP)
	kvUsedTokens      = gauge("sglang:kv_used_tokens", "tokens", "Tokens of KV that running work locks.", OnAll, OnEveryReport, overDP)
	swaAvailable      = with(WithSlidingWindow, gauge("sglang:swa_available_tokens", "tokens", "Free tokens of the pool of sliding-window layers.", OnAll, OnEveryReport, overDP))
	swaEvictable      = with(WithSlidingWindow, gauge("sglang:swa_evictable_tokens", "tokens", "Tokens of cached KV of sliding-window layers that no request locks.", OnAll, OnEveryReport, overDP))
	swaUsed           = with(WithSlidingWindow, gauge("sglang:swa_used_tokens", "tokens", "Tokens of KV of sliding-window layers that running work locks.", OnAll, OnEveryReport, overDP))
)

// Constants of the engine.
var (
	maxTotalNumTokens    = gauge("sglang:max_total_num_tokens", "tokens", "Capacity of the KV pool.", OnAll, OnStart, overDP)
	maxTotalNumTokensSWA = with(WithSlidingWindow, gauge("sglang:max_total_num_tokens_swa", "tokens", "Capacity of the KV pool of sliding-window layers.", OnAll, OnStart, overDP))
	maxRunningSLO        = gauge("sglang:max_running_requests_under_SLO", "requests", "Running requests at which utilization reads 1.", OnUnified|OnDecode, OnStart, overDP)
	pageSize             = gauge("sglang:page_size", "tokens", "Tokens in a page of KV.", OnAll, OnStart, nil)
	numPages             = gauge("sglang:num_pages", "pages", "Pages of the KV pool.", OnAll, OnStart, overDP)
	contextLen           = gauge("sglang:context_len", "tokens", "Longest sequence, prompt and answer.", OnAll, OnStart, nil)
	weightMemory         = gauge("sglang:weight_memory_usage_gb", "GiB", "Memory of the weights.", OnAll, OnStart, overRanks)
	kvCacheMemory        = gauge("sglang:kv_cache_memory_usage_gb", "GiB", "Memory of the KV pools.", OnAll, OnStart, overRanks)
	startupAvailable     = gauge("sglang:startup_available_gpu_memory_gb", "GiB", "Memory of the device that was free when weights and KV were there.", OnAll, OnStart, nil)
)

// Streaming sessions.
var (
	streamingSessions = with(WithSessions, gauge("sglang:num_streaming_sessions", "sessions", "Open streaming sessions.", OnUnified, OnDecodeReport|OnIdleReport, overDP))
	sessionHeldTokens = with(WithSessions, gauge("sglang:streaming_session_held_tokens", "tokens", "Tokens that nothing but streaming sessions without a turn under way keeps.", OnUnified, OnDecodeReport|OnIdleReport, overDP))
)

// Routing keys, as routers send them with requests.
var (
	uniqueRoutingKeys  = gauge("sglang:num_unique_running_routing_keys", "keys", "Distinct routing keys of running requests; kept while a running request has none.", OnUnified|OnDecode, OnDecodeReport, nil)
	routingKeysRunning = labelled(gauge("sglang:routing_key_running_req_count", "keys", "Routing keys with more than gt and at most le running requests.", OnUnified|OnDecode, OnDecodeReport, nil), "gt", "le")
	routingKeysAll     = labelled(gauge("sglang:routing_key_all_req_count", "keys", "Routing keys with more than gt and at most le running and waiting requests.", OnUnified|OnDecode, OnDecodeReport, nil), "gt", "le")
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
	rejectedRequests = counter("sglang:num_queue_rejected_requests_total", "requests", "Requests that got no place in a batch.", OnAll, "reason")
	queueTime        = histogram("sglang:queue_time_seconds", "seconds", "Wait of a request before its first forward pass.", OnAll, bucketsQueueTime)
	stageTime        = histogram("sglang:per_stage_req_latency_seconds", "seconds", "Time of one stage of a request.", OnAll, bucketsStage, "stage")
	realTokens       = counter("sglang:realtime_tokens_total", "tokens", "Tokens processed: computed prompt tokens, prompt tokens found in the cache, decoded tokens.", OnAll, "mode")
)

// Execution.
var (
	prefillEffective = counter("sglang:prefill_effective_tokens_total", "tokens", "Prompt tokens that were computed or found, by where, without those of retracted requests that are computed again.", OnAll, "mode")
	forwardExecution = with(WithDeviceTimer, counter("sglang:forward_execution_seconds_total", "seconds", "Busy time of the device by what it computed.", OnAll, "category"))
	estimatedFlops   = with(WithMFU, counter("sglang:estimated_flops_per_gpu_total", "operations", "Floating-point operations of this rank by the model's shapes.", OnAll))
	estimatedRead    = with(WithMFU, counter("sglang:estimated_read_bytes_per_gpu_total", "bytes", "Bytes that this rank reads by the model's shapes.", OnAll))
	estimatedWrite   = with(WithMFU, counter("sglang:estimated_write_bytes_per_gpu_total", "bytes", "Bytes that this rank writes by the model's shapes.", OnAll))
)

// The scheduler's loop.
var (
	loopIterations = counter("sglang:scheduler_iterations_total", "iterations", "Turns of the scheduler's loop.", OnAll)
	loopIdle       = counter("sglang:scheduler_idle_seconds_total", "seconds", "Wall time without a request and with nothing to compute.", OnAll)
	loopCPU        = counter("sglang:scheduler_process_cpu_seconds_total", "seconds", "CPU time of the rank's process, all its threads.", OnAll)
	loopStages     = counter("sglang:scheduler_stage_seconds_total", "seconds", "Wall time of the scheduler's loop by what it did, and by whether the device computed meanwhile.", OnAll, "category", "forward_overlap")
)

// Grammars.
var (
	grammarCompile     = histogram("sglang:grammar_compilation_time_seconds", "seconds", "Time in which a request's grammar was compiled.", OnAll, bucketsGrammarCompile)
	grammarCacheHit    = counter("sglang:num_grammar_cache_hit_total", "requests", "Requests whose grammar was there already.", OnAll)
	grammarAborted     = counter("sglang:num_grammar_aborted_total", "requests", "Requests that ended without their grammar: it was wrong, or they were aborted.", OnAll)
	grammarTimeout     = counter("sglang:num_grammar_timeout_total", "requests", "Requests whose grammar was not compiled in time.", OnAll)
	grammarTotal       = counter("sglang:num_grammar_total", "requests", "Requests with a grammar.", OnAll)
	grammarSchemaCount = histogram("sglang:grammar_schema_count", "schemas", "Schemas in a request's JSON schema, itself included.", OnAll, bucketsGrammarSchemas)
	grammarSize        = histogram("sglang:grammar_ebnf_size", "states", "States of the automaton that a request's grammar became.", OnAll, bucketsGrammarSize)
	grammarMaskMean    = histogram("sglang:grammar_tree_traversal_time_avg", "seconds", "Mean time to find out which tokens may come next, of one request.", OnAll, bucketsGrammarTraversal)
	grammarMaskMax     = histogram("sglang:grammar_tree_traversal_time_max", "seconds", "Longest time to find out which tokens may come next, of one request.", OnAll, bucketsGrammarTraversal)
)

// The prefix cache.
var (
	evictionDuration = cache(histogram("sglang:eviction_duration_seconds", "seconds", "Time of one eviction that freed something.", OnUnified|OnPrefill, bucketsEviction))
	evictedTokens    = cache(counter("sglang:evicted_tokens_total", "tokens", "Tokens whose KV evictions freed.", OnUnified|OnPrefill))
)

// schedulerFamilies are what every scheduler may have.
var schedulerFamilies = []*Family{
	numRunningReqs,
	numQueueReqs,
	genThroughput,
	cacheHitRate,
	sumSeqLens,
	utilization,
	fwdOccupancy,
	newTokenRatio,
	tokenUsage,
	fullTokenUsage,
	swaTokenUsage,
	numUsedTokens,
	kvAvailableTokens,
	kvEvictableTokens,
	kvUsedTokens,
	swaAvailable,
	swaEvictable,
	swaUsed,
	maxTotalNumTokens,
	maxTotalNumTokensSWA,
	maxRunningSLO,
	pageSize,
	numPages,
	contextLen,
	weightMemory,
	kvCacheMemory,
	startupAvailable,
	streamingSessions,
	sessionHeldTokens,
	uniqueRoutingKeys,
	routingKeysRunning,
	routingKeysAll,
	numRetractedReqs,
	numGrammarQueueReqs,
	numPausedReqs,
	numRetractedRequests,
	numRetractedInputTokens,
	numRetractedOutputTokens,
	rejectedRequests,
	queueTime,
	stageTime,
	realTokens,
	prefillEffective,
	forwardExecution,
	estimatedFlops,
	estimatedRead,
	estimatedWrite,
	loopIterations,
	loopIdle,
	loopCPU,
	loopStages,
	grammarCompile,
	grammarCacheHit,
	grammarAborted,
	grammarTimeout,
	grammarTotal,
	grammarSchemaCount,
	grammarSize,
	grammarMaskMean,
	grammarMaskMax,
	evictionDuration,
	evictedTokens,
}
