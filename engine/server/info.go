package server

import (
	"encoding/json"
	"maps"
	"net/http"
	"runtime"

	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/internal/version"
)

// serverArgs are the flags as they were understood; keys are never shown.
type serverArgs struct {
	ModelPath                  string            `json:"model_path"`
	TokenizerPath              string            `json:"tokenizer_path"`
	ServedModelName            string            `json:"served_model_name"`
	Host                       string            `json:"host"`
	Port                       int               `json:"port"`
	EnableMetrics              bool              `json:"enable_metrics"`
	EnableCacheReport          bool              `json:"enable_cache_report"`
	ExtraMetricLabels          map[string]string `json:"extra_metric_labels"`
	PageSize                   int               `json:"page_size"`
	ContextLength              int               `json:"context_length"`
	MaxRunningRequests         int               `json:"max_running_requests"`
	MaxRunningRequestsUnderSLO int               `json:"max_running_requests_under_slo"`
	MaxQueuedRequests          *int              `json:"max_queued_requests"` // null: no limit
	MaxTotalTokens             int               `json:"max_total_tokens"`
	ChunkedPrefillSize         int               `json:"chunked_prefill_size"`
	MaxPrefillTokens           int               `json:"max_prefill_tokens"`
	DecodeLogInterval          int               `json:"decode_log_interval"`
	DisaggregationMode         string            `json:"disaggregation_mode"`
	DisaggregationPort         int               `json:"disaggregation_bootstrap_port"`
	RandomSeed                 uint64            `json:"random_seed"`
	LogLevel                   string            `json:"log_level"`
}

// serverInfoAnswer is the body of /server_info.
type serverInfoAnswer struct {
	serverArgs
	MaxTotalNumTokens int             `json:"max_total_num_tokens"`
	MaxReqInputLen    int             `json:"max_req_input_len"`
	EngineType        string          `json:"engine_type"`
	StartupSeconds    float64         `json:"startup_time"` // from the process's begin until it served
	Status            string          `json:"status"`       // serving, leaving, draining
	InternalStates    []internalState `json:"internal_states"`
	Version           string          `json:"version"`
}

// internalState is one DP rank's.
type internalState struct {
	LastGenThroughput    float64     `json:"last_gen_throughput"`
	MemoryUsage          memoryUsage `json:"memory_usage"`
	EffectiveMaxRequests int         `json:"effective_max_running_requests_per_dp"`
	KVCacheDType         string      `json:"kv_cache_dtype"`
	RankPID              int         `json:"pid"` // of the rank that leads
	Ranks                []rankState `json:"ranks"`
}

// rankState is one process of a DP rank's.
type rankState struct {
	Rank     int `json:"rank"`
	TPRank   int `json:"tp_rank"`
	PPRank   int `json:"pp_rank"`
	NodeRank int `json:"node_rank"`
	PID      int `json:"pid"`
}

type memoryUsage struct {
	WeightGB      float64 `json:"weight"`
	KVCacheGB     float64 `json:"kvcache"`
	GraphGB       float64 `json:"graph"`
	TokenCapacity int     `json:"token_capacity"`
}

func (s *Server) serverInfo(w http.ResponseWriter, r *http.Request) {
	e, err := s.running()
	if err != nil {
		writeError(w, err)
		return
	}
	list, loadErr := e.rank.Loads(r.Context())
	if loadErr != nil {
		writeError(w, failure(http.StatusServiceUnavailable, codeEngineFailed, "ask the ranks for their load: %v", loadErr))
		return
	}
	writeJSON(w, http.StatusOK, withArgs(s.cfg.Args, serverInfoAnswer{
		serverArgs: s.args(e.info), MaxTotalNumTokens: e.info.MaxTotalNumTokens, MaxReqInputLen: e.info.MaxPromptTokens(),
		EngineType: s.cfg.Rank.Disagg.Mode.EngineType(), Status: s.currentPhase().String(), Version: version.Version,
		StartupSeconds: float64(e.attached.Sub(s.started)) / 1e9,
		InternalStates: internalStates(e.info, list),
	}))
}

