package metrics

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// recorder is a backend that remembers every update in order, without the labels that all series share.
type recorder struct {
	mu      sync.Mutex
	updates []string
	refused map[string]int // counts of refused label values, by family; they are no updates
}

type recorded struct {
	r    *recorder
	name string
}

func (r *recorder) series(f *Family, labels []Label) recorded {
	var own []string
	for _, l := range labels {
		if slices.Contains(f.Labels, l.Name) || l.Name == "team" || l.Name == priorityLabel {
			own = append(own, l.Name+"="+l.Value)
		}
	}
	slices.Sort(own)
	name := strings.TrimPrefix(f.Name, "sglang:")
	if len(own) > 0 {
		name += "{" + strings.Join(own, ",") + "}"
	}
	return recorded{r, name}
}

func (r *recorder) Counter(f *Family, labels []Label) CounterSeries {
	if f == labelValuesRefused {
		return refusals{r, strings.TrimPrefix(labels[0].Value, "sglang:")}
	}
	return r.series(f, labels)
}

// refusals counts one family's refused label values.
type refusals struct {
	r      *recorder
	family string
}

func (s refusals) Add(v float64) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.r.refused == nil {
		s.r.refused = map[string]int{}
	}
	s.r.refused[s.family] += int(v)
}

func (r *recorder) Gauge(f *Family, labels []Label) GaugeSeries {
	return recordedGauge{r.series(f, labels)}
}
func (r *recorder) Histogram(f *Family, labels []Label, _ []float64) HistogramSeries {
	return r.series(f, labels)
}

func (s recorded) say(format string, args ...any) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.updates = append(s.r.updates, s.name+" "+fmt.Sprintf(format, args...))
}

func (s recorded) Add(v float64)     { s.say("+%v", v) }
func (s recorded) Observe(v float64) { s.say("%v", v) }
func (s recorded) ObserveWeighted(total float64, weight uint64) {
	s.say("%v / %d", total, weight)
}

type recordedGauge struct{ recorded }

func (s recordedGauge) Set(v float64, _ int64) { s.say("= %v", v) }
func (s recordedGauge) Add(v float64, _ int64) { s.say("%+g", v) }

// take gives the updates since the last call.
func (r *recorder) take() []string {
	u := r.updates
	r.updates = nil
	return u
}

