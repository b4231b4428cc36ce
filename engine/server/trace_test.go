package server

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/trace/tracetest"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// traced serves a unified engine whose spans go to the collector.
func traced(t *testing.T, c *tracetest.Collector, change func(*Config)) *run {
	t.Helper()
	return serve(t, func(cfg *Config) {
		cfg.Rank.Trace.Enabled, cfg.Rank.Trace.Endpoint, cfg.Rank.Trace.Delay = true, c.GRPC, 5*time.Millisecond
		if change != nil {
			change(cfg)
		}
	})
}

// stages gives the names of spans without what differs from machine to machine.
func stages(spans []tracetest.Span) []string {
	names := make([]string, len(spans))
	for i, s := range spans {
		names[i], _, _ = strings.Cut(s.Name, "(host:")
	}
	return names
}

func TestTraceOfAUnifiedRequest(t *testing.T) {
	collector := tracetest.New(t)
	r := traced(t, collector, nil)
	status, body := r.ask(t, http.MethodPost, "/generate", `{"rid":"0123456789","input_ids":[1,2,3],"sampling_params":{"max_new_tokens":4,"ignore_eos":true}}`)
	if status != http.StatusOK {
		t.Fatalf("the answer is %d %s", status, body)
	}
	spans := collector.AwaitRoots(t, 1, 2)
	root := spans[slices.IndexFunc(spans, tracetest.IsRoot)]
	if root.Name != " Req 01234567" || root.Parent != "" || root.Failed || root.Attributes["rid"] != "0123456789" || root.Service != "sglang" || root.Scope != "sglang server" {
		t.Errorf("the root is %+v", root)
	}
	threads := tracetest.Children(spans, root)
	if diff := cmp.Diff([]string{"Tokenizer", "Scheduler [TP 0]  [PP 0] "}, stages(threads)); diff != "" {
		t.Fatalf("threads (-want +got)\n%s", diff)
	}
	front, back := tracetest.Children(spans, threads[0]), tracetest.Children(spans, threads[1])
	if diff := cmp.Diff([]string{"tokenize", "api_server_dispatch"}, stages(front)); diff != "" {
		t.Errorf("slices of the tokenizer (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"request_process", "prefill_waiting", "prefill_forward", "decode_waiting", "decode_forward"}, stages(back)); diff != "" {
		t.Fatalf("slices of the scheduler (-want +got)\n%s", diff)
	}
	loops := tracetest.Children(spans, back[4])
	if diff := cmp.Diff([]string{"decode_loop", "decode_loop", "decode_loop"}, stages(loops)); diff != "" {
		t.Errorf("laps of decode_forward (-want +got)\n%s", diff)
	}
}

// newTracedBench is a bench whose spans go to a collector.
func newTracedBench(t *testing.T, change func(*Config, *scriptedRank)) (*bench, *tracetest.Collector) {
	t.Helper()
	collector := tracetest.New(t)
	return newBench(t, func(c *Config, r *scriptedRank) {
		c.Rank.Trace.Enabled, c.Rank.Trace.Endpoint, c.Rank.Trace.Delay = true, collector.GRPC, time.Millisecond
		if change != nil {
			change(c, r)
		}
	}), collector
}

// carried gives what the rank got of the traces of all requests so far.
func (r *scriptedRank) carried() []*request.Trace {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*request.Trace
	for _, q := range r.requests {
		list = append(list, q.Trace)
	}
	return list
}

func TestSetTraceLevel(t *testing.T) {
	for _, tc := range []struct {
		name, reason   string
		off            bool
		method, target string
		key            string
		status         int
		answer         string // a part of it
		level          int    // of the next request; 0: it is not traced
	}{
		{"post", "the usual way", false, http.MethodPost, "/set_trace_level?level=2", "admin", http.StatusOK, "success", 2},
		{"get", "SGLang takes it too", false, http.MethodGet, "/set_trace_level?level=4", "admin", http.StatusOK, "success", 4},
		{"off", "requests that begin later are not traced", false, http.MethodPost, "/set_trace_level?level=0", "admin", http.StatusOK, "success", 0},
		{"beyond the last", "it is as good as the last", false, http.MethodPost, "/set_trace_level?level=9", "admin", http.StatusOK, "success", 9},
		{"negative", "there is none", false, http.MethodPost, "/set_trace_level?level=-1", "admin", http.StatusBadRequest, `"param":"level"`, 3},
		{"no number", "the field is named", false, http.MethodPost, "/set_trace_level?level=high", "admin", http.StatusBadRequest, `must be a whole number`, 3},
		{"missing", "the field is named", false, http.MethodPost, "/set_trace_level", "admin", http.StatusBadRequest, `"param":"level"`, 3},
		{"not traced", "who sets the level of all engines need not know which of them trace", true, http.MethodPost, "/set_trace_level?level=2", "admin", http.StatusOK, "success", 0},
		{"user", "only the admin may", false, http.MethodPost, "/set_trace_level?level=0", "user", http.StatusUnauthorized, "", 3},
		{"put", "it is no such route", false, http.MethodPut, "/set_trace_level?level=0", "admin", http.StatusMethodNotAllowed, "", 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, _ := newTracedBench(t, func(c *Config, _ *scriptedRank) {
				c.APIKey, c.AdminAPIKey, c.Rank.Trace.Enabled = "user", "admin", !tc.off
			})
			w := b.call(tc.method, tc.target, "", "Authorization", "Bearer "+tc.key)
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.answer) {
				t.Errorf("%s: the answer is %d %s", tc.reason, w.Code, w.Body)
			}
			b.call(http.MethodPost, "/generate", `{"input_ids":[1]}`, "Authorization", "Bearer user")
			carried := b.rank.carried()
			if len(carried) != 1 || (carried[0] != nil) != (tc.level > 0) || carried[0] != nil && carried[0].Level != tc.level {
				t.Errorf("%s: the next request brings %+v to the rank, want level %d", tc.reason, carried[0], tc.level)
			}
		})
	}
}

