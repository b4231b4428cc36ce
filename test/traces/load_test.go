package traces

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestManyAtOnce: with many requests at the same time, of all kinds, every sequence has a whole tree of its own, and all spans
// of a stage together last what the metric says.
func TestManyAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := startCollector(t)
	// Few places and little memory: requests wait, and some are retracted.
	e := startEngine(t, c, "", []string{"SGLANG_TEST_RETRACT=true", "SGLANG_TEST_RETRACT_INTERVAL=17", "SGLANG_TRACE_LEVEL=2"}, "--max-running-requests", "4")
	const requests = 24
	sequences := 0
	var asking sync.WaitGroup
	for i := range requests {
		n := 1 + random.IntN(3)
		sequences += n
		ids, tokens, stream := prompt(1+random.IntN(40), i), 1+random.IntN(12), random.IntN(2) == 0
		asking.Go(func() {
			more := map[string]any{"stream": stream, "sampling_params": map[string]any{"n": n, "max_new_tokens": tokens, "ignore_eos": true}}
			if status, body := generate(t, e.URL, fmt.Sprintf("many%04d", i), ids, tokens, more, nil); status != http.StatusOK {
				t.Errorf("request %d is answered with %d %s", i, status, body)
			}
		})
	}
	asking.Wait()
	all := trees(t, c.await(t, sequences, 2))
	if len(all) != sequences {
		t.Errorf("there are %d trees of %d sequences", len(all), sequences)
	}
	sums, traces := map[string]int64{}, map[string]bool{}
	for rid, r := range all {
		if len(r.threads) != 2 || r.root.Failed {
			t.Errorf("request %s has the tree\n%s", rid, r)
		}
		r.check(t, true)
		traces[r.root.Trace] = true
		first := map[string]bool{} // of the visits of a stage only the first is a sample
		for _, s := range r.below[r.thread(t, "Scheduler").ID] {
			if !first[s.Name] {
				first[s.Name] = true
				sums[s.Name] += s.Nanos()
			}
		}
	}
	if len(traces) != sequences {
		t.Errorf("%d sequences have %d traces", sequences, len(traces))
	}
	metrics := scrape(t, e)
	for stage, want := range map[string]int64{
		"request_process": metrics.nanos("sglang:per_stage_req_latency_seconds", `stage="request_process"`),
		"prefill_forward": metrics.nanos("sglang:per_stage_req_latency_seconds", `stage="prefill_forward"`),
		"prefill_waiting": metrics.nanos("sglang:queue_time_seconds"),
	} {
		if sums[stage] != want || want == 0 {
			t.Errorf("the first spans of %s last %d ns, the metric says %d", stage, sums[stage], want)
		}
	}
}

// TestPipeline: every stage of a pipeline is a rank with a thread of its own.
func TestPipeline(t *testing.T) {
	c := startCollector(t)
	e := startEngine(t, c, "", nil, "--pp-size", "2")
	if status, body := generate(t, e.URL, "pipeline", prompt(6, 5), 2, nil, nil); status != http.StatusOK {
		t.Fatalf("the answer is %d %s", status, body)
	}
	r := trees(t, c.await(t, 1, 3))["pipeline"]
	scheduler := func(stage int) string {
		return fmt.Sprintf(`  Scheduler [TP 0]  [PP %d]
    request_process
    prefill_waiting
    prefill_forward
    decode_waiting
    decode_forward
      decode_loop
`, stage)
	}
	want := " Req pipeline\n  Tokenizer\n    tokenize\n    api_server_dispatch\n" + scheduler(0) + scheduler(1)
	if diff := cmp.Diff(want, r.String()); diff != "" {
		t.Errorf("the tree (-want +got)\n%s", diff)
	}
	r.check(t, true)
}

// TestShutdownSendsWhatIsLeft: spans that still wait for others when the engine is asked to end are exported.
func TestShutdownSendsWhatIsLeft(t *testing.T) {
	c := startCollector(t)
	e := startEngine(t, c, "", []string{"SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS=3600000"}, "--drain-accept", "0")
	if status, body := generate(t, e.URL, "lastspan", prompt(6, 6), 2, nil, nil); status != http.StatusOK {
		t.Fatalf("the answer is %d %s", status, body)
	}
	if spans := c.spans(t); len(spans) > 0 {
		t.Errorf("%d spans came before the end", len(spans))
	}
	e.Signal(syscall.SIGTERM)
	<-e.Ended()
	r := trees(t, c.await(t, 1, 2))["lastspan"]
	r.check(t, true)
	if e.ExitCode() != 0 {
		t.Errorf("the engine ended with %d", e.ExitCode())
	}
}

// TestRankDies: the spans of a request whose rank was killed are those of the API process, and say that it is lost.
func TestRankDies(t *testing.T) {
	c := startCollector(t)
	e := startSlow(t, c)
	answered := make(chan int, 1)
	go func() {
		status, _, _ := try(t.Context(), http.MethodPost, e.URL+"/generate", longAnswer("orphan00"), nil)
		answered <- status
	}()
	harness.Eventually(t, "it runs", func() bool {
		list, err := e.Loads()
		return err == nil && len(list) == 1 && list[0].NumRunningReqs == 1
	})
	for _, pid := range harness.Children(e.PID()) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if status := <-answered; status != http.StatusBadGateway {
		t.Errorf("the request is answered with %d", status)
	}
	<-e.Ended()
	spans := c.await(t, 1, 1)
	for _, s := range spans {
		if s.Attributes["rid"] == "orphan00" && (!s.Failed || !strings.HasPrefix(s.Failure, "internal_error")) {
			t.Errorf("the root is %+v", s)
		}
		if s.Name == "decode_forward" {
			t.Errorf("the open slice of the killed rank came: %+v", s)
		}
	}
}