// withArgs gives an object with the fields of a value, and those of args that the value does not have.
func withArgs(args map[string]any, value any) map[string]any {
	all := map[string]any{"tp_size": 1, "pp_size": 1, "dp_size": 1} // unless flags say otherwise
	maps.Copy(all, args)
	fields := map[string]json.RawMessage{}
	raw, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(raw, &fields)
	}
	if err != nil {
		panic(err) // the value is a struct of plain fields
	}
	for name, field := range fields {
		all[name] = field
	}
	return all
}

// internalStates gives one row for each DP rank.
func internalStates(info rank.Info, list []loads.Load) []internalState {
	const gigabyte = 1 << 30
	rows := make([]internalState, len(list))
	for i, load := range list {
		rows[i] = internalState{
			LastGenThroughput: load.GenThroughput, EffectiveMaxRequests: info.MaxRunningRequests, KVCacheDType: info.DType,
			MemoryUsage: memoryUsage{
				WeightGB: float64(info.WeightBytes) / gigabyte, KVCacheGB: float64(info.KVBytes) / gigabyte, TokenCapacity: info.MaxTotalNumTokens,
			},
		}
		for _, p := range info.Ranks {
			if p.DPRank != load.DPRank {
				continue
			}
			rows[i].Ranks = append(rows[i].Ranks, rankState{Rank: p.Rank, TPRank: p.TPRank, PPRank: p.PPRank, NodeRank: p.NodeRank, PID: p.PID})
			if p.Rank == 0 {
				rows[i].RankPID = p.PID
			}
		}
	}
	return rows
}

func (s *Server) args(info rank.Info) serverArgs {
	c, r := s.cfg, s.cfg.Rank
	args := serverArgs{
		ModelPath: c.ModelPath, TokenizerPath: c.ModelPath, ServedModelName: c.ServedModelName, Host: c.Host, Port: c.Port,
		EnableMetrics: c.EnableMetrics, EnableCacheReport: s.cacheReport(), ExtraMetricLabels: c.ExtraMetricLabels,
		PageSize: info.PageSize, ContextLength: info.ContextLength, MaxRunningRequests: info.MaxRunningRequests,
		MaxRunningRequestsUnderSLO: info.MaxRunningRequestsUnderSLO, MaxTotalTokens: info.MaxTotalNumTokens,
		ChunkedPrefillSize: r.ChunkedPrefillSize, MaxPrefillTokens: r.MaxPrefillTokens, DecodeLogInterval: r.DecodeLogInterval,
		DisaggregationMode: "null", DisaggregationPort: c.BootstrapPort, RandomSeed: r.Seed, LogLevel: r.LogLevel,
	}
	if r.Disagg.Mode != rank.ModeUnified {
		args.DisaggregationMode = string(r.Disagg.Mode)
	}
	if r.MaxQueuedRequests > 0 {
		args.MaxQueuedRequests = &r.MaxQueuedRequests
	}
	return args
}

// modelInfoAnswer is the body of /model_info.
type modelInfoAnswer struct {
	ModelPath     string `json:"model_path"`
	TokenizerPath string `json:"tokenizer_path"`
	IsGeneration  bool   `json:"is_generation"`
	WeightVersion string `json:"weight_version"`
	VocabSize     int    `json:"vocab_size"`
	ContextLength int    `json:"context_length"`
}

func (s *Server) modelInfo(w http.ResponseWriter, _ *http.Request) {
	e, err := s.running()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, modelInfoAnswer{
		ModelPath: s.cfg.ModelPath, TokenizerPath: s.cfg.ModelPath, IsGeneration: true, WeightVersion: weightVersion,
		VocabSize: e.info.VocabSize, ContextLength: e.info.ContextLength,
	})
}

func (s *Server) weightVersion(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		WeightVersion string `json:"weight_version"`
	}{weightVersion})
}

// accelerator names the device that the rank computes on.
func (e *engine) accelerator() string { return "cpu-" + runtime.GOARCH }
