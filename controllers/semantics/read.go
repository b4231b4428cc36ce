package semantics

import (
	"math"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

// maxNumber bounds what is taken for a number, so that sums over pools cannot overflow.
const maxNumber = 1e9

// IsNumber says whether x may be read as a number: neither negative, which holds the sentinel -1, nor NaN, an infinity or
// beyond 1e9.
func IsNumber(x float64) bool { return !math.IsNaN(x) && x >= 0 && x <= maxNumber }

// Milli gives x in thousandths, rounded half up, as autoscalers read quantities; false for what is no number. Engines tell
// ratios with four decimals, so the fifth is cut first.
func Milli(x float64) (milli int64, ok bool) {
	if !IsNumber(x) {
		return 0, false
	}
	return (int64(math.Round(x*10_000)) + 5) / 10, true
}

// Fault says why a signal has no value.
type Fault string

const (
	// NoFault means that there is a value.
	NoFault Fault = ""
	// FaultSentinel means: a rank tells -1, NaN, an infinity or another value that is never a number.
	FaultSentinel Fault = "sentinel"
	// FaultPartial means: a DP rank is missing from the sample.
	FaultPartial Fault = "partial"
	// FaultUndefined means: engines of this role do not have the signal.
	FaultUndefined Fault = "undefined"
	// FaultNoRate means: prompts wait and no rank of the pool has computed any, so nobody knows how fast they go.
	FaultNoRate Fault = "no rate"
	// FaultNoObjective means: the service has no objective for the latency.
	FaultNoObjective Fault = "no objective"
	// FaultNoHistogram means: the engine's histograms were not read of late.
	FaultNoHistogram Fault = "no histogram"
	// FaultFewEvents means: too few events in the window for a quantile while requests are under way.
	FaultFewEvents Fault = "few events"
)

// Work is how much prefill a rank did in how much time of computing prefill. The rate is known while Micros > 0.
type Work struct {
	Tokens int64 // computed prompt tokens, not those found in a cache
	Micros int64 // busy time in batches that compute prompts
}

// Known says whether the work gives a rate above 0.
func (w Work) Known() bool { return w.Tokens > 0 && w.Micros > 0 }

// PerSecond is the rate in tokens per second; only of known work.
func (w Work) PerSecond() float64 { return float64(w.Tokens) * 1e6 / float64(w.Micros) }

// Add gives the work of both.
func (w Work) Add(other Work) Work {
	return Work{Tokens: w.Tokens + other.Tokens, Micros: w.Micros + other.Micros}
}

// Replica is what the newest answer of a replica's leader holds for signals. The caller has made sure that it is fresh.
type Replica struct {
	Role v1alpha1.Role
	// Want is how many DP ranks the answer must hold.
	Want int
	// Ranks by DP rank; a value that the answer left out is NaN or negative.
	Ranks []loads.Load
	// Work of each rank, in the order of Ranks: what it did of late, or the last time that it did something.
	Work []Work
}

// Of gives the value of a signal of one replica in thousandths, or why there is none. pool is the work of all ranks of the
// pool: a rank that has computed no prompt yet is taken to be as fast as the others are. Shared signals have no value of a
// single replica, see Latency.
func (s Signal) Of(r Replica, pool Work) (milli int64, fault Fault) {
	if !s.Defined(r.Role) {
		return 0, FaultUndefined
	}
	if s.Type == v1alpha1.MetricPrefillDelay {
		return prefillDelay(r, pool)
	}
	row, ok := Lookup(s.Reads[0].Source, s.Reads[0].Name)
	if !ok || s.Shared {
		return 0, FaultUndefined
	}
	values := make([]int64, 0, len(r.Ranks))
	for _, rank := range r.Ranks {
		v, ok := row.Read(rank)
		if !ok {
			return 0, FaultSentinel
		}
		m, ok := Milli(v)
		if !ok {
			return 0, FaultSentinel
		}
		values = append(values, m)
	}
	if len(values) < max(1, r.Want) {
		return 0, FaultPartial
	}
	return foldMilli(row.Ranks, values), NoFault
}

// prefillDelay is waiting tokens over rate: 0 without waiting tokens, whatever the rate is, and no number while tokens wait
// and neither the rank nor its pool has a rate.
func prefillDelay(r Replica, pool Work) (milli int64, fault Fault) {
	var waiting, rate float64
	unknown := false
	for i, rank := range r.Ranks {
		tokens := float64(rank.NumWaitingUncached)
		if !IsNumber(tokens) {
			return 0, FaultSentinel
		}
		waiting += tokens
		work := pool
		if i < len(r.Work) && r.Work[i].Known() {
			work = r.Work[i]
		}
		if !work.Known() {
			unknown = true
			continue
		}
		rate += work.PerSecond()
	}
	switch {
	case len(r.Ranks) < max(1, r.Want):
		return 0, FaultPartial
	case waiting == 0:
		return 0, NoFault
	case unknown:
		return 0, FaultNoRate
	}
	milli, ok := Milli(min(waiting/rate, maxNumber))
	if !ok {
		return 0, FaultNoRate
	}
	return milli, NoFault
}

// Read gives the field of a rank's load that the row is about; false when the row is no field, the load lacks its section,
// or the value is no number.
func (n Number) Read(l loads.Load) (value float64, ok bool) {
	if n.Source != FromLoads {
		return 0, false
	}
	value, ok = fieldOf(l, n.Name)
	return value, ok && IsNumber(value)
}

// fieldOf reads a field by its JSON name.
func fieldOf(l loads.Load, name string) (value float64, ok bool) {
	switch name {
	case "num_running_reqs":
		return float64(l.NumRunningReqs), true
	case "num_waiting_reqs":
		return float64(l.NumWaitingReqs), true
	case "num_waiting_uncached_tokens":
		return float64(l.NumWaitingUncached), true
	case "num_used_tokens":
		return float64(l.NumUsedTokens), true
	case "num_total_tokens":
		return float64(l.NumTotalTokens), true
	case "num_active_tokens":
		return float64(l.NumActiveTokens), true
	case "max_total_num_tokens":
		return float64(l.MaxTotalNumTokens), true
	case "max_running_requests":
		return float64(l.MaxRunningRequests), true
	case "token_usage":
		return l.TokenUsage, true
	case "gen_throughput":
		return l.GenThroughput, true
	case "cache_hit_rate":
		return l.CacheHitRate, true
	case "utilization":
		return l.Utilization, true
	case "total_prefill_uncached_tokens":
		return float64(l.TotalPrefillUncached), true
	case "total_prefill_busy_us":
		return float64(l.TotalPrefillBusyMicro), true
	case "total_generated_tokens":
		return float64(l.TotalGenerated), true
	}
	if m := l.Memory; m != nil {
		switch name {
		case "memory.weight_gb":
			return m.WeightGB, true
		case "memory.kv_cache_gb":
			return m.KVCacheGB, true
		case "memory.graph_gb":
			return m.GraphGB, true
		case "memory.token_capacity":
			return float64(m.TokenCapacity), true
		}
	}
	if d := l.Disaggregation; d != nil {
		switch name {
		case "disaggregation.prefill_bootstrap_queue_reqs":
			return float64(d.PrefillBootstrapQueueReqs), true
		case "disaggregation.prefill_inflight_queue_reqs":
			return float64(d.PrefillInflightQueueReqs), true
		case "disaggregation.decode_prealloc_queue_reqs":
			return float64(d.DecodePreallocQueueReqs), true
		case "disaggregation.decode_transfer_queue_reqs":
			return float64(d.DecodeTransferQueueReqs), true
		case "disaggregation.decode_retracted_queue_reqs":
			return float64(d.DecodeRetractedQueueReqs), true
		case "disaggregation.kv_transfer_speed_gb_s":
			return d.KVTransferSpeedGBs, true
		case "disaggregation.kv_transfer_latency_ms":
			return d.KVTransferLatencyMs, true
		}
	}
	if q := l.Queues; q != nil {
		switch name {
		case "queues.waiting":
			return float64(q.Waiting), true
		case "queues.grammar":
			return float64(q.Grammar), true
		case "queues.paused":
			return float64(q.Paused), true
		case "queues.retracted":
			return float64(q.Retracted), true
		case "queues.prealloc_ready":
			return float64(q.PreallocReady), true
		}
	}
	return 0, false
}
