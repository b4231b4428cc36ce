package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/internal/version"
)

// sections are the values of include=; some ask for what this engine does not have, and get nothing.
var sections = []string{"core", "memory", "spec", "lora", "disagg", "queues", "all"}

// loads answers GET /v1/loads.
func (s *Server) loads(w http.ResponseWriter, r *http.Request) {
	begun := s.clock.Now()
	defer func() {
		took := s.clock.Now().Sub(begun)
		s.events.LoadsServed(took)
		s.events.FuncLatency(funcLoads, took)
	}()
	query := r.URL.Query()
	include, err := readInclude(query["include"])
	if err != nil {
		writeError(w, err)
		return
	}
	format := query.Get("format")
	if format != "" && format != "json" && format != "prometheus" {
		writeError(w, badField("format", "must be json or prometheus, not %q", clip(format)))
		return
	}
	wanted, all := 0, true
	if text := query.Get("dp_rank"); text != "" {
		number, convErr := strconv.Atoi(text)
		if convErr != nil {
			writeError(w, badField("dp_rank", "must be an integer, not %q", clip(text)))
			return
		}
		wanted, all = number, false
	}
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
	body := loads.Response{
		Timestamp: s.wallTime(s.clock.Now()), Version: version.Version, Accelerator: e.accelerator(), NumAccelerators: s.dataRanks() * s.cfg.Rank.TPSize * s.cfg.Rank.PPSize, Loads: []loads.Load{},
	}
	for _, load := range list {
		if all || load.DPRank == wanted {
			body.Loads = append(body.Loads, selectSections(load, include))
		}
	}
	if format == "prometheus" {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write([]byte(loadsExposition(body.Loads)))
		return
	}
	writeJSON(w, http.StatusOK, body)
}

// readInclude reads the wanted sections: repeated or separated by commas; none means all.
func readInclude(values []string) ([]string, *apiError) {
	var include []string
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			name = strings.TrimSpace(name)
			if name == "" {
				continue
			}
			if !slices.Contains(sections, name) {
				return nil, badField("include", "has no section %q: choose from %s", clip(name), strings.Join(sections, ", "))
			}
			include = append(include, name)
		}
	}
	if len(include) == 0 {
		return []string{"all"}, nil
	}
	return include, nil
}

// selectSections drops the sections that were not asked for; the core fields always stay.
func selectSections(load loads.Load, include []string) loads.Load {
	has := func(name string) bool { return slices.Contains(include, name) || slices.Contains(include, "all") }
	if !has("memory") {
		load.Memory = nil
	}
	if !has("disagg") {
		load.Disaggregation = nil
	}
	if !has("queues") {
		load.Queues = nil
	}
	return load
}

// loadsExposition writes loads as gauges. Their prefix has an underscore, unlike the families of /metrics.
func loadsExposition(list []loads.Load) string {
	var text strings.Builder
	for _, f := range loadFields() {
		header := false
		for _, load := range list {
			value, present := f.value(load)
			if !present {
				continue
			}
			if !header {
				fmt.Fprintf(&text, "# TYPE sglang_%s gauge\n", f.name)
				header = true
			}
			fmt.Fprintf(&text, "sglang_%s{dp_rank=\"%d\"} %s\n", f.name, load.DPRank, strconv.FormatFloat(value, 'g', -1, 64))
		}
	}
	return text.String()
}

// loadField is one number of a load; absent when its section is.
type loadField struct {
	name  string
	value func(l loads.Load) (value float64, present bool)
}

func coreField(name string, get func(l loads.Load) float64) loadField {
	return loadField{name, func(l loads.Load) (float64, bool) { return get(l), true }}
}

func memoryField(name string, get func(m *loads.Memory) float64) loadField {
	return loadField{"memory_" + name, func(l loads.Load) (float64, bool) {
		if l.Memory == nil {
			return 0, false
		}
		return get(l.Memory), true
	}}
}

func disaggField(name string, get func(d *loads.Disaggregation) float64) loadField {
	return loadField{"disagg_" + name, func(l loads.Load) (float64, bool) {
		if l.Disaggregation == nil {
			return 0, false
		}
		return get(l.Disaggregation), true
	}}
}

func queuesField(name string, get func(q *loads.Queues) float64) loadField {
	return loadField{"queues_" + name, func(l loads.Load) (float64, bool) {
		if l.Queues == nil {
			return 0, false
		}
		return get(l.Queues), true
	}}
}

