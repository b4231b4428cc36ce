package diagnosis

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/loads"
)

const before = `# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="0"} 100
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="1"} 100
sglang:realtime_tokens_total{dp_rank="1",mode="decode",tp_rank="2"} 1000
sglang:realtime_tokens_total{dp_rank="0",mode="prefill_compute",priority="",tp_rank="0"} 10
sglang:realtime_tokens_total{dp_rank="0",mode="prefill_compute",priority="5",tp_rank="0"} 10
# TYPE sglang:scheduler_stage_seconds_total counter
sglang:scheduler_stage_seconds_total{category="idle",dp_rank="0",tp_rank="0"} 1
sglang:scheduler_stage_seconds_total{category="run_batch",dp_rank="0",tp_rank="0"} 1
sglang:scheduler_stage_seconds_total{category="idle",dp_rank="1",tp_rank="2"} 1
# TYPE sglang:scheduler_idle_seconds_total counter
sglang:scheduler_idle_seconds_total{dp_rank="0",tp_rank="0"} 1
sglang:scheduler_idle_seconds_total{dp_rank="1",tp_rank="2"} 1
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 3
# TYPE sglang:func_latency_seconds histogram
sglang:func_latency_seconds_bucket{name="tokenize_request",le="+Inf"} 10
sglang:func_latency_seconds_sum{name="tokenize_request"} 1
sglang:func_latency_seconds_count{name="tokenize_request"} 10
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device"} 5
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 4
# TYPE sluice_requests_in_flight gauge
sluice_requests_in_flight 2
# TYPE sluice_request_outcomes_total counter
sluice_request_outcomes_total{outcome="stop",priority=""} 10
sluice_request_outcomes_total{outcome="stop",priority="5"} 20
sluice_request_outcomes_total{outcome="internal_error",priority="5"} 1
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_sum{priority="5"} 2
sglang:time_to_first_token_seconds_count{priority="5"} 20
# TYPE sglang:queue_time_seconds histogram
sglang:queue_time_seconds_sum{dp_rank="0",priority=""} 1
sglang:queue_time_seconds_count{dp_rank="0",priority=""} 10
sglang:queue_time_seconds_sum{dp_rank="0",priority="5"} 1
sglang:queue_time_seconds_count{dp_rank="0",priority="5"} 10
`

const after = `# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="0"} 300
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="1"} 300
sglang:realtime_tokens_total{dp_rank="1",mode="decode",tp_rank="2"} 5
sglang:realtime_tokens_total{dp_rank="0",mode="prefill_compute",priority="",tp_rank="0"} 30
sglang:realtime_tokens_total{dp_rank="0",mode="prefill_compute",priority="5",tp_rank="0"} 30
# TYPE sglang:scheduler_stage_seconds_total counter
sglang:scheduler_stage_seconds_total{category="idle",dp_rank="0",tp_rank="0"} 3
sglang:scheduler_stage_seconds_total{category="run_batch",dp_rank="0",tp_rank="0"} 7
sglang:scheduler_stage_seconds_total{category="idle",dp_rank="1",tp_rank="2"} 2
# TYPE sglang:scheduler_idle_seconds_total counter
sglang:scheduler_idle_seconds_total{dp_rank="0",tp_rank="0"} 3
sglang:scheduler_idle_seconds_total{dp_rank="1",tp_rank="2"} 2
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 3
# TYPE sglang:func_latency_seconds histogram
sglang:func_latency_seconds_bucket{name="tokenize_request",le="+Inf"} 30
sglang:func_latency_seconds_sum{name="tokenize_request"} 6
sglang:func_latency_seconds_count{name="tokenize_request"} 30
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device"} 105
sglang:cached_tokens_total{cache_source="host"} 50
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 14
# TYPE go_sched_gomaxprocs_threads gauge
go_sched_gomaxprocs_threads 4
# TYPE sluice_requests_in_flight gauge
sluice_requests_in_flight 4
# TYPE sluice_request_outcomes_total counter
sluice_request_outcomes_total{outcome="stop",priority=""} 20
sluice_request_outcomes_total{outcome="stop",priority="5"} 40
sluice_request_outcomes_total{outcome="internal_error",priority="5"} 11
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_sum{priority="5"} 12
sglang:time_to_first_token_seconds_count{priority="5"} 40
# TYPE sglang:queue_time_seconds histogram
sglang:queue_time_seconds_sum{dp_rank="0",priority=""} 6
sglang:queue_time_seconds_count{dp_rank="0",priority=""} 30
sglang:queue_time_seconds_sum{dp_rank="0",priority="5"} 6
sglang:queue_time_seconds_count{dp_rank="0",priority="5"} 30
`

