package traces

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/trace/tracetest"
	"github.com/sluice-dev/sluice/test/harness"
)

const unifiedTree = ` Req 01234567
  Tokenizer
    tokenize
    api_server_dispatch
  Scheduler [TP 0]  [PP 0]
    request_process
    prefill_waiting
    prefill_forward
      chunked_prefill x3
    decode_waiting
    decode_forward
      decode_loop x4
`

// TestUnifiedTree looks at one request of a unified engine, over both protocols, and compares every length with the metrics.
func TestUnifiedTree(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		setup        func(c *collector) (env, args []string)
	}{
		{"grpc", "the default", func(*collector) ([]string, []string) { return nil, nil }},
		{"http", "protocol and port of HTTP", func(c *collector) ([]string, []string) {
			return []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"}, []string{"--otlp-traces-endpoint", "http://127.0.0.1:" + strconv.Itoa(c.http)}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startCollector(t)
			env, args := tc.setup(c)
			e := startEngine(t, c, "", env, args...)
			status, body := generate(t, e.URL, "0123456789", prompt(20, 1), 5, nil, nil)
			if status != http.StatusOK {
				t.Fatalf("the answer is %d %s", status, body)
			}
			var answer struct {
				Meta struct {
					E2E float64 `json:"e2e_latency"`
				} `json:"meta_info"`
			}
			if err := json.Unmarshal(body, &answer); err != nil {
				t.Fatal(err)
			}
			r := trees(t, c.await(t, 1, 2))["0123456789"]
			if diff := cmp.Diff(unifiedTree, r.String()); diff != "" {
				t.Fatalf("%s: the tree (-want +got)\n%s", tc.reason, diff)
			}
			r.check(t, true)
			if r.root.Parent != "" || r.root.Failed || r.root.Attributes["bootstrap_room"] != nil {
				t.Errorf("the root is %+v", r.root)
			}

			metrics := scrape(t, e)
			scheduler := r.within(r.thread(t, "Scheduler"))
			for _, stage := range []string{"request_process", "prefill_forward"} {
				if got, want := scheduler[stage], metrics.nanos("sglang:per_stage_req_latency_seconds", `stage="`+stage+`"`); got != want || want == 0 {
					t.Errorf("the spans of %s last %d ns, the metric says %d", stage, got, want)
				}
			}
			rest := r.below[r.below[r.thread(t, "Scheduler").ID][2].ID][2] // of the prompt: it has a span, and is no sample
			if got, want := scheduler["chunked_prefill"]-rest.Nanos(), metrics.nanos("sglang:per_stage_req_latency_seconds", `stage="chunked_prefill"`); got != want || want == 0 {
				t.Errorf("the spans of full chunks last %d ns, the metric says %d", got, want)
			}
			if got, want := scheduler["chunked_prefill"], scheduler["prefill_forward"]; got != want {
				t.Errorf("chunks last %d ns of %d in prefill_forward", got, want)
			}
			if got, want := scheduler["prefill_waiting"], metrics.nanos("sglang:queue_time_seconds"); got != want || want == 0 {
				t.Errorf("prefill_waiting lasts %d ns, the queue time is %d", got, want)
			}
			e2e := metrics.nanos("sglang:e2e_request_latency_seconds")
			if r.root.Nanos() != e2e || seconds(t, r.root, "gen_ai.latency.e2e") != e2e || int64(math.Round(answer.Meta.E2E*1e9)) != e2e {
				t.Errorf("the root lasts %d ns, its attribute says %d, meta_info %g s and the metric %d ns", r.root.Nanos(), seconds(t, r.root, "gen_ai.latency.e2e"), answer.Meta.E2E, e2e)
			}
			if got, want := seconds(t, r.root, "gen_ai.latency.time_to_first_token"), metrics.nanos("sglang:time_to_first_token_seconds"); got != want || want == 0 {
				t.Errorf("time to first token is %d ns in the root, %d in the metric", got, want)
			}
			for key, want := range map[string]any{
				"module": "sglang::request", "gen_ai.request.id": "0123456789", "gen_ai.response.model": "m", "gen_ai.response.finish_reasons": `["length"]`,
				"gen_ai.usage.prompt_tokens": json.Number("20"), "gen_ai.usage.completion_tokens": json.Number("5"), "gen_ai.usage.cached_tokens": json.Number("0"),
				"gen_ai.request.max_tokens": json.Number("5"), "gen_ai.request.n": json.Number("1"), "gen_ai.request.temperature": json.Number("0"),
			} {
				if diff := cmp.Diff(want, r.root.Attributes[key]); diff != "" {
					t.Errorf("attribute %s (-want +got)\n%s", key, diff)
				}
			}
		})
	}
}