// loadFields lists the numbers of a load in the order of its JSON.
func loadFields() []loadField {
	return []loadField{
		coreField("num_running_reqs", func(l loads.Load) float64 { return float64(l.NumRunningReqs) }),
		coreField("num_waiting_reqs", func(l loads.Load) float64 { return float64(l.NumWaitingReqs) }),
		coreField("num_waiting_uncached_tokens", func(l loads.Load) float64 { return float64(l.NumWaitingUncached) }),
		coreField("num_used_tokens", func(l loads.Load) float64 { return float64(l.NumUsedTokens) }),
		coreField("num_total_tokens", func(l loads.Load) float64 { return float64(l.NumTotalTokens) }),
		coreField("num_active_tokens", func(l loads.Load) float64 { return float64(l.NumActiveTokens) }),
		coreField("max_total_num_tokens", func(l loads.Load) float64 { return float64(l.MaxTotalNumTokens) }),
		coreField("max_running_requests", func(l loads.Load) float64 { return float64(l.MaxRunningRequests) }),
		coreField("token_usage", func(l loads.Load) float64 { return l.TokenUsage }),
		coreField("gen_throughput", func(l loads.Load) float64 { return l.GenThroughput }),
		coreField("cache_hit_rate", func(l loads.Load) float64 { return l.CacheHitRate }),
		coreField("utilization", func(l loads.Load) float64 { return l.Utilization }),
		coreField("total_prefill_uncached_tokens", func(l loads.Load) float64 { return float64(l.TotalPrefillUncached) }),
		coreField("total_prefill_busy_us", func(l loads.Load) float64 { return float64(l.TotalPrefillBusyMicro) }),
		coreField("total_generated_tokens", func(l loads.Load) float64 { return float64(l.TotalGenerated) }),
		memoryField("weight_gb", func(m *loads.Memory) float64 { return m.WeightGB }),
		memoryField("kv_cache_gb", func(m *loads.Memory) float64 { return m.KVCacheGB }),
		memoryField("graph_gb", func(m *loads.Memory) float64 { return m.GraphGB }),
		memoryField("token_capacity", func(m *loads.Memory) float64 { return float64(m.TokenCapacity) }),
		disaggField("prefill_bootstrap_queue_reqs", func(d *loads.Disaggregation) float64 { return float64(d.PrefillBootstrapQueueReqs) }),
		disaggField("prefill_inflight_queue_reqs", func(d *loads.Disaggregation) float64 { return float64(d.PrefillInflightQueueReqs) }),
		disaggField("decode_prealloc_queue_reqs", func(d *loads.Disaggregation) float64 { return float64(d.DecodePreallocQueueReqs) }),
		disaggField("decode_transfer_queue_reqs", func(d *loads.Disaggregation) float64 { return float64(d.DecodeTransferQueueReqs) }),
		disaggField("decode_retracted_queue_reqs", func(d *loads.Disaggregation) float64 { return float64(d.DecodeRetractedQueueReqs) }),
		disaggField("kv_transfer_speed_gb_s", func(d *loads.Disaggregation) float64 { return d.KVTransferSpeedGBs }),
		disaggField("kv_transfer_latency_ms", func(d *loads.Disaggregation) float64 { return d.KVTransferLatencyMs }),
		queuesField("waiting", func(q *loads.Queues) float64 { return float64(q.Waiting) }),
		queuesField("grammar", func(q *loads.Queues) float64 { return float64(q.Grammar) }),
		queuesField("paused", func(q *loads.Queues) float64 { return float64(q.Paused) }),
		queuesField("retracted", func(q *loads.Queues) float64 { return float64(q.Retracted) }),
		queuesField("prealloc_ready", func(q *loads.Queues) float64 { return float64(q.PreallocReady) }),
	}
}

// oldLoad is one row of the deprecated /get_load.
type oldLoad struct {
	DPRank           int     `json:"dp_rank"`
	NumReqs          int     `json:"num_reqs"` // running and waiting
	NumWaitingReqs   int     `json:"num_waiting_reqs"`
	NumTokens        int     `json:"num_tokens"`
	NumPendingTokens int     `json:"num_pending_tokens"`
	Tic              float64 `json:"ts_tic"` // monotonic seconds
}

func (s *Server) getLoad(w http.ResponseWriter, r *http.Request) {
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
	rows := make([]oldLoad, len(list))
	for i, load := range list {
		rows[i] = oldLoad{
			DPRank: load.DPRank, NumReqs: load.NumRunningReqs + load.NumWaitingReqs, NumWaitingReqs: load.NumWaitingReqs,
			NumTokens: load.NumTotalTokens, NumPendingTokens: load.NumTotalTokens - load.NumUsedTokens, Tic: float64(s.clock.Now()) / 1e9,
		}
	}
	writeJSON(w, http.StatusOK, rows)
}

func (s *Server) wallTime(i ledger.Instant) time.Time { return time.Unix(0, s.clock.Wall(i)).UTC() }
