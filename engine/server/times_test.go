package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestTimesAgree: meta_info, the request log and the histograms tell the same times, to the nanosecond.
func TestTimesAgree(t *testing.T) {
	const tick = 1_234_567 * time.Nanosecond // of each reading of the clock
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			dir, clock, log := t.TempDir(), ledgertest.New(), &bytes.Buffer{}
			store, err := metrics.OpenStore(dir, "api", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			front := metrics.NewFront(store, metrics.FrontLabels{ModelName: "tiny", EngineType: "unified"}, metrics.Buckets{}, ledgertest.New()) // which reads its own clock
			gatherer := metrics.NewGatherer(dir)
			defer gatherer.Close()
			b := newBenchTelling(t, front, clock, slog.NewJSONHandler(log, nil), func(c *Config, _ *scriptedRank) {
				c.EnableMetrics, c.LogRequests, c.LogRequestsLevel = true, true, 0
			})
			finish := request.Finish{
				Type: request.FinishLength, Outcome: request.OutcomeLength, QueueNanos: 987_654_321,
				ForwardEntryWallNanos: 1_700_000_001_123_456_789, PrefillEndWallNanos: 1_700_000_002_987_654_321,
			}
			b.rank.script = b.say(finish, "a", "bcd", "ef")
			clock.SetStep(tick)
			w := b.call(http.MethodPost, "/generate", fmt.Sprintf(`{"input_ids":[1,2],"rid":"r","stream":%t}`, stream))
			clock.SetStep(0)

			meta, line := lastMeta(t, w.Body.String()), endLine(t, log)
			names := []string{
				"e2e_latency", "queue_time", "forward_entry_time", "prefill_finished_time", "request_received_ts", "api_server_dispatch_finish_ts",
				"response_sent_to_client_ts", "request_finished_ts", "first_token_latency", "decode_throughput", "completion_tokens", "prompt_tokens", "cached_tokens",
			}
			for _, name := range names {
				if meta[name] == nil || meta[name] != line[name] {
					t.Errorf("%s is %v in meta_info and %v in the log", name, meta[name], line[name])
				}
			}
			if meta["num_retractions"] != line["retractions"] {
				t.Errorf("%v retractions in meta_info and %v in the log", meta["num_retractions"], line["retractions"])
			}
			nanos := func(name string) int64 { return int64(math.Round(meta[name].(float64) * 1e9)) }
			sums := sumsOf(t, gatherer)
			e2e, ttft := nanos("e2e_latency"), nanos("first_token_latency")
			decode := int64(math.Round((meta["completion_tokens"].(float64) - 1) / meta["decode_throughput"].(float64) * 1e9))
			// Readings: arrival, dispatch, hand-over, first output; each further output; the end.
			want := map[string]int64{
				"e2e": 6 * int64(tick), "ttft": 3 * int64(tick), "decode": 3 * int64(tick),
				"e2e histogram": 6 * int64(tick), "ttft histogram": 3 * int64(tick), "itl histogram": 2 * int64(tick), "tpot histogram": 3 * int64(tick) / 5,
			}
			got := map[string]int64{
				"e2e": e2e, "ttft": ttft, "decode": decode, "e2e histogram": sums["sglang:e2e_request_latency_seconds"],
				"ttft histogram": sums["sglang:time_to_first_token_seconds"], "itl histogram": sums["sglang:inter_token_latency_seconds"],
				"tpot histogram": sums["sglang:request_time_per_output_token_seconds"],
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("nanoseconds (-want +got)\n%s", diff)
			}
		})
	}
}

// lastMeta is the meta_info of an answer of /generate, of the last chunk of a stream.
func lastMeta(t *testing.T, body string) map[string]any {
	t.Helper()
	var answer struct {
		MetaInfo map[string]any `json:"meta_info"`
	}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "data: "))
		if strings.HasPrefix(line, "{") {
			answer.MetaInfo = nil
			if err := json.Unmarshal([]byte(line), &answer); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
		}
	}
	return answer.MetaInfo
}

// endLine is the line of the request log on the end of the only request.
func endLine(t *testing.T, log *bytes.Buffer) map[string]any {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		if fields["msg"] == "request ended" {
			return fields
		}
	}
	t.Fatalf("no line on the end: %s", log)
	return nil
}

// sumsOf are the sums of all histograms in nanoseconds.
func sumsOf(t *testing.T, g *metrics.Gatherer) map[string]int64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]int64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if h := m.GetHistogram(); h != nil {
				sums[f.GetName()] += int64(math.Round(h.GetSampleSum() * 1e9))
			}
		}
	}
	return sums
}

