// Package loads holds the wire types of GET /v1/loads, which the engine serves and the router and the operator read. It
// knows neither side.
package loads

import "time"

// Response is the body of GET /v1/loads.
type Response struct {
	Timestamp       time.Time `json:"timestamp"` // UTC
	Version         string    `json:"version"`
	Accelerator     string    `json:"accelerator"`
	NumAccelerators int       `json:"num_accelerators"` // tp * pp
	Loads           []Load    `json:"loads"`            // one per DP rank
}

// Load is one DP rank's load. The core fields are always filled; a section is nil when it was not asked for or does not
// exist on this engine.
type Load struct {
	Timestamp             float64 `json:"timestamp"` // Unix seconds of the snapshot
	DPRank                int     `json:"dp_rank"`
	NumRunningReqs        int     `json:"num_running_reqs"`
	NumWaitingReqs        int     `json:"num_waiting_reqs"` // waiting, + bootstrap (prefill), + prealloc, transfer, retracted (decode)
	NumWaitingUncached    int     `json:"num_waiting_uncached_tokens"`
	NumUsedTokens         int     `json:"num_used_tokens"`
	NumTotalTokens        int     `json:"num_total_tokens"`  // used + lengths of the pending queues
	NumActiveTokens       int     `json:"num_active_tokens"` // total - lengths in prealloc and transfer, at least 0
	MaxTotalNumTokens     int     `json:"max_total_num_tokens"`
	MaxRunningRequests    int     `json:"max_running_requests"`
	TokenUsage            float64 `json:"token_usage"`    // 4 decimals
	GenThroughput         float64 `json:"gen_throughput"` // tokens per second, 2 decimals
	CacheHitRate          float64 `json:"cache_hit_rate"` // 4 decimals
	Utilization           float64 `json:"utilization"`    // 4 decimals, -1 on a prefill engine
	TotalPrefillUncached  int64   `json:"total_prefill_uncached_tokens"`
	TotalPrefillBusyMicro int64   `json:"total_prefill_busy_us"`
	TotalGenerated        int64   `json:"total_generated_tokens"` // sampled here: on a prefill engine the first of each answer, on a decode engine the others

	Memory         *Memory         `json:"memory,omitempty"`
	Disaggregation *Disaggregation `json:"disaggregation,omitempty"`
	Queues         *Queues         `json:"queues,omitempty"`
}

// Memory is the section asked for by include=memory.
type Memory struct {
	WeightGB      float64 `json:"weight_gb"`
	KVCacheGB     float64 `json:"kv_cache_gb"`
	GraphGB       float64 `json:"graph_gb"`
	TokenCapacity int     `json:"token_capacity"`
}

// Disaggregation is the section asked for by include=disagg; queues of the other role read 0.
type Disaggregation struct {
	Mode                      string  `json:"mode"` // prefill, decode or null
	PrefillBootstrapQueueReqs int     `json:"prefill_bootstrap_queue_reqs"`
	PrefillInflightQueueReqs  int     `json:"prefill_inflight_queue_reqs"`
	DecodePreallocQueueReqs   int     `json:"decode_prealloc_queue_reqs"`
	DecodeTransferQueueReqs   int     `json:"decode_transfer_queue_reqs"`
	DecodeRetractedQueueReqs  int     `json:"decode_retracted_queue_reqs"`
	KVTransferSpeedGBs        float64 `json:"kv_transfer_speed_gb_s"` // of the last transfer
	KVTransferLatencyMs       float64 `json:"kv_transfer_latency_ms"` // of the last transfer
}

// Queues is the section asked for by include=queues.
type Queues struct {
	Waiting       int `json:"waiting"`
	Grammar       int `json:"grammar"`
	Paused        int `json:"paused"`
	Retracted     int `json:"retracted"`
	PreallocReady int `json:"prealloc_ready"`
}
