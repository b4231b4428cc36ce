package traces

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/trace/tracetest"
	"github.com/sluice-dev/sluice/test/harness"
)

// worldTree is a request on a DP rank of two ranks.
const worldTree = ` Req world%[1]d00
  Tokenizer
    tokenize
    api_server_dispatch
  DP Controller
    dpc_dispatch
  Scheduler [TP 0]  [PP 0]  [DP %[1]d]
    request_process
    prefill_waiting
    prefill_forward
      chunked_prefill x3
    decode_waiting
    decode_forward
      decode_loop x2
  Scheduler [TP 1]  [PP 0]  [DP %[1]d]
    request_process
    prefill_waiting
    prefill_forward
      chunked_prefill x3
    decode_waiting
    decode_forward
      decode_loop x2
`

// TestWorlds: with two DP ranks of two ranks each, a request has a thread in the controller and one in each rank that computes
// it, and what the first rank of the world tells the metrics is what its spans last.
func TestWorlds(t *testing.T) {
	c := startCollector(t)
	e := startEngine(t, c, "", nil, "--dp-size", "2", "--tp-size", "2")
	for dp := range 2 {
		more := map[string]any{"routed_dp_rank": dp}
		if status, body := generate(t, e.URL, fmt.Sprintf("world%d00", dp), prompt(20, dp), 3, more, nil); status != http.StatusOK {
			t.Fatalf("the answer is %d %s", status, body)
		}
	}
	all := trees(t, c.await(t, 2, 4))
	metrics := scrape(t, e)
	for dp := range 2 {
		r := all[fmt.Sprintf("world%d00", dp)]
		if diff := cmp.Diff(fmt.Sprintf(worldTree, dp), r.String()); diff != "" {
			t.Fatalf("DP rank %d (-want +got)\n%s", dp, diff)
		}
		r.check(t, true)
		dispatch, controller := r.below[r.thread(t, "Tokenizer").ID][1], r.thread(t, "DP Controller")
		if controller.Start < dispatch.Start || controller.End > dispatch.End {
			t.Errorf("the controller works in [%d, %d), the dispatch lasts [%d, %d)", controller.Start, controller.End, dispatch.Start, dispatch.End)
		}
		pids := map[any]bool{}
		for _, s := range r.threads {
			pids[s.Attributes["pid"]] = true
		}
		if len(pids) != 3 { // the controller is in the API process
			t.Errorf("the threads are of %d processes, want 3", len(pids))
		}
		sums := r.within(r.thread(t, "Scheduler", "[TP 0]"))
		for _, stage := range []string{"request_process", "prefill_forward"} {
			got, want := sums[stage], metrics.nanos("sglang:per_stage_req_latency_seconds", `stage="`+stage+`"`, `tp_rank="0"`, `dp_rank="`+strconv.Itoa(dp)+`"`)
			if got != want || want == 0 {
				t.Errorf("DP rank %d: the spans of %s last %d ns, the metric says %d", dp, stage, got, want)
			}
		}
	}
}

// TestLevels changes the level while the engine serves: each request gets the spans of the level at which it began.
func TestLevels(t *testing.T) {
	const (
		level1 = ` Req level100
  Tokenizer
    tokenize
  Scheduler [TP 0]  [PP 0]
    prefill_waiting
    prefill_forward
    decode_waiting
    decode_forward
`
		level2 = ` Req level200
  Tokenizer
    tokenize
    api_server_dispatch
  Scheduler [TP 0]  [PP 0]
    request_process
    prefill_waiting
    prefill_forward
    decode_waiting
    decode_forward
`
		level4 = ` Req level400
  Tokenizer
    tokenize
    api_server_dispatch
  Scheduler [TP 0]  [PP 0]
    request_process
    prefill_waiting
    prefill_forward
      run_batch_cpu
    decode_waiting
    decode_forward
      decode_loop
      run_batch_cpu
`
	)
	c := startCollector(t)
	// Without overlap a step is launched when the one before is over, so the order of spans is always the same.
	e := startEngine(t, c, "", []string{"SGLANG_TRACE_LEVEL=1"}, "--disable-overlap-schedule")
	wanted := 0
	for _, tc := range []struct {
		level  int // to set first; -1: as it began
		rid    string
		tokens int
		want   string // "": no trace
	}{{-1, "level100", 2, level1}, {0, "level000", 2, ""}, {2, "level200", 2, level2}, {4, "level400", 2, level4}} {
		if tc.level >= 0 {
			if status, body := ask(t, t.Context(), http.MethodPost, e.URL+"/set_trace_level?level="+strconv.Itoa(tc.level), "", nil); status != http.StatusOK || string(body) != "success" {
				t.Fatalf("level %d is answered with %d %s", tc.level, status, body)
			}
		}
		if status, body := generate(t, e.URL, tc.rid, prompt(6, tc.level+2), tc.tokens, nil, nil); status != http.StatusOK {
			t.Fatalf("the answer is %d %s", status, body)
		}
		if tc.want != "" {
			wanted++
		}
		all := trees(t, c.await(t, wanted, 2))
		r, traced := all[tc.rid]
		if traced != (tc.want != "") || len(all) != wanted {
			t.Fatalf("after %s there are %d trees", tc.rid, len(all))
		}
		if tc.want == "" {
			continue
		}
		if diff := cmp.Diff(tc.want, r.String()); diff != "" {
			t.Errorf("level %d (-want +got)\n%s", tc.level, diff)
		}
		r.check(t, tc.level >= 2)
	}
}

