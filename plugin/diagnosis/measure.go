package diagnosis

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/sluice-dev/sluice/engine/loads"
)

// Observation is what was seen of one engine over an interval: two scrapes, and /v1/loads in between.
type Observation struct {
	Pool, Role, Engine string // Engine is the name of the pod that leads the replica
	Seconds            float64
	Before, After      Exposition
	Polls              [][]loads.Load // in order; at least one
}

// RouterObservation is what was seen of one router over an interval.
type RouterObservation struct {
	Router        string
	Seconds       float64
	Before, After Exposition
}

// Rank is what is known of a data-parallel rank over the interval. A number that was not told is NaN.
type Rank struct {
	Pool, Role, Engine string
	DP                 int
	Seconds            float64

	// From /v1/loads: means over the polls.
	Running, Waiting float64 // requests in the batch, and in all queues before it
	LeastWaiting     float64 // over the polls: what waited all the time
	Cap              float64 // of running requests
	Usage            float64 // locked share of the KV memory, 0 to 1
	Occupied         float64 // share of the polls with a request
	Grammar, Paused  float64 // requests
	Retracted        float64 // requests that wait to go on
	Bootstrap        float64 // prefill: waits for a decode engine
	Prealloc         float64 // decode: waits for pages
	Transfer         float64 // decode: waits for the prefill engine
	PrefillShare     float64 // of the interval in which prompts were computed, 0 to 1

	// From counters: per second of the interval.
	Decoded     float64 // tokens
	Computed    float64 // prompt tokens
	Found       float64 // prompt tokens in the cache
	Effective   float64 // prompt tokens computed or found, without those that retracted requests repeat
	Idle        float64 // seconds without anything to do, 0 to 1
	CPU         float64 // seconds of the rank's process
	Retractions float64
	LostTokens  float64 // generated, and then retracted
}

// Requests is how many the rank has on average.
func (r Rank) Requests() float64 { return r.Running + r.Waiting }

// Busy is the share of the interval in which the rank had something to do, 0 to 1.
func (r Rank) Busy() float64 {
	if math.IsNaN(r.Idle) {
		return r.Occupied
	}
	return 1 - r.Idle
}

// Front is what is known of the way into an engine over the interval: the API process.
type Front struct {
	Pool, Role, Engine string
	Seconds            float64

	Tokenizing   float64            // requests that are being tokenized, on average: seconds spent in it per second
	Dispatching  float64            // requests on their way to the rank, on average
	TokenizeMean float64            // seconds a request
	BeforeFirst  float64            // requests before their first output, on average; of a prefill engine: before their end
	InRanks      float64            // of them, those that a rank works on or keeps waiting
	InFlight     float64            // requests in the API process, on average of the two scrapes
	CPU          float64            // share of the CPUs that the process may use, 0 to 1
	TTFT, ITL    float64            // means, seconds
	E2E          float64            // mean, seconds
	Ended        float64            // requests per second
	Refused      float64            // requests per second that were refused or preempted, or took too long
	Failed       float64            // requests per second that ended in a fault of the engines
	FoundBy      map[string]float64 // prompt tokens in the cache per second, by where they were
}

// Router is what is known of a router over the interval.
type Router struct {
	Router  string
	Seconds float64

	Waiting  float64 // requests that wait for a usable engine, on average
	WaitMean float64 // seconds
	Added    float64 // mean of the router's own work, seconds
	Requests float64 // per second
	Retries  float64 // per second
	CPU      float64 // share of the CPUs that the process may use, 0 to 1
}

// Facts are all that a conclusion rests on.
type Facts struct {
	Seconds float64
	Ranks   []Rank // by pool, engine and DP rank
	Fronts  []Front
	Routers []Router
	Missing []string // what was not seen, and why
}