func TestMeasure(t *testing.T) {
	parse := func(text string) Exposition {
		e, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	nan := math.NaN()
	poll := func(running, waiting int, at float64, busyMicro int64) loads.Load {
		return loads.Load{Timestamp: at, NumRunningReqs: running, NumWaitingReqs: waiting, MaxRunningRequests: 16, TokenUsage: 0.5, TotalPrefillBusyMicro: busyMicro,
			Queues: &loads.Queues{Grammar: 2}, Disaggregation: &loads.Disaggregation{DecodePreallocQueueReqs: 4}}
	}
	o := Observation{
		Pool: "main", Role: "Unified", Engine: "a", Seconds: 10, Before: parse(before), After: parse(after),
		Polls: [][]loads.Load{{poll(2, 1, 100, 0), {DPRank: 1}}, {poll(4, 3, 104, 1_000_000), {DPRank: 1}}},
	}
	got := Measure([]Observation{o}, nil, []string{"b: gone"})
	want := Facts{
		Seconds: 10, Missing: []string{"b: gone"},
		Ranks: []Rank{
			{Pool: "main", Role: "Unified", Engine: "a", DP: 0, Seconds: 10, Running: 3, Waiting: 2, LeastWaiting: 1, Cap: 16, Usage: 0.5, Occupied: 1, Grammar: 2, Prealloc: 4, PrefillShare: 0.25,
				Decoded: 20, Computed: 2, Found: 0, Effective: nan, Idle: 0.25, CPU: nan, Retractions: nan, LostTokens: nan},
			// Its counter began anew, and it told of a tenth of the interval.
			{Pool: "main", Role: "Unified", Engine: "a", DP: 1, Seconds: 10, PrefillShare: nan,
				Decoded: nan, Computed: 0, Found: 0, Effective: nan, Idle: nan, CPU: nan, Retractions: nan, LostTokens: nan},
		},
		Fronts: []Front{{Pool: "main", Role: "Unified", Engine: "a", Seconds: 10, Tokenizing: 0.5, Dispatching: 0, TokenizeMean: 0.25, BeforeFirst: 1, InRanks: 0.5, InFlight: 3, CPU: 0.25,
			TTFT: 0.5, ITL: nan, E2E: nan, Ended: 4, Refused: 0, Failed: 1, FoundBy: map[string]float64{"device": 10, "host": 5}}},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

// FuzzParse: whatever a process answers to /metrics gives an error or facts, and a report that is fit for JSON.
func FuzzParse(f *testing.F) {
	f.Add([]byte(before), []byte(after))
	f.Add([]byte("sglang:realtime_tokens_total NaN\n"), []byte("sglang:realtime_tokens_total +Inf\n"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		first, err := Parse(a)
		if err != nil {
			return
		}
		second, err := Parse(b)
		if err != nil {
			return
		}
		polls := [][]loads.Load{{{NumRunningReqs: 1}, {DPRank: 1, NumWaitingReqs: 2}}}
		facts := Measure([]Observation{{Pool: "p", Role: "Decode", Engine: "e", Seconds: 1, Before: first, After: second, Polls: polls}},
			[]RouterObservation{{Router: "r", Seconds: 1, Before: first, After: second}}, nil)
		r := Conclude(facts)
		for _, path := range r.Paths {
			for _, e := range path.Evidence {
				if math.IsNaN(e.Value) || math.IsInf(e.Value, 0) {
					t.Errorf("%s", e)
				}
			}
		}
	})
}