func TestReports(t *testing.T) {
	cases := []struct {
		engineType string
		kind       report.Kind
		reason     string
		want       []string
	}{
		{"unified", report.Prefill, "owns the hit rate", []string{
			"num_running_reqs = 11", "num_queue_reqs = 12", "gen_throughput = 170.5", "cache_hit_rate = 0.19", "utilization = 0.81", "fwd_occupancy = 61.5", "new_token_ratio = 0.55",
			"token_usage = 0.36", "full_token_usage = 0.3557", "swa_token_usage = 0.3752", "num_used_tokens = 1301", "kv_available_tokens = 1402", "kv_evictable_tokens = 1503",
			"kv_used_tokens = 1604", "swa_available_tokens = 702", "swa_evictable_tokens = 803", "swa_used_tokens = 904", "num_grammar_queue_reqs = 31", "num_paused_reqs = 28", "num_retracted_reqs = 26",
		}},
		{"unified", report.Decode, "leaves the hit rate alone: a zero here would be a pulse", []string{
			"num_running_reqs = 11", "num_queue_reqs = 12", "gen_throughput = 170.5", "decode_sum_seq_lens = 1515", "utilization = 0.81", "fwd_occupancy = 61.5",
			"token_usage = 0.36", "full_token_usage = 0.3557", "swa_token_usage = 0.3752", "num_used_tokens = 1301", "kv_available_tokens = 1402", "kv_evictable_tokens = 1503",
			"kv_used_tokens = 1604", "swa_available_tokens = 702", "swa_evictable_tokens = 803", "swa_used_tokens = 904", "num_streaming_sessions = 13", "streaming_session_held_tokens = 144", "num_unique_running_routing_keys = 16", "num_grammar_queue_reqs = 31", "num_paused_reqs = 28", "num_retracted_reqs = 26",
		}},
		{"unified", report.Idle, "throughput is 0; hit rate, utilization and retractions keep their values", []string{
			"num_running_reqs = 11", "num_queue_reqs = 12", "gen_throughput = 0", "fwd_occupancy = 61.5",
			"token_usage = 0.36", "full_token_usage = 0.3557", "swa_token_usage = 0.3752", "num_used_tokens = 1301", "kv_available_tokens = 1402", "kv_evictable_tokens = 1503",
			"kv_used_tokens = 1604", "swa_available_tokens = 702", "swa_evictable_tokens = 803", "swa_used_tokens = 904", "num_streaming_sessions = 13", "streaming_session_held_tokens = 144", "num_grammar_queue_reqs = 31", "num_paused_reqs = 28",
		}},
		{"prefill", report.Prefill, "utilization is the sentinel, the queues are those of prefill", []string{
			"num_running_reqs = 11", "num_queue_reqs = 12", "num_prefill_bootstrap_queue_reqs = 20", "num_prefill_inflight_queue_reqs = 21",
			"gen_throughput = 170.5", "cache_hit_rate = 0.19", "utilization = -1", "fwd_occupancy = 61.5", "new_token_ratio = 0.55",
			"token_usage = 0.36", "full_token_usage = 0.3557", "swa_token_usage = 0.3752", "num_used_tokens = 1301", "kv_available_tokens = 1402", "kv_evictable_tokens = 1503",
			"kv_used_tokens = 1604", "swa_available_tokens = 702", "swa_evictable_tokens = 803", "swa_used_tokens = 904", "num_grammar_queue_reqs = 31", "num_paused_reqs = 28",
		}},
		{"decode", report.Idle, "the queues are those of decode", []string{
			"num_running_reqs = 11", "num_queue_reqs = 12", "num_decode_prealloc_queue_reqs = 22", "num_decode_transfer_queue_reqs = 23",
			"num_decode_host_receive_queue_reqs = 24", "gen_throughput = 0", "fwd_occupancy = 61.5",
			"token_usage = 0.36", "full_token_usage = 0.3557", "swa_token_usage = 0.3752", "num_used_tokens = 1301", "kv_available_tokens = 1402", "kv_evictable_tokens = 1503",
			"kv_used_tokens = 1604", "swa_available_tokens = 702", "swa_evictable_tokens = 803", "swa_used_tokens = 904",
			"num_grammar_queue_reqs = 31", "num_paused_reqs = 28", "num_decode_deferred_kv_release_reqs = 25", "pending_prealloc_token_usage = 0.29",
		}},
	}
	for _, c := range cases {
		t.Run(c.engineType+" "+c.kind.String(), func(t *testing.T) {
			r := &recorder{}
			NewScheduler(r, RankLabels{EngineType: c.engineType, Features: allFeatures}, ledgertest.New()).Report(snapshot(c.kind))
			if c.kind == report.Decode {
				c.want = append(c.want, routingKeyLines()...)
			}
			if diff := cmp.Diff(c.want, r.take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// routingKeyLines are the updates of both families of routing keys.
func routingKeyLines() (lines []string) {
	for i, name := range []string{"running", "all"} {
		from := "0"
		for bucket, to := range []string{"1", "2", "3", "5", "7", "10", "20", "50", "100", "200", "+Inf"} {
			lines = append(lines, fmt.Sprintf("routing_key_%s_req_count{gt=%s,le=%s} = %d", name, from, to, 101+100*i+bucket))
			from = to
		}
	}
	return lines
}

// TestFeatures: a rank without a feature has none of its families, also when it is told of them.
func TestFeatures(t *testing.T) {
	for _, f := range []Features{0, WithSlidingWindow, WithSessions, WithDeviceTimer, WithMFU} {
		dir := t.TempDir()
		m := NewScheduler(openStore(t, dir, "rank-0"), RankLabels{EngineType: "unified", Features: f}, ledgertest.New())
		fill(m, NewFront(&recorder{}, FrontLabels{}, Buckets{}, ledgertest.New()), ledger.Unified)
		text := scrape(t, newGatherer(t, dir))
		for _, family := range Families() {
			if family.Needs != 0 {
				if has := strings.Contains(text, "# TYPE "+family.Name+" "); has != (family.Needs == f && family.Engines.Has("unified")) {
					t.Errorf("features %b: %s is there: %t", f, family.Name, has)
				}
			}
		}
	}
}

// TestUnknownOccupancy: what is not known reads NaN, which no parser of the exposition takes for a number, and goes on as one.
func TestUnknownOccupancy(t *testing.T) {
	dir := t.TempDir()
	m := NewScheduler(openStore(t, dir, "rank-0"), RankLabels{EngineType: "unified"}, ledgertest.New())
	s := snapshot(report.Idle)
	g := newGatherer(t, dir)
	for _, want := range []string{"NaN", "12.5", "NaN"} {
		if s.FwdOccupancy = math.NaN(); want != "NaN" {
			s.FwdOccupancy = 12.5
		}
		m.Report(s)
		if text := scrape(t, g); !strings.Contains(text, "sglang:fwd_occupancy{") || !strings.Contains(text, "} "+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// TestRankEventsAllocateNothing: once its series exist, whatever a scheduler tells costs it no memory.
func TestRankEventsAllocateNothing(t *testing.T) {
	m := NewScheduler(openStore(t, t.TempDir(), "rank-0"), RankLabels{EngineType: "decode", Priority: true, Features: allFeatures}, ledger.System())
	s := snapshot(report.Decode)
	for _, q := range []*report.QueueCount{&s.NumRunningReqs, &s.NumQueueReqs} {
		q.ByPriority = []report.PriorityCount{{Count: 3}, {Priority: report.Priority{Set: true, Value: 4}, Count: q.Total - 3}}
	}
	loop := loopTime()
	m.Started(constants())
	all := func() {
		m.Report(s)
		m.LoopTime(loop)
		m.QueueTime(5, report.Priority{Set: true, Value: 4})
		m.StageTime(ledger.StageDecodeForward, 6)
		m.KVTransfer(report.KVTransfer{TotalBytes: 7, LatencyNanos: 8})
		m.KVReleased(report.ReleaseError, 9)
		m.BootstrapFailed()
		m.TransferFailed()
		m.PrefillRetried()
		m.Rejected(report.RejectedTimeout)
		m.Retracted(10, 11, 12)
		m.RealtimeTokens(13, 14, 15)
		m.PrefillTokens(16, 17)
		m.Forward(report.ForwardDecode, 18)
		m.Estimated(report.Cost{Flops: 19})
		m.Evicted(20, 21)
		m.Grammar(report.Grammar{CompileNanos: 22, Schemas: 23, Size: 24})
		m.GrammarMasks(25, 26)
		m.Violated(ledger.LawPages)
	}
	all()
	if n := testing.AllocsPerRun(100, all); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// The total stays under an empty priority; every priority ever seen keeps a sample, and those beyond the bound share one.
func TestQueuesByPriority(t *testing.T) {
	r := &recorder{}
	const maxPriorities = 64
	m := NewScheduler(r, RankLabels{EngineType: "unified", Priority: true, MaxValues: maxPriorities}, ledgertest.New())
	queue := func(counts ...report.PriorityCount) []string {
		s := report.Snapshot{Kind: report.Decode}
		for _, c := range counts {
			s.NumQueueReqs.Total += c.Count
		}
		s.NumQueueReqs.ByPriority = counts
		m.Report(s)
		var lines []string
		for _, line := range r.take() {
			if strings.HasPrefix(line, "num_queue_reqs") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	set := func(v int) report.Priority { return report.Priority{Set: true, Value: v} }
	for _, step := range []struct {
		reason string
		counts []report.PriorityCount
		want   []string
	}{
		{"nothing was seen", nil, []string{"num_queue_reqs{priority=} = 0"}},
		{"a request without priority is none", []report.PriorityCount{{Count: 2}, {Priority: set(-1), Count: 3}},
			[]string{"num_queue_reqs{priority=} = 5", "num_queue_reqs{priority=none} = 2", "num_queue_reqs{priority=-1} = 3"}},
		{"a drained priority is 0", []report.PriorityCount{{Priority: set(7), Count: 1}},
			[]string{"num_queue_reqs{priority=} = 1", "num_queue_reqs{priority=none} = 0", "num_queue_reqs{priority=-1} = 0", "num_queue_reqs{priority=7} = 1"}},
	} {
		if diff := cmp.Diff(step.want, queue(step.counts...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.reason, diff)
		}
	}
	var many []report.PriorityCount
	for v := range maxPriorities + 10 {
		many = append(many, report.PriorityCount{Priority: set(v), Count: 1})
	}
	lines := queue(many...)
	if n := r.refused["num_queue_reqs"]; n != 12 {
		t.Errorf("%d refusals are counted, not those of 12 priorities", n)
	}
	if len(lines) != 1+maxPriorities+1 || lines[len(lines)-1] != "num_queue_reqs{priority=other} = 12" {
		t.Errorf("%d samples, the last %q; want the total, %d priorities, and the others, which are 12", len(lines), lines[len(lines)-1], maxPriorities)
	}

	r = &recorder{}
	m = NewScheduler(r, RankLabels{EngineType: "unified", Priority: true, Extra: map[string]string{"priority": "x"}}, ledgertest.New())
	if lines := queue(report.PriorityCount{Count: 4}); !cmp.Equal(lines, []string{"num_queue_reqs{priority=x} = 4"}) {
		t.Errorf("with a label of this name from the operator: %q", lines)
	}
}

func TestSchedulerEvents(t *testing.T) {
	cases := []struct {
		name, reason, engineType string
		do                       func(*Scheduler)
		want                     []string
	}{
		{"transfer", "size in MiB, speed in GiB/s, times in ms", "prefill", func(m *Scheduler) {
			m.KVTransfer(report.KVTransfer{TotalBytes: 3 << 30, LatencyNanos: 1.5e9, BootstrapNanos: 2e6, AllocNanos: 3e6})
		}, []string{"kv_transfer_total_mb 3072", "kv_transfer_speed_gb_s 2", "kv_transfer_latency_ms 1500", "kv_transfer_bootstrap_ms 2", "kv_transfer_alloc_ms 3"}},
		{"transfer without time", "no division by 0", "prefill", func(m *Scheduler) {
			m.KVTransfer(report.KVTransfer{TotalBytes: 5, AllocNanos: -1})
		}, []string{"kv_transfer_bootstrap_ms 0", "kv_transfer_alloc_ms 0"}},
		{"decode", "a decode engine has the waits only", "decode", func(m *Scheduler) {
			m.KVTransfer(report.KVTransfer{TotalBytes: 3 << 30, LatencyNanos: 1.5e9, BootstrapNanos: 2e6, AllocNanos: 3e6})
		}, []string{"kv_transfer_bootstrap_ms 2", "kv_transfer_alloc_ms 3"}},
		{"unified", "a unified engine has no transfers", "unified", func(m *Scheduler) {
			m.KVTransfer(report.KVTransfer{TotalBytes: 3 << 30, LatencyNanos: 1.5e9, BootstrapNanos: 2e6, AllocNanos: 3e6})
			m.BootstrapFailed()
			m.TransferFailed()
		}, nil},
		{"failures", "", "decode", func(m *Scheduler) { m.BootstrapFailed(); m.TransferFailed() }, []string{"num_bootstrap_failed_reqs_total +1", "num_transfer_failed_reqs_total +1"}},
		{"retraction", "", "unified", func(m *Scheduler) { m.Retracted(2, 30, 4); m.Retracted(0, 0, 0) },
			[]string{"num_retracted_requests_total +2", "num_retracted_input_tokens_total +30", "num_retracted_output_tokens_total +4"}},
		{"tokens", "a zero makes no series", "unified", func(m *Scheduler) { m.RealtimeTokens(5, 0, 0); m.RealtimeTokens(0, 0, 7) },
			[]string{"realtime_tokens_total{mode=prefill_compute} +5", "realtime_tokens_total{mode=decode} +7"}},
		{"effective tokens", "", "prefill", func(m *Scheduler) { m.PrefillTokens(5, 6) },
			[]string{"prefill_effective_tokens_total{mode=input} +5", "prefill_effective_tokens_total{mode=device_hit} +6"}},
		{"eviction", "", "unified", func(m *Scheduler) { m.Evicted(64, 2e6) }, []string{"evicted_tokens_total +64", "eviction_duration_seconds 0.002"}},
		{"eviction on decode", "there is no cache", "decode", func(m *Scheduler) { m.Evicted(64, 2e6) }, nil},
		{"grammar", "compiled", "unified", func(m *Scheduler) { m.Grammar(report.Grammar{CompileNanos: 5e8, Schemas: 3, Size: 40}) },
			[]string{"num_grammar_total +1", "grammar_compilation_time_seconds 0.5", "grammar_schema_count 3", "grammar_ebnf_size 40"}},
		{"expression in the cache", "no time and no schemas", "unified", func(m *Scheduler) { m.Grammar(report.Grammar{CompileNanos: 5, CacheHit: true, Size: 40}) },
			[]string{"num_grammar_total +1", "num_grammar_cache_hit_total +1", "grammar_ebnf_size 40"}},
		{"no grammar", "counted once as a request, and once as what became of it", "unified", func(m *Scheduler) {
			m.Grammar(report.Grammar{Outcome: report.GrammarAborted})
			m.Grammar(report.Grammar{Outcome: report.GrammarTimedOut})
		}, []string{"num_grammar_total +1", "num_grammar_aborted_total +1", "num_grammar_total +1", "num_grammar_timeout_total +1"}},
		{"release", "", "decode", func(m *Scheduler) { m.KVReleased(report.ReleaseTimeout, 3e9) },
			[]string{"decode_deferred_kv_release_total{outcome=timeout} +1", "decode_deferred_kv_release_seconds 3"}},
		{"loop", "what took no time makes no series, idle seconds come with some", "unified", func(m *Scheduler) {
			var l report.LoopTime
			l.Iterations, l.CPUNanos = 3, 4e8
			l.StageNanos[report.LoopRun][report.OverlapFull] = 5e8
			m.LoopTime(l)
		}, []string{"scheduler_iterations_total +3", "scheduler_process_cpu_seconds_total +0.4", "scheduler_stage_seconds_total{category=run_batch,forward_overlap=full} +0.5"}},
		{"times", "seconds", "unified", func(m *Scheduler) {
			m.QueueTime(2500e6, report.Priority{Set: true, Value: 3})
			m.StageTime(ledger.StagePrefillForward, 1e6)
		},
			[]string{"queue_time_seconds 2.5", "per_stage_req_latency_seconds{stage=prefill_forward} 0.001"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := &recorder{}
			m := NewScheduler(r, RankLabels{EngineType: c.engineType}, ledgertest.New())
			c.do(m)
			if diff := cmp.Diff(c.want, r.take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestFrontEvents(t *testing.T) {
	stream := Subject{Streaming: true}
	cases := []struct {
		name, reason, engineType string
		do                       func(*Front)
		want                     []string
	}{
		{"first token", "", "decode", func(f *Front) { f.FirstToken(stream, 15e8) }, []string{"time_to_first_token_seconds{is_streaming=True,team=} 1.5"}},
		{"first token on prefill", "never there", "prefill", func(f *Front) { f.FirstToken(stream, 15e8) }, nil},
		{"inter token", "one update of weight 4; the interval counts once", "unified", func(f *Front) { f.InterToken(stream, 2e9, 4) }, []string{"inter_token_latency_seconds{team=} 2 / 4"}},
		{"no new tokens", "a count that falls or stays is no sample", "unified", func(f *Front) { f.InterToken(stream, 2e9, 0); f.InterToken(stream, 2e9, -3) }, nil},
		{"inter token on prefill", "a negative weight there would break the scrape", "prefill", func(f *Front) { f.InterToken(stream, 2e9, 4) }, nil},
		{"finished", "uncached is prompt without cached", "unified", func(f *Front) {
			f.Finished(Subject{Custom: map[string]string{"team": "red", "other": "x"}}, Finished{PromptTokens: 10, CompletionTokens: 20, CachedTokens: 4, E2ENanos: 3e9, TPOTNanos: 5e8})
		}, []string{
			"num_requests_total{is_streaming=False,team=red} +1", "prompt_tokens_total{is_streaming=False,team=red} +10", "generation_tokens_total{is_streaming=False,team=red} +20",
			"prompt_tokens_histogram{team=red} 10", "uncached_prompt_tokens_histogram{team=red} 6", "generation_tokens_histogram{team=red} 20",
			"e2e_request_latency_seconds{is_streaming=False,team=red} 3", "request_time_per_output_token_seconds{is_streaming=False,team=red} 0.5", "cached_tokens_total{cache_source=device,team=red} +4",
		}},
		{"finished at once", "no cache hit and no time per token are no samples", "unified", func(f *Front) { f.Finished(stream, Finished{PromptTokens: 1}) }, []string{
			"num_requests_total{is_streaming=True,team=} +1", "prompt_tokens_total{is_streaming=True,team=} +1", "generation_tokens_total{is_streaming=True,team=} +0",
			"prompt_tokens_histogram{team=} 1", "uncached_prompt_tokens_histogram{team=} 1", "generation_tokens_histogram{team=} 0", "e2e_request_latency_seconds{is_streaming=True,team=} 0",
		}},
		{"others", "", "unified", func(f *Front) { f.Aborted(); f.LoadsServed(1e6) }, []string{"num_aborted_requests_total{team=} +1", "get_loads_duration_seconds{team=} 0.001"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := &recorder{}
			f := NewFront(r, FrontLabels{EngineType: c.engineType, Custom: []string{"team"}}, Buckets{}, ledgertest.New())
			r.take()
			c.do(f)
			if diff := cmp.Diff(c.want, r.take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestCustomLabelsAreCapped(t *testing.T) {
	r := &recorder{}
	const most = 4
	f := NewFront(r, FrontLabels{EngineType: "unified", Custom: []string{"team", "model_name"}, MaxValues: most}, Buckets{}, ledgertest.New())
	for i := range 5 * most {
		f.FirstToken(Subject{Custom: map[string]string{"team": fmt.Sprint(i)}, Streaming: i%2 == 1}, 1e9)
	}
	lines := r.take()
	for i, want := range []string{"is_streaming=False,team=other} 1", "is_streaming=True,team=other} 1"} {
		if got := lines[5*most-2+i]; got != "time_to_first_token_seconds{"+want {
			t.Errorf("beyond the cap: %s, not %s", got, want)
		}
	}
	if n := len(f.requests.byKey) + len(f.requests.shared); n != 2*most+2 {
		t.Errorf("%d sets of labels, not %d and those of the others, streaming or not", n, 2*most)
	}
	if n := r.refused["num_requests_total"]; n != 3*most {
		t.Errorf("%d refusals are counted, not %d", n, 3*most)
	}
}

// Values of labels are bytes of clients: no two sets of them are one.
func TestCustomLabelsDoNotCollide(t *testing.T) {
	r := &recorder{}
	f := NewFront(r, FrontLabels{EngineType: "unified", Custom: []string{"team", "tenant"}}, Buckets{}, ledgertest.New())
	for _, custom := range []map[string]string{{"team": "a\x00b", "tenant": "c"}, {"team": "a", "tenant": "b\x00c"}, {"team": "a\x001", "tenant": ""}} {
		f.FirstToken(Subject{Custom: custom}, 1e9)
	}
	if n := len(f.requests.byKey); n != 3 {
		t.Errorf("%d sets of labels, not 3", n)
	}
}

func TestEndpoints(t *testing.T) {
	r := &recorder{}
	f := NewFront(r, FrontLabels{EngineType: "unified"}, Buckets{}, ledgertest.New())
	r.take()
	cases := []struct {
		name, reason, method, endpoint string
		status                         int // 0: no response began
		want                           []string
	}{
		{"route", "one request, one response", "POST", "/v1/completions", 201, []string{
			"http_requests_total{endpoint=/v1/completions,method=POST} +1", "http_requests_active{endpoint=/v1/completions,method=POST} +1",
			"http_responses_total{endpoint=/v1/completions,method=POST,status_code=201} +1", "http_requests_active{endpoint=/v1/completions,method=POST} -1",
		}},
		{"unmatched", "what no route and no standard has is one series", "BREW", "", 404, []string{
			"http_requests_total{endpoint=unmatched,method=other} +1", "http_requests_active{endpoint=unmatched,method=other} +1",
			"http_responses_total{endpoint=unmatched,method=other,status_code=404} +1", "http_requests_active{endpoint=unmatched,method=other} -1",
		}},
		{"status", "what is no status is one series", "GET", "/health", 999, []string{
			"http_requests_total{endpoint=/health,method=GET} +1", "http_requests_active{endpoint=/health,method=GET} +1",
			"http_responses_total{endpoint=/health,method=GET,status_code=other} +1", "http_requests_active{endpoint=/health,method=GET} -1",
		}},
		{"no response", "but not active any more", "GET", "/panic", 0, []string{
			"http_requests_total{endpoint=/panic,method=GET} +1", "http_requests_active{endpoint=/panic,method=GET} +1", "http_requests_active{endpoint=/panic,method=GET} -1",
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f.RequestStarted(c.endpoint, c.method)
			if c.status != 0 {
				f.ResponseStarted(c.endpoint, c.method, c.status)
			}
			f.RequestEnded(c.endpoint, c.method)
			if diff := cmp.Diff(c.want, r.take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
	f.RequestStarted("/x", "GET")
	for i := range 2 * DefaultLabelValues {
		f.RequestStarted(fmt.Sprint("/", i), "GET")
	}
	if got := r.take(); got[len(got)-2] != "http_requests_total{endpoint=unmatched,method=other} +1" {
		t.Errorf("endpoints are not capped: %s", got[len(got)-2])
	}
}

func TestBucketRules(t *testing.T) {
	cases := []struct {
		name, words string
		want        []float64
		err         string
	}{
		{"none", "", nil, ""},
		{"default", "default", nil, ""},
		{"tse", "tse 1000 2 8", []float64{984, 992, 996, 998, 1000, 1002, 1004, 1008, 1016}, ""},
		{"tse near 0", "tse 3 2 4", []float64{0, 1, 3, 5, 7}, ""},
		{"custom", "custom 5 0.5 1", []float64{0.5, 1, 5}, ""},
		{"custom, none", "custom", nil, "at least one bound is needed: give numbers such as 0.1 0.5 1"},
		{"custom, word", "custom 1 x", nil, `"x" is not a number: give numbers such as 0.1 0.5 1`},
		{"custom, twice", "custom 1 1", nil, "bound 1 is there twice: name it once"},
		{"custom, negative", "custom -1", nil, "bound -1 is negative: give 0 or more"},
		{"custom, NaN", "custom NaN", nil, "bound NaN is not finite: leave it out, +Inf is always there"},
		{"tse, base", "tse 10 1 4", nil, "tse takes a middle, a base above 1 and a whole count of 1 to 1000, for example: tse 1000 2 8"},
		{"tse, odd count", "tse 10 3 3", []float64{1, 7, 10, 13, 19}, ""},
		{"tse, far below 0", "tse 4 10 4", []float64{0, 4, 14, 104}, ""},
		{"tse, no count", "tse 10 2", nil, "tse takes a middle, a base above 1 and a whole count of 1 to 1000, for example: tse 1000 2 8"},
		{"tse, half a count", "tse 10 2 1.5", nil, "tse takes a middle, a base above 1 and a whole count of 1 to 1000, for example: tse 1000 2 8"},
		{"tse, word", "tse 10 two 4", nil, `"two" is not a number: give numbers such as 0.1 0.5 1`},
		{"tse, beyond all numbers", "tse 10 10 1000", nil, "bound +Inf is not finite: leave it out, +Inf is always there"},
		{"custom, infinite", "custom 1 +Inf", nil, "bound +Inf is not finite: leave it out, +Inf is always there"},
		{"default and more", "default 1", nil, `rule "default" is not known; write default, tse or custom`},
		{"unknown", "log 3", nil, `rule "log" is not known; write default, tse or custom`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseBucketRule(strings.Fields(c.words))
			text := ""
			if err != nil {
				text = err.Error()
			}
			if diff := cmp.Diff(c.want, got); diff != "" || text != c.err {
				t.Errorf("error %q, want %q; bounds (-want +got):\n%s", text, c.err, diff)
			}
		})
	}
}

// The bounds that are powers are those of their formula, start × width^i, whichever way it is computed.
func TestExponentialBounds(t *testing.T) {
	for _, c := range []struct {
		name         string
		bounds       []float64
		start, width float64
		n            int
	}{
		{"stages", bucketsStage, 0.001, 1.62, 30},
		{"functions", bucketsFunc, 0.05, 1.5, 18},
	} {
		if len(c.bounds) != c.n {
			t.Errorf("%s: %d bounds, not %d", c.name, len(c.bounds), c.n)
		}
		for i, b := range c.bounds {
			if want := c.start * math.Pow(c.width, float64(i)); math.Abs(b-want) > 1e-14*want {
				t.Errorf("%s: bound %d is %v, by the formula %v", c.name, i, b, want)
			}
		}
	}
}

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Families() {
		if seen[f.Name] {
			t.Errorf("%s is there twice", f.Name)
		}
		seen[f.Name] = true
		if f.Help == "" || f.Unit == "" || f.Engines == 0 {
			t.Errorf("%s lacks help, unit or engines", f.Name)
		}
		if strings.HasSuffix(f.Name, "_total") != (f.Kind == Counter) {
			t.Errorf("%s is a %s", f.Name, f.Kind)
		}
		if (f.Kind == Histogram) != (f.Buckets != nil) {
			t.Errorf("%s is a %s with %d buckets", f.Name, f.Kind, len(f.Buckets))
		}
		if f.Buckets != nil && !validBounds(f.Buckets) {
			t.Errorf("%s has bounds that are not sorted", f.Name)
		}
		if (f.Kind == Gauge) == (f.Merge == Sum) {
			t.Errorf("%s is a %s merged by %s", f.Name, f.Kind, f.Merge)
		}
		if f.Reports != 0 && (f.Kind != Gauge || f.Source != FromScheduler) {
			t.Errorf("%s is not a gauge of the scheduler but written by reports", f.Name)
		}
		if got, ok := Lookup(f.Name); !ok || got != f {
			t.Errorf("%s is not found", f.Name)
		}
	}
}

// TestHTTPAllocates: what is told of an HTTP request makes its labels once, at the first of its kind.
func TestHTTPAllocates(t *testing.T) {
	f := NewFront(openStore(t, t.TempDir(), "api"), FrontLabels{ModelName: "m", EngineType: "unified", Extra: map[string]string{"zone": "b"}}, Buckets{}, ledgertest.New())
	one := func() {
		f.RequestStarted("/v1/chat/completions", "POST")
		f.ResponseStarted("/v1/chat/completions", "POST", 200)
		f.RequestEnded("/v1/chat/completions", "POST")
		f.RequestStarted("", "BREW")
		f.ResponseStarted("", "BREW", 999)
		f.RequestEnded("", "BREW")
	}
	one()
	if n := testing.AllocsPerRun(100, one); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