// Measure turns observations into facts.
func Measure(engines []Observation, routers []RouterObservation, missing []string) Facts {
	f := Facts{Missing: missing}
	for _, o := range engines {
		f.Seconds = max(f.Seconds, o.Seconds)
		f.Ranks = append(f.Ranks, o.ranks()...)
		f.Fronts = append(f.Fronts, o.front())
	}
	for _, o := range routers {
		f.Routers = append(f.Routers, o.router())
	}
	slices.SortStableFunc(f.Ranks, func(a, b Rank) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.DP, b.DP))
	})
	slices.SortStableFunc(f.Fronts, func(a, b Front) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Engine, b.Engine)) })
	return f
}

func (o Observation) ranks() []Rank {
	byDP := map[int][]loads.Load{}
	for _, poll := range o.Polls {
		for _, l := range poll {
			byDP[l.DPRank] = append(byDP[l.DPRank], l)
		}
	}
	ranks := make([]Rank, 0, len(byDP))
	for dp, polls := range byDP {
		ranks = append(ranks, o.rank(dp, polls))
	}
	return ranks
}

func (o Observation) rank(dp int, polls []loads.Load) Rank {
	r := Rank{Pool: o.Pool, Role: o.Role, Engine: o.Engine, DP: dp, Seconds: o.Seconds, LeastWaiting: math.Inf(1)}
	n := float64(len(polls))
	for _, l := range polls {
		r.Running += float64(l.NumRunningReqs) / n
		r.Waiting += float64(l.NumWaitingReqs) / n
		r.LeastWaiting = min(r.LeastWaiting, float64(l.NumWaitingReqs))
		r.Usage += l.TokenUsage / n
		r.Cap = float64(l.MaxRunningRequests)
		if l.NumRunningReqs+l.NumWaitingReqs > 0 {
			r.Occupied += 1 / n
		}
		if q := l.Queues; q != nil {
			r.Grammar += float64(q.Grammar) / n
			r.Paused += float64(q.Paused) / n
			r.Retracted += float64(q.Retracted) / n
		}
		if d := l.Disaggregation; d != nil {
			r.Bootstrap += float64(d.PrefillBootstrapQueueReqs) / n
			r.Prealloc += float64(d.DecodePreallocQueueReqs) / n
			r.Transfer += float64(d.DecodeTransferQueueReqs) / n
		}
	}
	r.PrefillShare = math.NaN()
	if first, last := polls[0], polls[len(polls)-1]; last.Timestamp > first.Timestamp {
		r.PrefillShare = grown(float64(first.TotalPrefillBusyMicro), float64(last.TotalPrefillBusyMicro)) / 1e6 / (last.Timestamp - first.Timestamp)
	}
	of := func(m match) match {
		m["priority"] = "" // the total over priorities
		m["dp_rank"] = strconv.Itoa(dp)
		if !o.hasDP() {
			m["dp_rank"] = ""
		}
		return m
	}
	per := func(family string, m match) float64 {
		return increase(o.Before, o.After, "sglang_"+family, of(m)) / o.Seconds
	}
	r.Decoded = per("realtime_tokens_total", match{"mode": "decode"})
	r.Computed = per("realtime_tokens_total", match{"mode": "prefill_compute"})
	r.Found = per("realtime_tokens_total", match{"mode": "prefill_cache"})
	r.Effective = per("prefill_effective_tokens_total", match{})
	r.CPU = per("scheduler_process_cpu_seconds_total", match{})
	r.Retractions = per("num_retracted_requests_total", match{})
	r.LostTokens = per("num_retracted_output_tokens_total", match{})
	// A rank tells of its time at reports, which lag behind: what it told of the interval has to be most of it.
	r.Idle = math.NaN()
	if told := per("scheduler_stage_seconds_total", match{}); told >= leastTold {
		r.Idle = min(1, per("scheduler_idle_seconds_total", match{})/told)
	}
	return r
}

// leastTold is the part of the interval that a rank must have told of before its shares count.
const leastTold = 0.5

// hasDP says whether the engine's series tell data-parallel ranks apart.
func (o Observation) hasDP() bool {
	for dp := range o.After.values("sglang_num_running_reqs", nil, "dp_rank") {
		if dp != "" {
			return true
		}
	}
	return false
}