// seconds gives an attribute in nanoseconds.
func seconds(t *testing.T, s tracetest.Span, key string) int64 {
	t.Helper()
	n, _ := s.Attributes[key].(json.Number)
	f, err := n.Float64()
	if err != nil {
		t.Errorf("attribute %s is %v", key, s.Attributes[key])
	}
	return int64(math.Round(f * 1e9))
}

const (
	prefillTree = `prefill Req pair0123
  PrefillTokenizer
    tokenize
    api_server_dispatch
  Prefill Scheduler [TP 0]  [PP 0]
    prefill_prepare
    prefill_bootstrap
    prefill_waiting
    prefill_forward
      chunked_prefill x3
    prefill_transfer_kv_cache
`
	decodeTree = `decode Req pair0123
  DecodeTokenizer
    tokenize
    api_server_dispatch
  Decode Scheduler [TP 0]  [PP 0]
    decode_prepare
    decode_bootstrap
      decode_bootstrap_handshake
      decode_kv_allocation_wait
    decode_transferred
    decode_waiting
    decode_forward
      fake_output
      decode_loop x4
`
)

// TestPairTree sends requests through a router to a prefill and a decode engine: both halves are one trace, the client's when
// it has one.
func TestPairTree(t *testing.T) {
	const (
		trace  = "0af7651916cd43dd8448eb211c80319c"
		parent = "b7ad6b7169203331"
	)
	for _, tc := range []struct {
		name, reason string
		header       http.Header
		trace        string
	}{
		{"client with a trace", "its span is the parent of both", http.Header{"Traceparent": {"00-" + trace + "-" + parent + "-01"}, "Tracestate": {"vendor=1"}}, trace},
		{"client without", "the router makes one", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startCollector(t)
			prefill, decode := startEngine(t, c, "prefill", nil), startEngine(t, c, "decode", nil)
			router := programs.StartRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode})
			if status, body := generate(t, router, "pair0123", prompt(20, 2), 5, nil, tc.header); status != http.StatusOK {
				t.Fatalf("the answer is %d %s", status, body)
			}
			spans := c.await(t, 2, 2)
			first, second := halves(t, spans)
			if diff := cmp.Diff(prefillTree, first.String()); diff != "" {
				t.Errorf("the prefill half (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(decodeTree, second.String()); diff != "" {
				t.Errorf("the decode half (-want +got)\n%s", diff)
			}
			for _, half := range []tree{first, second} {
				half.check(t, true)
				if half.root.Trace != first.root.Trace || half.root.Parent != first.root.Parent || half.root.Parent == "" || !half.root.ParentRemote {
					t.Errorf("%s: a root is %+v", tc.reason, half.root)
				}
				if tc.trace != "" && (half.root.Trace != trace || half.root.Parent != parent || half.root.State != "vendor=1") {
					t.Errorf("%s: a root is %+v", tc.reason, half.root)
				}
				if room, _ := half.root.Attributes["bootstrap_room"].(string); len(room) < 3 || room[:2] != "0x" || room != first.root.Attributes["bootstrap_room"] {
					t.Errorf("the room is %v", half.root.Attributes["bootstrap_room"])
				}
			}
			for _, half := range []struct {
				engine *harness.Engine
				tree   tree
				stages []string
			}{
				{prefill, first, []string{"prefill_bootstrap", "prefill_forward", "prefill_transfer_kv_cache"}},
				{decode, second, []string{"decode_prepare", "decode_bootstrap", "decode_transferred", "decode_waiting", "fake_output"}},
			} {
				metrics := scrape(t, half.engine)
				sums := half.tree.within(half.tree.thread(t, "Scheduler"))
				for _, stage := range half.stages {
					if got, want := sums[stage], metrics.nanos("sglang:per_stage_req_latency_seconds", `stage="`+stage+`"`); got != want || want == 0 {
						t.Errorf("the spans of %s last %d ns, the metric says %d", stage, got, want)
					}
				}
			}
			sums := second.within(second.thread(t, "Scheduler"))
			if sums["decode_bootstrap_handshake"]+sums["decode_kv_allocation_wait"] != sums["decode_bootstrap"] {
				t.Errorf("the parts of decode_bootstrap are not the whole: %v", sums)
			}
		})
	}
}