// TestLatencies: what looked wrong in other engines, each as the outputs that led to it.
func TestLatencies(t *testing.T) {
	subject := metrics.Subject{Streaming: true}
	type step struct {
		total int // completion tokens so far
		ids   []int32
	}
	tokens := func(total, n int) step { return step{total, make([]int32, n)} }
	stop := &request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}
	abort := &request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeTimeout}
	for _, tc := range []struct {
		name, reason string
		mode         rank.Mode
		steps        []step
		finish       *request.Finish // of the last step
		want         []any           // latencies and the end
	}{
		{
			"one by one", "the first token has no interval: n tokens have n-1", rank.ModeUnified, []step{tokens(1, 1), tokens(2, 1), tokens(3, 1)}, stop,
			[]any{firstToken{subject, 3e6}, interToken{subject, 1e6, 1}, interToken{subject, 1e6, 1}, finished{subject, metrics.Finished{CompletionTokens: 3, E2ENanos: 6e6, TPOTNanos: 1.5e6}}},
		},
		{
			"many at once first", "all tokens of the first output are in its latency, none of them is an interval", rank.ModeUnified, []step{tokens(5, 5), tokens(7, 2)}, stop,
			[]any{firstToken{subject, 3e6}, interToken{subject, 1e6, 2}, finished{subject, metrics.Finished{CompletionTokens: 7, E2ENanos: 5e6, TPOTNanos: 2e6 / 6.0}}},
		},
		{
			"all at once", "one output is no interval, and no time per token", rank.ModeUnified, []step{tokens(50, 50)}, stop,
			[]any{firstToken{subject, 3e6}, finished{subject, metrics.Finished{CompletionTokens: 50, E2ENanos: 3e6}}},
		},
		{
			"an output without tokens", "it is the first output all the same, and the next interval begins there", rank.ModeUnified, []step{tokens(0, 0), tokens(2, 2)}, stop,
			[]any{firstToken{subject, 3e6}, interToken{subject, 1e6, 2}, finished{subject, metrics.Finished{CompletionTokens: 2, E2ENanos: 5e6, TPOTNanos: 2e6}}},
		},
		{
			"a falling count", "no negative interval; the count goes on from there, the time from before", rank.ModeUnified, []step{tokens(4, 4), tokens(2, 0), tokens(3, 1)}, stop,
			[]any{firstToken{subject, 3e6}, interToken{subject, 1e6, 1}, finished{subject, metrics.Finished{CompletionTokens: 3, E2ENanos: 5e6, TPOTNanos: 1e6}}},
		},
		{
			"nothing new", "no interval of no tokens", rank.ModeUnified, []step{tokens(1, 1), tokens(1, 0)}, stop,
			[]any{firstToken{subject, 3e6}, finished{subject, metrics.Finished{CompletionTokens: 1, E2ENanos: 4e6}}},
		},
		{
			"aborted before the first output", "there was no first token", rank.ModeUnified, []step{tokens(0, 0)}, abort,
			[]any{finished{subject, metrics.Finished{E2ENanos: 3e6}}},
		},
		{
			"aborted with its first tokens", "they come too late to be the first", rank.ModeUnified, []step{tokens(3, 3)}, abort,
			[]any{finished{subject, metrics.Finished{CompletionTokens: 3, E2ENanos: 3e6}}},
		},
		{
			"aborted later", "the tokens before it count", rank.ModeUnified, []step{tokens(1, 1), tokens(2, 1), tokens(2, 0)}, abort,
			[]any{firstToken{subject, 3e6}, interToken{subject, 1e6, 1}, finished{subject, metrics.Finished{CompletionTokens: 2, E2ENanos: 5e6, TPOTNanos: 2e6}}},
		},
		{
			"prefill engine", "its client is a router: no first token, no interval", rank.ModePrefill, []step{tokens(1, 1), tokens(2, 1)}, stop,
			[]any{finished{subject, metrics.Finished{CompletionTokens: 2, E2ENanos: 5e6, TPOTNanos: 2e6}}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.Rank.Disagg.Mode = tc.mode })
			b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
				for i, step := range tc.steps {
					out := request.Output{RID: r.RID, TokenIDs: step.ids, CompletionTokens: step.total}
					if i == len(tc.steps)-1 {
						out.Finish = tc.finish
						s.Put(out)
						return
					}
					taken := b.outputs.wait()
					s.Put(out)
					<-taken
				}
			}
			b.clock.SetStep(time.Millisecond)
			b.call(http.MethodPost, "/v1/completions", `{"prompt":[1],"stream":true,"bootstrap_room":1}`)
			var got []any
			for _, event := range b.seen.events() {
				switch event.(type) {
				case firstToken, interToken, finished:
					got = append(got, event)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestReceivedTime: latencies count from when another process received the request, within reason.
func TestReceivedTime(t *testing.T) {
	subject := metrics.Subject{}
	for _, tc := range []struct {
		name, reason, seconds string
		status                int
		want                  []any
	}{
		{"none", "the arrival counts", `null`, 200, []any{firstToken{subject, 0}, finished{subject, metrics.Finished{PromptTokens: 1, CompletionTokens: 1, CachedTokens: 1}}}},
		{"earlier", "the wait before it counts too", `1699999998.5`, 200,
			[]any{firstToken{subject, 1.5e9}, finished{subject, metrics.Finished{PromptTokens: 1, CompletionTokens: 1, CachedTokens: 1, E2ENanos: 1.5e9}}}},
		{"later", "a clock that is ahead makes no negative time", `1700000009`, 200,
			[]any{firstToken{subject, 0}, finished{subject, metrics.Finished{PromptTokens: 1, CompletionTokens: 1, CachedTokens: 1}}}},
		{"unset", "0 is no time: it would be one of 54 years", `0`, 400, nil},
		{"long ago", "", `1699990000`, 400, nil},
		{"never", "", `1e300`, 400, nil},
		{"text", "", `"now"`, 400, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			b.rank.script = b.say(length(), "x")
			if w := b.call(http.MethodPost, "/generate", `{"input_ids":[1],"received_time":`+tc.seconds+`}`); w.Code != tc.status {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			var got []any
			for _, event := range b.seen.events() {
				switch event.(type) {
				case firstToken, finished:
					got = append(got, event)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestRoutingKeys: a key is held while a request with it is answered: that of the header on every route, that of the body on
// those of requests, and of the two the header's alone.
func TestRoutingKeys(t *testing.T) {
	for _, tc := range []struct {
		name, method, path, body, header string
		want                             []any
	}{
		{"header", http.MethodGet, "/v1/models", ``, "h", []any{keyHeld("h"), keyFreed("h")}},
		{"header of no route", http.MethodGet, "/nothing", ``, "h", []any{keyHeld("h"), keyFreed("h")}},
		{"body", http.MethodPost, "/v1/completions", `{"prompt":[1],"routing_key":"b"}`, "", []any{keyHeld("b"), keyFreed("b")}},
		{"both", http.MethodPost, "/generate", `{"input_ids":[1],"routing_key":"b"}`, "h", []any{keyHeld("h"), keyFreed("h")}},
		{"refused", http.MethodPost, "/generate", `{"input_ids":[1],"routing_key":"b","sampling_params":{"temperature":-1}}`, "", nil},
		{"none", http.MethodPost, "/generate", `{"input_ids":[1]}`, "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			b.call(tc.method, tc.path, tc.body, "x-smg-routing-key", tc.header)
			var got []any
			for _, event := range b.seen.events() {
				switch event.(type) {
				case keyHeld, keyFreed:
					got = append(got, event)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestRequestLogOfRefusals: what does not get to the rank leaves one line, with its outcome, by the rules of all requests.
func TestRequestLogOfRefusals(t *testing.T) {
	const line = `outcome=invalid status=400 message="temperature must be from 0 to 100, not -1"` + "\n"
	for _, tc := range []struct {
		name, body string
		rate       float64
		want       string
	}{
		{"without a rid", `{"prompt":[1],"temperature":-1}`, 1, `level=INFO msg="request refused" ` + line},
		{"with one", `{"prompt":[1],"temperature":-1,"rid":"a"}`, 1, `level=INFO msg="request refused" rid=a ` + line},
		{"with several", `{"prompt":[[1],[2]],"temperature":-1,"rid":["a","b"]}`, 1, `level=INFO msg="request refused" rid=a ` + line},
		{"with one that is none", `{"prompt":[1],"temperature":-1,"rid":[]}`, 1, `level=INFO msg="request refused" ` + line},
		{"no body", ``, 1, `level=INFO msg="request refused" outcome=invalid status=400 message="the request body is empty: send a JSON object"` + "\n"},
		{"not counted", `{"prompt":[1],"temperature":-1,"log_metrics":false}`, 1, ""},
		{"no_logs", `{"prompt":[1],"temperature":-1,"no_logs":true}`, 1, ""},
		{"not in the sample", `{"prompt":[1],"temperature":-1}`, 0, ""},
		{"no body, not in the sample", ``, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := &bytes.Buffer{}
			b := newBenchTelling(t, &recorder{}, ledgertest.New(), plainLog(log), func(c *Config, _ *scriptedRank) {
				c.LogRequests, c.LogRequestsSampleRate = true, tc.rate
			})
			b.call(http.MethodPost, "/v1/completions", tc.body)
			if diff := cmp.Diff(tc.want, log.String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestRefusalsAreSampled: with half of the requests in the sample, the refused ones with a line are those whose other lines
// would be there, and of those without a rid some are.
func TestRefusalsAreSampled(t *testing.T) {
	log := &bytes.Buffer{}
	b := newBenchTelling(t, &recorder{}, ledgertest.New(), plainLog(log), func(c *Config, _ *scriptedRank) { c.LogRequests, c.LogRequestsSampleRate = true, 0.5 })
	const requests = 200
	for i := range requests {
		rid := fmt.Sprintf("r%d", i)
		log.Reset()
		b.call(http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":[1],"temperature":-1,"rid":%q}`, rid))
		if got, want := log.Len() > 0, sampled(rid, 0.5); got != want {
			t.Errorf("%s: logged %t, in the sample %t", rid, got, want)
		}
	}
	log.Reset()
	for range requests {
		b.call(http.MethodPost, "/v1/completions", `{"prompt":[1],"temperature":-1}`)
	}
	if lines := strings.Count(log.String(), "\n"); lines == 0 || lines == requests { // 1 in 2^199 runs
		t.Errorf("%d of %d refusals without a rid are logged", lines, requests)
	}
}

// plainLog writes lines without their times.
func plainLog(to io.Writer) slog.Handler {
	return slog.NewTextHandler(to, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
}
