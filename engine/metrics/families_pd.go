package metrics

// Hand-over between prefill and decode.
var (
	prefillBootstrapQueue = gauge("sglang:num_prefill_bootstrap_queue_reqs", "requests", "Prefill engine: requests whose bootstrap the decode engine has not done yet.", OnPrefill, OnEveryReport, overDP)
	prefillInflightQueue  = gauge("sglang:num_prefill_inflight_queue_reqs", "requests", "Prefill engine: requests whose KV is still being sent.", OnPrefill, OnEveryReport, overDP)
	decodePreallocQueue   = gauge("sglang:num_decode_prealloc_queue_reqs", "requests", "Decode engine: requests that wait for KV pages.", OnDecode, OnEveryReport, overDP)
	decodeTransferQueue   = gauge("sglang:num_decode_transfer_queue_reqs", "requests", "Decode engine: requests whose KV is arriving.", OnDecode, OnEveryReport, overDP)
	decodeHostReceive     = gauge("sglang:num_decode_host_receive_queue_reqs", "requests", "Decode engine: requests of the transfer queue staged in host memory.", OnDecode, OnEveryReport, overDP)
	decodeDeferredRelease = gauge("sglang:num_decode_deferred_kv_release_reqs", "requests", "Decode engine: ended requests whose pages a transfer may still touch.", OnDecode, OnEveryReport, overDP)
	pendingPrealloc       = gauge("sglang:pending_prealloc_token_usage", "ratio", "Decode engine: tokens that wait for KV pages over the pool's capacity.", OnDecode, OnEveryReport, nil)

	kvTransferSpeed     = histogram("sglang:kv_transfer_speed_gb_s", "GiB/s", "Speed of one KV transfer.", OnPrefill, bucketsTransferSpeed)
	kvTransferLatency   = histogram("sglang:kv_transfer_latency_ms", "milliseconds", "Time of one KV transfer.", OnPrefill, bucketsTransferLatency)
	kvTransferTotal     = histogram("sglang:kv_transfer_total_mb", "MiB", "Size of one KV transfer.", OnPrefill, bucketsTransferSize)
	kvTransferBootstrap = histogram("sglang:kv_transfer_bootstrap_ms", "milliseconds", "Time until the two engines of a transfer had met.", OnPrefill|OnDecode, bucketsTransferWait)
	kvTransferAlloc     = histogram("sglang:kv_transfer_alloc_ms", "milliseconds", "Wait of a transfer for KV pages.", OnPrefill|OnDecode, bucketsTransferWait)
	bootstrapFailed     = counter("sglang:num_bootstrap_failed_reqs_total", "requests", "Requests whose engines did not meet.", OnPrefill|OnDecode)
	deferredRelease     = histogram("sglang:decode_deferred_kv_release_seconds", "seconds", "Time for which a transfer kept the pages of an ended request from being free.", OnDecode, bucketsDeferredRelease)
	deferredReleases    = counter("sglang:decode_deferred_kv_release_total", "requests", "Ended requests whose pages a transfer kept, by why they were free in the end.", OnDecode, "outcome")
	prefillRetries      = counter("sglang:num_prefill_retries_total", "requests", "Prompts that were computed again.", OnPrefill)
	transferFailed      = counter("sglang:num_transfer_failed_reqs_total", "requests", "Requests whose KV transfer failed.", OnPrefill|OnDecode)

	// Each rank counts its own part, whoever exports the rest: over a service, sent and done is what was received.
	kvSent     = moved("sluice_kv_sent_bytes_total", "KV bytes of hand-overs that have ended on this prefill engine, by how.", OnPrefill)
	kvReceived = moved("sluice_kv_received_bytes_total", "KV bytes of hand-overs that have ended on this decode engine, by how.", OnDecode)
)

// moved is a counter of the process: the parts of its ranks add up.
func moved(name, help string, engines Engines) *Family {
	return &Family{Name: name, Kind: Counter, Help: help, Unit: "bytes", Source: FromProcess, Labels: []string{"outcome"}, Engines: engines, SumOver: []string{"outcome"}}
}

// handoverFamilies are what a scheduler has that hands KV over or receives it.
var handoverFamilies = []*Family{
	prefillBootstrapQueue,
	prefillInflightQueue,
	decodePreallocQueue,
	decodeTransferQueue,
	decodeHostReceive,
	decodeDeferredRelease,
	pendingPrealloc,
	kvTransferSpeed,
	kvTransferLatency,
	kvTransferTotal,
	kvTransferBootstrap,
	kvTransferAlloc,
	deferredRelease,
	deferredReleases,
	prefillRetries,
	bootstrapFailed,
	transferFailed,
	kvSent,
	kvReceived,
}