// halves gives the two trees of a pair, which have the same rid.
func halves(t *testing.T, spans []tracetest.Span) (prefill, decode tree) {
	t.Helper()
	var p, d []tracetest.Span
	sides := map[string]bool{} // ids of the prefill half
	for range 4 {              // parents may come after their children
		for _, s := range spans {
			if tracetest.IsRoot(s) && s.Name[:1] == "p" || sides[s.Parent] {
				sides[s.ID] = true
			}
		}
	}
	for _, s := range spans {
		if sides[s.ID] {
			p = append(p, s)
		} else {
			d = append(d, s)
		}
	}
	return trees(t, p)["pair0123"], trees(t, d)["pair0123"]
}

// TestPairOfWorlds: a prefill engine of two ranks and a decode engine with two DP ranks have whole trees in one trace.
func TestPairOfWorlds(t *testing.T) {
	c := startCollector(t)
	prefill, decode := startEngine(t, c, "prefill", nil, "--tp-size", "2"), startEngine(t, c, "decode", nil, "--dp-size", "2")
	router := programs.StartRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode})
	if status, body := generate(t, router, "pair0123", prompt(20, 7), 3, nil, nil); status != http.StatusOK {
		t.Fatalf("the answer is %d %s", status, body)
	}
	first, second := halves(t, c.await(t, 2, 3))
	for _, half := range []tree{first, second} {
		half.check(t, true)
		if len(half.threads) != 3 || half.root.Trace != first.root.Trace {
			t.Errorf("a half is\n%s", half)
		}
	}
	for rank := range 2 {
		stages := []string{"prefill_prepare", "prefill_bootstrap", "prefill_waiting", "prefill_forward", "prefill_transfer_kv_cache"}
		thread := first.thread(t, "Prefill Scheduler", "[TP "+strconv.Itoa(rank)+"]")
		var got []string
		for _, s := range first.below[thread.ID] {
			got = append(got, s.Name)
		}
		if diff := cmp.Diff(stages, got); diff != "" {
			t.Errorf("prefill rank %d (-want +got)\n%s", rank, diff)
		}
	}
	controller := second.below[second.thread(t, "Decode DP Controller").ID]
	if len(controller) != 1 || controller[0].Name != "dpc_dispatch" {
		t.Errorf("the DP controller has the slices %s", tracetest.Names(controller))
	}
	scheduler := second.thread(t, "Decode Scheduler")
	dp, metrics := scheduler.Attributes["dp_rank"], scrape(t, decode)
	for stage, got := range second.within(scheduler) {
		want := metrics.nanos("sglang:per_stage_req_latency_seconds", `stage="`+stage+`"`, `dp_rank="`+string(dp.(json.Number))+`"`)
		if slices.Contains([]string{"decode_bootstrap", "decode_transferred", "decode_waiting"}, stage) && (got != want || want == 0) {
			t.Errorf("the spans of %s last %d ns, the metric of DP rank %v says %d", stage, got, dp, want)
		}
	}
}

// lostTree is the request of TestLostSpansAreCounted: a span a line.
const lostTree = ` Req lostspan
  Tokenizer
    tokenize
    api_server_dispatch
  Scheduler [TP 0]  [PP 0]
    request_process
    prefill_waiting
    prefill_forward
    decode_waiting
    decode_forward
      decode_loop
`

// TestLostSpansAreCounted: what nobody takes is counted, that of the API process and that of the rank together.
func TestLostSpansAreCounted(t *testing.T) {
	nobody := &collector{grpc: harness.FreePorts(t, 1)[0]}
	e := startEngine(t, nobody, "", nil)
	lost := func() string {
		for line := range strings.Lines(harness.Get(t, e.URL+"/metrics")) {
			if value, ok := strings.CutPrefix(line, "sluice_trace_spans_lost_total "); ok {
				return strings.TrimSpace(value)
			}
		}
		return "absent"
	}
	if got := lost(); got != "0" {
		t.Errorf("before any request the count is %s", got)
	}
	if status, body := generate(t, e.URL, "lostspan", prompt(6, 5), 2, nil, nil); status != http.StatusOK {
		t.Fatalf("the answer is %d %s", status, body)
	}
	want, last := strconv.Itoa(strings.Count(lostTree, "\n")), ""
	defer func() {
		if last != want {
			t.Errorf("%s spans are counted as lost, want %s:\n%s", last, want, lostTree)
		}
	}()
	harness.Eventually(t, "all spans are given up", func() bool {
		last = lost()
		return last == want
	})
}