func (o Observation) front() Front {
	f := Front{Pool: o.Pool, Role: o.Role, Engine: o.Engine, Seconds: o.Seconds}
	sum := func(family string, m match) float64 { return increase(o.Before, o.After, family, m) }
	mean := func(family string, m match) float64 {
		return sum(family, m) / positive(grown(o.Before.count(family, m), o.After.count(family, m)))
	}
	tokenize := match{"name": "tokenize_request"}
	f.Tokenizing = sum("sglang_func_latency_seconds", tokenize) / o.Seconds
	f.Dispatching = sum("sglang_func_latency_seconds", match{"name": "dispatch_request"}) / o.Seconds
	f.TokenizeMean = mean("sglang_func_latency_seconds", tokenize)
	f.InFlight = (o.Before.total("sluice_requests_in_flight", nil) + o.After.total("sluice_requests_in_flight", nil)) / 2
	f.CPU = sum("process_cpu_seconds_total", nil) / o.Seconds / positive(o.After.total("go_sched_gomaxprocs_threads", nil))
	// Each request is in the series of its own priority, of those of ranks alone one series is the total.
	var of, total match = nil, match{"priority": ""}
	first := "sglang_time_to_first_token_seconds"
	if o.Role == "Prefill" {
		first = "sglang_e2e_request_latency_seconds"
	}
	f.BeforeFirst = sum(first, of) / o.Seconds
	f.InRanks = sum("sglang_queue_time_seconds", total)
	for _, stage := range rankStages() {
		f.InRanks += known(sum("sglang_per_stage_req_latency_seconds", match{"stage": stage, "priority": ""}))
	}
	f.InRanks /= o.Seconds
	f.TTFT = mean("sglang_time_to_first_token_seconds", of)
	f.ITL = mean("sglang_inter_token_latency_seconds", of)
	f.E2E = mean("sglang_e2e_request_latency_seconds", of)
	f.Ended = sum("sluice_request_outcomes_total", of) / o.Seconds
	outcomes := func(names ...string) float64 {
		ended := 0.0
		for _, name := range names {
			ended += sum("sluice_request_outcomes_total", match{"outcome": name})
		}
		return ended / o.Seconds
	}
	f.Refused = outcomes("refused", "preempted", "timeout")
	f.Failed = outcomes("bootstrap_failed", "transfer_failed", "internal_error")
	f.FoundBy = map[string]float64{}
	before, after := o.Before.values("sglang_cached_tokens_total", of, "cache_source"), o.After.values("sglang_cached_tokens_total", of, "cache_source")
	for source, n := range after {
		if rate := grown(before[source], n) / o.Seconds; rate > 0 {
			f.FoundBy[source] = rate
		}
	}
	return f
}

// rankStages are the stages that a request passes in a rank before its first output, but for the wait in the queue.
func rankStages() []string {
	return []string{"request_process", "prefill_bootstrap", "prefill_forward", "prefill_transfer_kv_cache", "decode_bootstrap", "decode_transferred", "decode_waiting"}
}

func (o RouterObservation) router() Router {
	sum := func(family string) float64 { return increase(o.Before, o.After, family, nil) }
	mean := func(family string) float64 {
		return sum(family) / positive(grown(o.Before.count(family, nil), o.After.count(family, nil)))
	}
	return Router{
		Router: o.Router, Seconds: o.Seconds,
		Waiting:  sum("sluice_router_queue_wait_seconds") / o.Seconds,
		WaitMean: mean("sluice_router_queue_wait_seconds"),
		Added:    mean("sluice_router_added_latency_seconds"),
		Requests: sum("sluice_router_requests_total") / o.Seconds,
		Retries:  sum("sluice_router_retries_total") / o.Seconds,
		CPU:      sum("process_cpu_seconds_total") / o.Seconds / positive(o.After.total("go_sched_gomaxprocs_threads", nil)),
	}
}

// positive gives NaN for what one can't divide by.
func positive(x float64) float64 {
	if x > 0 {
		return x
	}
	return math.NaN()
}