// TestRetraction: a request that loses its pages goes through waiting and prefill again, and says that it did.
func TestRetraction(t *testing.T) {
	c := startCollector(t)
	e := startEngine(t, c, "", []string{"SGLANG_TEST_RETRACT=true", "SGLANG_TEST_RETRACT_INTERVAL=4"})
	if status, body := generate(t, e.URL, "retracts", prompt(6, 3), 10, nil, nil); status != http.StatusOK {
		t.Fatalf("the answer is %d %s", status, body)
	}
	r := trees(t, c.await(t, 1, 2))["retracts"]
	r.check(t, true)
	scheduler := r.thread(t, "Scheduler")
	visits, retractions, steps := map[string]int{}, 0, 0
	for _, s := range r.below[scheduler.ID] {
		visits[s.Name]++
		for _, e := range s.Events {
			if e.Name == "retract" {
				retractions++
				if s.Name != "prefill_waiting" || e.At != s.Start {
					t.Errorf("the retraction at %d is an event of %s [%d, %d)", e.At, s.Name, s.Start, s.End)
				}
			}
		}
		for _, lap := range r.below[s.ID] {
			if lap.Name == "decode_loop" {
				if got := fmt.Sprint(lap.Attributes["decode_ct"]); got != strconv.Itoa(steps) {
					t.Errorf("decode step %d has the number %s", steps, got)
				}
				steps++
			}
		}
	}
	if retractions == 0 || visits["prefill_waiting"] != retractions+1 || visits["prefill_forward"] != retractions+1 || visits["request_process"] != 1 {
		t.Errorf("%d retractions, visits %v", retractions, visits)
	}
	if got, want := r.within(scheduler)["prefill_forward"], scrape(t, e).nanos("sglang:per_stage_req_latency_seconds", `stage="prefill_forward"`); got <= want || want == 0 {
		t.Errorf("all passes through prefill last %d ns, and the first one, which is the sample, %d", got, want)
	}
}

// TestAborts: a client that goes and an operator who aborts end the request's spans, and they say so.
func TestAborts(t *testing.T) {
	c := startCollector(t)
	e := startSlow(t, c, "--max-running-requests", "1")
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, _, err := try(ctx, http.MethodPost, e.URL+"/generate", longAnswer("leaves00"), nil)
		gone <- err
	}()
	running := func(n, queued int) func() bool {
		return func() bool {
			list, err := e.Loads()
			return err == nil && len(list) == 1 && list[0].NumRunningReqs == n && list[0].NumWaitingReqs == queued
		}
	}
	harness.Eventually(t, "it runs", running(1, 0))
	stopped := make(chan int, 1)
	go func() {
		status, _, _ := try(t.Context(), http.MethodPost, e.URL+"/generate", longAnswer("aborted0"), nil)
		stopped <- status
	}()
	harness.Eventually(t, "the other waits", running(1, 1))
	if status, text := ask(t, t.Context(), http.MethodPost, e.URL+"/abort_request", `{"rid":"aborted0"}`, nil); status != http.StatusOK {
		t.Fatalf("the abort is answered with %d %s", status, text)
	}
	if status := <-stopped; status != http.StatusServiceUnavailable {
		t.Errorf("the aborted request is answered with %d", status)
	}
	leave()
	<-gone
	all := trees(t, c.await(t, 2, 2))
	for _, tc := range []struct{ rid, outcome, last string }{
		{"leaves00", "aborted_client", "decode_forward"},
		{"aborted0", "aborted_operator", "prefill_waiting"},
	} {
		r := all[tc.rid]
		r.check(t, true)
		scheduler := r.thread(t, "Scheduler")
		for _, s := range []tracetest.Span{r.root, scheduler} {
			if !s.Failed || !strings.HasPrefix(s.Failure, tc.outcome) || s.Attributes["abort_info.outcome"] != tc.outcome {
				t.Errorf("%s: %s failed %t %q with %v", tc.rid, s.Name, s.Failed, s.Failure, s.Attributes)
			}
		}
		if s := r.thread(t, "Tokenizer"); s.Failed {
			t.Errorf("%s: the thread of the API process, which was done, failed: %q", tc.rid, s.Failure)
		}
		parts := r.below[scheduler.ID]
		if s := parts[len(parts)-1]; s.Name != tc.last || s.Failed {
			t.Errorf("%s: its last slice is %q, failed %t", tc.rid, s.Name, s.Failed)
		}
	}
}

// TestCollectorDies: requests do not notice that the collector is gone, and its spans come again when it is back.
func TestCollectorDies(t *testing.T) {
	c := startCollector(t)
	e := startEngine(t, c, "", nil)
	send := func(rid string) {
		t.Helper()
		if status, body := generate(t, e.URL, rid, prompt(6, 4), 3, nil, nil); status != http.StatusOK {
			t.Fatalf("the answer of %s is %d %s", rid, status, body)
		}
	}
	send("before00")
	c.await(t, 1, 2)
	c.Kill()
	for i := range 5 {
		send(fmt.Sprintf("without%d", i))
	}
	c.run(t)
	harness.Eventually(t, "spans come again", func() bool {
		send("after000")
		return slices.ContainsFunc(c.spans(t), func(s tracetest.Span) bool { return s.Attributes["rid"] == "after000" })
	})
}