func TestClientTraces(t *testing.T) {
	const (
		first  = "0af7651916cd43dd8448eb211c80319c"
		second = "4bf92f3577b34da6a3ce929d0e0e4736"
		span   = "00f067aa0ba902b7"
	)
	header := func(trace, flags string) string { return "00-" + trace + "-" + span + "-" + flags }
	for _, tc := range []struct {
		name, reason string
		path, body   string
		headers      []string
		traces       int    // requests at the rank that are traced
		trace        string // of all of them; "": a new one for each
		state        string
	}{
		{"none", "a new trace", "/generate", `{"input_ids":[1]}`, nil, 1, "", ""},
		{"headers", "the client's trace", "/generate", `{"input_ids":[1]}`, []string{"Traceparent", header(first, "01"), "Tracestate", "a=1"}, 1, first, "a=1"},
		{"completions", "every route takes them", "/v1/completions", `{"prompt":[1]}`, []string{"Traceparent", header(first, "01")}, 1, first, ""},
		{"chat", "every route takes them", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}]}`, []string{"Traceparent", header(first, "01")}, 1, first, ""},
		{"body", "it wins over the headers", "/generate", `{"input_ids":[1],"external_trace_header":{"traceparent":"` + header(second, "01") + `","tracestate":"b=2"}}`,
			[]string{"Traceparent", header(first, "01"), "Tracestate", "a=1"}, 1, second, "b=2"},
		{"bad body", "then the headers count", "/generate", `{"input_ids":[1],"external_trace_header":{"traceparent":"x"}}`, []string{"Traceparent", header(first, "01")}, 1, first, ""},
		{"bad header", "it is as good as none", "/generate", `{"input_ids":[1]}`, []string{"Traceparent", "00-1-2-01", "Tracestate", "a=1"}, 1, "", ""},
		{"not sampled", "the client wants no spans", "/generate", `{"input_ids":[1]}`, []string{"Traceparent", header(first, "00")}, 0, "", ""},
		{"several answers", "each has a root in the client's trace", "/generate", `{"input_ids":[1],"sampling_params":{"n":3}}`, []string{"Traceparent", header(first, "01")}, 3, first, ""},
		{"several prompts", "each has a trace of its own", "/generate", `{"input_ids":[[1],[2]]}`, nil, 2, "", ""},
		{"health", "probes would drown the rest", "/health_generate", "", nil, 0, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, collector := newTracedBench(t, nil)
			method := http.MethodPost
			if tc.body == "" {
				method = http.MethodGet
			}
			if w := b.call(method, tc.path, tc.body, tc.headers...); w.Code != http.StatusOK {
				t.Fatalf("the answer is %d %s", w.Code, w.Body)
			}
			traced, traces := 0, map[string]bool{}
			for _, c := range b.rank.carried() {
				if c == nil {
					continue
				}
				traced++
				p, ok := traceparent.Parse(c.Parent, c.State)
				if !ok || !p.Sampled || p.State != tc.state || c.Previous == "" || c.Module != "request" || tc.trace != "" && p.TraceID.String() != tc.trace {
					t.Errorf("%s: the rank got %+v", tc.reason, c)
				}
				traces[p.TraceID.String()] = true
			}
			if traced != tc.traces || tc.trace == "" && len(traces) != tc.traces {
				t.Errorf("%s: %d requests at the rank are traced in %d traces, want %d", tc.reason, traced, len(traces), tc.traces)
			}
			if tc.traces == 0 {
				return
			}
			choices := int64(1)
			if strings.Contains(tc.body, `"n":3`) {
				choices = 3
			}
			for _, root := range collector.AwaitRoots(t, tc.traces, 1) {
				if tracetest.IsRoot(root) && ((root.Parent != "") != (tc.trace != "") || root.Attributes["gen_ai.request.n"] != choices) {
					t.Errorf("%s: a root is %+v", tc.reason, root)
				}
			}
		})
	}
	b, _ := newTracedBench(t, nil)
	if w := b.call(http.MethodPost, "/generate", `{"input_ids":[1],"external_trace_header":"x"}`); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "external_trace_header") {
		t.Errorf("a text for the external header is answered with %d %s", w.Code, w.Body)
	}
}

// TestTraceOutcomes: however a request ends, its root and its thread end with it, once, and say so.
func TestTraceOutcomes(t *testing.T) {
	abort := func(o request.Outcome) func(*request.Request, *rank.Stream, <-chan request.Outcome) {
		return func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
			s.Put(request.Output{RID: r.RID, PromptTokens: 1, Finish: &request.Finish{Type: request.FinishAbort, Outcome: o, Message: "because"}})
		}
	}
	for _, tc := range []struct {
		name, reason string
		change       func(*scriptedRank)
		failure      string // "": it does not fail
		finish       string
		thread       bool // the thread of the API process fails too
	}{
		{"answered", "nothing to say", func(*scriptedRank) {}, "", `["length"]`, false},
		{"refused", "by the rank, after the hand-over", func(r *scriptedRank) { r.script = abort(request.OutcomeRefused) }, "refused: ", `["abort"]`, false},
		{"timed out", "the message is the client's", func(r *scriptedRank) { r.script = abort(request.OutcomeTimeout) }, "timeout: ", `["abort"]`, false},
		{"lost", "the rank died with it", func(r *scriptedRank) {
			r.script = func(_ *request.Request, s *rank.Stream, _ <-chan request.Outcome) { s.Fail(errors.New("gone")) }
		}, "internal_error: ", `["abort"]`, false},
		{"not handed over", "the rank took nothing", func(r *scriptedRank) { r.refusal = errors.New("full") }, "internal_error: hand request r", `["abort"]`, true},
		{"too large", "the client's fault", func(r *scriptedRank) { r.refusal = rank.ErrTooLarge }, "too_long: ", `["abort"]`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, collector := newTracedBench(t, func(_ *Config, r *scriptedRank) { tc.change(r) })
			b.call(http.MethodPost, "/generate", `{"rid":"r","input_ids":[1]}`)
			spans := collector.AwaitRoots(t, 1, 1)
			root := spans[slices.IndexFunc(spans, tracetest.IsRoot)]
			if !strings.HasPrefix(root.Failure, tc.failure) || root.Failed != (tc.failure != "") || root.Attributes["gen_ai.response.finish_reasons"] != tc.finish {
				t.Errorf("%s: the root is %+v", tc.reason, root)
			}
			threads := tracetest.Children(spans, root)
			if len(threads) != 1 || threads[0].Failed != tc.thread {
				t.Errorf("%s: the threads are %+v", tc.reason, threads)
			}
			outcome, failed := root.Attributes["abort_info.outcome"]
			if failed != root.Failed || failed && !strings.HasPrefix(root.Failure, outcome.(string)+":") {
				t.Errorf("%s: the root's attributes are %v", tc.reason, root.Attributes)
			}
		})
	}
}

// TestTraceIDInTheLog: the line of a traced request leads to its trace.
func TestTraceIDInTheLog(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	b, _ := newTracedBench(t, func(c *Config, _ *scriptedRank) { c.LogRequests = true })
	var log strings.Builder
	b.requests.log = slog.New(slog.NewTextHandler(&log, nil))
	b.call(http.MethodPost, "/generate", `{"rid":"traced","input_ids":[1]}`, "Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	b.call(http.MethodPost, "/generate", `{"rid":"other","input_ids":[1]}`, "Traceparent", "00-"+trace+"-00f067aa0ba902b7-00")
	for line := range strings.Lines(log.String()) {
		if want := strings.Contains(line, `msg="request ended" rid=traced`); strings.Contains(line, "trace_id="+trace) != want {
			t.Errorf("a line is %s", line)
		}
	}
	if !strings.Contains(log.String(), "rid=other") {
		t.Errorf("the log is %s", &log)
	}
}
