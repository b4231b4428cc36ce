package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// over serves the bench on a real connection.
func over(t *testing.T, b *bench) string {
	t.Helper()
	listening := httptest.NewServer(b)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		listening.Close()
	})
	return listening.URL
}

// TestDisconnect: a client that goes away ends its sequences at the rank at once, and each is counted once.
func TestDisconnect(t *testing.T) {
	for _, body := range []string{
		`{"prompt":[1],"rid":"r"}`, `{"prompt":[1],"rid":"r","stream":true}`, `{"prompt":[[1],[2]],"rid":"r","stream":true}`, `{"prompt":[1],"rid":"r","n":2}`,
	} {
		t.Run(body, func(t *testing.T) {
			b := newBench(t, nil)
			outcomes := make(chan request.Outcome, 2)
			b.rank.script = func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
				s.Put(request.Output{RID: r.RID, TokenIDs: []int32{5}, PromptTokens: 1, CompletionTokens: 1})
				outcome := <-aborted
				outcomes <- outcome
				s.Put(request.Output{RID: r.RID, PromptTokens: 1, CompletionTokens: 1, Finish: &request.Finish{Type: request.FinishAbort, Outcome: outcome}})
			}
			url := over(t, b)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if answer, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
			}()
			sequences := strings.Count(body, "],[") + strings.Count(body, `"n":2`) + 1
			eventually(t, "the rank has the sequences", func() bool { return len(b.rank.asked()) == sequences })
			cancel()
			<-gone
			for range sequences {
				if got := <-outcomes; got != request.OutcomeAbortedClient {
					t.Errorf("the rank hears %q", got)
				}
			}
			eventually(t, "the request is over", func() bool { return b.Drained(canceled()) == nil })
			ends, aborts := 0, 0
			for _, event := range b.seen.events() {
				switch event.(type) {
				case finished:
					ends++
				case aborted:
					aborts++
				}
			}
			if ends != sequences || aborts != sequences {
				t.Errorf("%d ends and %d aborts for %d sequences", ends, aborts, sequences)
			}
		})
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestRankDeath: every client gets an error: with its status before the first byte, as the last event of a stream after.
func TestRankDeath(t *testing.T) {
	const message = "request r was lost: rank 0 (pid 4711) ended: signal: killed"
	for _, tc := range []struct {
		name, body string
		first      bool // an output comes before the death
		want       string
		status     int
	}{
		{"whole answer", `{"prompt":[1],"rid":"r"}`, true, "", 502},
		{"stream before the first byte", `{"prompt":[1],"rid":"r","stream":true}`, false, "", 502},
		{
			"stream after the first byte", `{"prompt":[1],"rid":"r","stream":true}`, true,
			`{"id":"r","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}
{"error":{"message":"` + message + `","type":"server_error","param":null,"code":"engine_failed","retryable":true}}
`, 200,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
				if tc.first {
					taken := b.outputs.wait()
					s.Put(request.Output{RID: r.RID, TokenIDs: b.words.Encode("x", false), PromptTokens: 1, CompletionTokens: 1})
					<-taken
				}
				s.Fail(errRankDied)
			}
			r := b.call(http.MethodPost, "/v1/completions", tc.body)
			if r.Code != tc.status {
				t.Fatalf("status %d: %s", r.Code, r.Body)
			}
			if tc.status == http.StatusOK {
				if diff := cmp.Diff(tc.want, indent(r.Body.String())); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
				return
			}
			if diff := cmp.Diff(refused{502, "", codeEngineFailed, message}, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	t.Run("submission", func(t *testing.T) {
		b := newBench(t, func(_ *Config, r *scriptedRank) { r.refusal = errRankDied })
		r := b.call(http.MethodPost, "/generate", `{"text":"a","rid":"r"}`)
		want := refused{502, "", codeEngineFailed, "hand request r to the rank: rank 0 (pid 4711) ended: signal: killed"}
		if diff := cmp.Diff(want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// TestBatchFailure: the failure of one sequence is the request's, and ends the others at the rank.
func TestBatchFailure(t *testing.T) {
	for _, stream := range []bool{false, true} {
		b := newBench(t, nil)
		others := make(chan request.Outcome, 2)
		b.rank.script = func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
			end := request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeTransferFailed, Message: "the peer died"}
			if r.RID != "r_1" {
				end.Outcome = <-aborted
				others <- end.Outcome
			}
			s.Put(request.Output{RID: r.RID, PromptTokens: 1, Finish: &end})
		}
		r := b.call(http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":[[1],[2],[3]],"rid":"r","stream":%v}`, stream))
		want := refused{502, "", string(request.OutcomeTransferFailed), "the peer died"}
		if diff := cmp.Diff(want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
			t.Errorf("stream=%v (-want +got)\n%s", stream, diff)
		}
		for range 2 {
			if got := <-others; got != request.OutcomeAbortedClient {
				t.Errorf("stream=%v: another sequence hears %q", stream, got)
			}
		}
	}
}

// TestBatchStream: the pieces of each sequence come in order, under its index, as SGLang and OpenAI name it.
func TestBatchStream(t *testing.T) {
	for _, path := range []string{"/v1/completions", "/generate"} {
		b := newBench(t, nil)
		b.rank.script = b.say(length(), "a", "b", "c")
		r := b.call(http.MethodPost, path, `{"prompt":["x","y"],"text":["x","y"],"stream":true}`)
		text := map[string]string{}
		for line := range strings.Lines(indent(r.Body.String())) {
			for _, index := range []string{"0", "1"} {
				if !strings.Contains(line, `"index":`+index) {
					continue
				}
				piece := line[strings.Index(line, `"text":"`)+8:]
				piece = piece[:strings.IndexByte(piece, '"')]
				if path == "/generate" {
					text[index] = piece // the text so far
				} else {
					text[index] += piece
				}
			}
		}
		if diff := cmp.Diff(map[string]string{"0": "abc", "1": "abc"}, text); diff != "" || !strings.HasSuffix(r.Body.String(), "data: [DONE]\n\n") {
			t.Errorf("%s (-want +got)\n%s\n%s", path, diff, r.Body)
		}
	}
}

// TestPanic: a fault in a handler is a 500, which no handler gave and which does not count as a response, and the server
// goes on.
func TestPanic(t *testing.T) {
	b := newBench(t, nil)
	b.routes.exact["/boom"] = &route{pattern: "/boom", methods: onlyGet, handle: func(http.ResponseWriter, *http.Request) { panic("boom") }}
	r := b.call(http.MethodGet, "/boom", "")
	want := refused{500, "", codeInternal, "the engine failed on this request; its log says why"}
	if diff := cmp.Diff(want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]any{httpBegun{"/boom", "GET"}, httpEnded{"/boom", "GET"}}, b.seen.events()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if r := b.call(http.MethodPost, "/generate", `{"text":"a"}`); r.Code != http.StatusOK {
		t.Errorf("after it: status %d", r.Code)
	}
}

// TestPanicInJob: also a fault outside the handler's goroutine, and no sequence stays at the rank.
func TestPanicInJob(t *testing.T) {
	b := newBench(t, nil)
	b.rank.script = b.waitForAbort("x")
	e, _ := b.running()
	spec := func(rid string) sequenceSpec {
		return sequenceSpec{rid: rid, prompt: []int32{1}, timeline: b.arrival()}
	}
	j, err := b.start(t.Context(), e, "r", []sequenceSpec{spec("a"), spec("b")})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.stream(t.Context(), func(int, piece) { panic("boom") }); err == nil || err.code != codeInternal {
		t.Errorf("the error is %v", err)
	}
}

// TestHealth covers the phases and the two ways in which a check finds output.
func TestHealth(t *testing.T) {
	get := func(b *bench, path string) int { return b.call(http.MethodGet, path, "").Code }
	t.Run("generates", func(t *testing.T) {
		b := newBench(t, nil)
		b.rank.script = b.say(length(), "x")
		if got := get(b, "/health_generate"); got != http.StatusOK {
			t.Errorf("status %d", got)
		}
		r := b.rank.asked()[0]
		want := &request.Request{
			RID: r.RID, PromptIDs: []int32{0}, ReceivedWallNanos: r.ReceivedWallNanos,
			Sampling: request.Sampling{MaxNewTokens: 1, TopP: 1, TopK: -1, IgnoreEOS: true},
		}
		if diff := cmp.Diff(want, r); diff != "" || !strings.HasPrefix(r.RID, "HEALTH_CHECK") {
			t.Errorf("rid %s (-want +got)\n%s", r.RID, diff)
		}
		if diff := cmp.Diff([]any{httpBegun{"/health_generate", "GET"}, httpAnswered{"/health_generate", "GET", 200}, httpEnded{"/health_generate", "GET"}}, b.seen.events()); diff != "" {
			t.Errorf("a check is not counted: (-want +got)\n%s", diff)
		}
	})
	for _, mode := range []rank.Mode{rank.ModePrefill, rank.ModeDecode} {
		t.Run(string(mode), func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.Rank.Disagg.Mode = mode })
			b.rank.script = b.say(length(), "x")
			if got := get(b, "/health"); got != http.StatusOK {
				t.Errorf("status %d", got)
			}
			if b := b.rank.asked()[0].Bootstrap; b == nil || !b.Fake() {
				t.Errorf("bootstrap is %v, want the fake one", b)
			}
		})
	}
	t.Run("without output", func(t *testing.T) {
		b := newBench(t, func(c *Config, _ *scriptedRank) { c.HealthTimeout = 5 * time.Millisecond })
		b.rank.script = func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
			s.Put(request.Output{RID: r.RID, Finish: &request.Finish{Type: request.FinishAbort, Outcome: <-aborted}})
		}
		if got := get(b, "/health"); got != http.StatusServiceUnavailable {
			t.Errorf("status %d", got)
		}
	})
	t.Run("another request's output", func(t *testing.T) {
		b := newBench(t, nil)
		checked := make(chan struct{})
		b.rank.script = func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
			if strings.HasPrefix(r.RID, healthPrefix) {
				close(checked)
				s.Put(request.Output{RID: r.RID, Finish: &request.Finish{Type: request.FinishAbort, Outcome: <-aborted}})
				return
			}
			<-checked
			s.Put(request.Output{RID: r.RID, TokenIDs: []int32{5}, PromptTokens: 1, CompletionTokens: 1, Finish: &request.Finish{Type: request.FinishLength}})
		}
		done := make(chan int)
		go func() { done <- b.call(http.MethodPost, "/v1/completions", `{"prompt":[1]}`).Code }()
		eventually(t, "the request is at the rank", func() bool { return len(b.rank.asked()) == 1 })
		if got := get(b, "/health"); got != http.StatusOK {
			t.Errorf("status %d", got)
		}
		if got := <-done; got != http.StatusOK {
			t.Errorf("the other request: status %d", got)
		}
	})
	t.Run("without generation", func(t *testing.T) {
		b := newBench(t, func(c *Config, _ *scriptedRank) { c.HealthGenerates = false })
		if got := get(b, "/health"); got != http.StatusOK || len(b.rank.asked()) != 0 {
			t.Errorf("status %d, %d requests", got, len(b.rank.asked()))
		}
	})
}

// TestPhases: what is answered before the rank is up and while the replica leaves.
func TestPhases(t *testing.T) {
	b := newBench(t, nil)
	starting := New(b.cfg, Options{Clock: b.clock, Log: b.log})
	state := func(s *Server) map[string]int {
		got := map[string]int{}
		for _, path := range []string{"/health", "/v1/models", "/v1/loads", "/server_info"} {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			got[path] = w.Code
			if closes, leaving := w.Header().Get("Connection") == "close", s.currentPhase() >= phaseLeaving; closes != leaving {
				t.Errorf("%s: connection closes %t in phase %s", path, closes, s.currentPhase())
			}
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"a"}`)))
		got["completion"] = w.Code
		return got
	}
	want := func(health, info, completion int) map[string]int {
		return map[string]int{"/health": health, "/v1/models": info, "/v1/loads": info, "/server_info": info, "completion": completion}
	}
	if diff := cmp.Diff(want(503, 503, 503), state(starting)); diff != "" {
		t.Errorf("starting: (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(want(200, 200, 200), state(b.Server)); diff != "" {
		t.Errorf("serving: (-want +got)\n%s", diff)
	}
	b.Leave()
	if diff := cmp.Diff(want(503, 200, 200), state(b.Server)); diff != "" {
		t.Errorf("leaving: (-want +got)\n%s", diff)
	}
	b.Refuse()
	if diff := cmp.Diff(want(503, 200, 503), state(b.Server)); diff != "" {
		t.Errorf("draining: (-want +got)\n%s", diff)
	}
}

// TestDrained: draining waits for what was admitted.
func TestDrained(t *testing.T) {
	b := newBench(t, nil)
	release := make(chan struct{})
	b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
		<-release
		s.Put(request.Output{RID: r.RID, PromptTokens: 1, Finish: &request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}})
	}
	answered := make(chan int, 1)
	go func() { answered <- b.call(http.MethodPost, "/v1/completions", `{"prompt":[1]}`).Code }()
	eventually(t, "the request is at the rank", func() bool { return len(b.rank.asked()) == 1 })
	b.Refuse()
	if err := b.Drained(canceled()); !errors.Is(err, context.Canceled) {
		t.Errorf("drained while a request runs: %v", err)
	}
	close(release)
	if err := b.Drained(t.Context()); err != nil {
		t.Error(err)
	}
	if got := <-answered; got != http.StatusOK {
		t.Errorf("status %d", got)
	}
}

// TestAbortRequest: by prefix, and all.
func TestAbortRequest(t *testing.T) {
	for _, tc := range []struct {
		body string
		want []string
	}{
		{`{"rid":"a"}`, []string{"a1", "a2"}}, {`{"rid":"a1"}`, []string{"a1"}}, {`{"abort_all":true}`, []string{"a1", "a2", "b"}}, {`{"rid":"none"}`, nil},
	} {
		t.Run(tc.body, func(t *testing.T) {
			b := newBench(t, nil)
			b.rank.script = b.waitForAbort("x")
			answers := make(chan string, 3)
			for _, rid := range []string{"a1", "a2", "b"} {
				go func() {
					if b.call(http.MethodPost, "/generate", `{"text":"x","rid":"`+rid+`"}`).Code == http.StatusServiceUnavailable {
						answers <- rid
					}
				}()
			}
			eventually(t, "the requests are at the rank", func() bool { return len(b.rank.asked()) == 3 })
			if r := b.call(http.MethodPost, "/abort_request", tc.body); r.Code != http.StatusOK {
				t.Fatalf("status %d: %s", r.Code, r.Body)
			}
			got := map[string]bool{}
			for range tc.want {
				got[<-answers] = true
			}
			for _, rid := range tc.want {
				if !got[rid] {
					t.Errorf("%s was not aborted", rid)
				}
			}
			_ = b.rank.AbortAll("")
			eventually(t, "all are over", func() bool { return b.Drained(canceled()) == nil })
		})
	}
}

// TestLoadsExposition compares the text form, with a different value in every field.
func TestLoadsExposition(t *testing.T) {
	b := newBench(t, func(_ *Config, r *scriptedRank) {
		r.load = loads.Load{
			DPRank: 3, NumRunningReqs: 1, NumWaitingReqs: 2, NumWaitingUncached: 4, NumUsedTokens: 5, NumTotalTokens: 6, NumActiveTokens: 7, MaxTotalNumTokens: 8,
			MaxRunningRequests: 9, TokenUsage: 0.1, GenThroughput: 0.11, CacheHitRate: 0.12, Utilization: -1, TotalPrefillUncached: 14, TotalPrefillBusyMicro: 15, TotalGenerated: 21,
			Queues: &loads.Queues{Waiting: 16, Grammar: 17, Paused: 18, Retracted: 19, PreallocReady: 20}, Memory: &loads.Memory{},
		}
	})
	var want bytes.Buffer
	for _, f := range []struct{ name, value string }{
		{"num_running_reqs", "1"}, {"num_waiting_reqs", "2"}, {"num_waiting_uncached_tokens", "4"}, {"num_used_tokens", "5"}, {"num_total_tokens", "6"},
		{"num_active_tokens", "7"}, {"max_total_num_tokens", "8"}, {"max_running_requests", "9"}, {"token_usage", "0.1"}, {"gen_throughput", "0.11"},
		{"cache_hit_rate", "0.12"}, {"utilization", "-1"}, {"total_prefill_uncached_tokens", "14"}, {"total_prefill_busy_us", "15"}, {"total_generated_tokens", "21"},
		{"queues_waiting", "16"}, {"queues_grammar", "17"}, {"queues_paused", "18"}, {"queues_retracted", "19"}, {"queues_prealloc_ready", "20"},
	} {
		fmt.Fprintf(&want, "# TYPE sglang_%[1]s gauge\nsglang_%[1]s{dp_rank=\"3\"} %[2]s\n", f.name, f.value)
	}
	r := b.call(http.MethodGet, "/v1/loads?include=queues&format=prometheus&dp_rank=03", "")
	if diff := cmp.Diff(want.String(), r.Body.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if r := b.call(http.MethodGet, "/v1/loads?format=prometheus&dp_rank=0", ""); r.Body.String() != "" {
		t.Errorf("another rank's load: %s", r.Body)
	}
}

// TestLargeBody: a client that writes ten times the limit before it reads still sees the refusal.
func TestLargeBody(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.MaxBodyBytes = 1 << 20 })
	url := over(t, b)
	address := strings.TrimPrefix(url, "http://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 3 << 20
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(make([]byte, size)); err != nil {
		t.Fatalf("the whole body goes out: %v", err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", answer.StatusCode)
	}
}

// TestLabels: only allowed custom labels, from the header or the body, reach the metrics.
func TestLabels(t *testing.T) {
	for _, tc := range []struct {
		name, path, body, header string
		want                     map[string]string
	}{
		{"header", "/v1/completions", `{"prompt":[1]}`, `{"team":"a","x":"y"}`, map[string]string{"team": "a"}},
		{"header with other things", "/v1/completions", `{"prompt":[1]}`, `{"team":"a","x":{"y":1},"user":5}`, map[string]string{"team": "a"}},
		{"header with null", "/v1/completions", `{"prompt":[1]}`, `{"team":null}`, nil},
		{"header that is no JSON", "/v1/completions", `{"prompt":[1]}`, `team=a`, nil},
		{"body with null", "/generate", `{"text":"a","custom_labels":{"team":null}}`, ``, nil},
		{"body", "/generate", `{"text":"a","custom_labels":{"team":"b","x":5}}`, `{"team":"a"}`, map[string]string{"team": "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.AllowedCustomLabels = []string{"team", "user"} })
			if r := b.call(http.MethodPost, tc.path, tc.body, "x-custom-labels", tc.header); r.Code != http.StatusOK {
				t.Fatalf("status %d: %s", r.Code, r.Body)
			}
			for _, event := range b.seen.events() {
				if f, ok := event.(finished); ok {
					if diff := cmp.Diff(metrics.Subject{Custom: tc.want}, f.S); diff != "" {
						t.Errorf("(-want +got)\n%s", diff)
					}
				}
			}
		})
	}
}

// onePipe is a listener with one connection that has no buffers, so a client that does not read stalls the server at once.
type onePipe struct {
	net.Listener
	server chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *onePipe) Accept() (net.Conn, error) {
	select {
	case conn := <-l.server:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *onePipe) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *onePipe) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// TestStalledReader: a client that takes nothing any more counts as gone, and its sequence ends at the rank.
func TestStalledReader(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.ClientTimeout = 20 * time.Millisecond })
	heard := make(chan request.Outcome, 1)
	b.rank.script = func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
		s.Put(request.Output{RID: r.RID, TokenIDs: []int32{120}, PromptTokens: 1, CompletionTokens: 1})
		outcome := <-aborted
		heard <- outcome
		s.Put(request.Output{RID: r.RID, PromptTokens: 1, CompletionTokens: 1, Finish: &request.Finish{Type: request.FinishAbort, Outcome: outcome}})
	}
	listener := &onePipe{server: make(chan net.Conn, 1), closed: make(chan struct{})}
	client, server := net.Pipe()
	defer client.Close()
	listener.server <- server
	httpServer := &http.Server{Handler: b}
	defer httpServer.Close()
	go func() { _ = httpServer.Serve(listener) }()
	body := `{"prompt":[1],"stream":true}`
	if _, err := fmt.Fprintf(client, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != request.OutcomeAbortedClient {
		t.Errorf("the rank hears %q", got)
	}
	eventually(t, "the request is over", b.empty)
}

// senderTimeout is short for the tests' sake, and long enough for the server to write its answer on a busy machine.
const senderTimeout = 500 * time.Millisecond

// TestStalledSender: a body that does not come is refused, and holds up no drain.
func TestStalledSender(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.ClientTimeout = senderTimeout })
	conn, err := net.Dial("tcp", strings.TrimPrefix(over(t, b), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	if err := b.Drained(canceled()); err != nil {
		t.Errorf("a body that does not come is in flight: %v", err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %d", answer.StatusCode)
	}
}

// TestStalledSenderUnread: a body that does not come ends the connection, also where nobody wants the body.
func TestStalledSenderUnread(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.ClientTimeout, c.APIKey = senderTimeout, "k" })
	url := over(t, b)
	for path, want := range map[string]int{"/nothing": 404, "/v1/models": 405, "/v1/completions": 401} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", path); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn) // ends when the server closes
		if status := fmt.Sprintf("HTTP/1.1 %d ", want); !strings.HasPrefix(string(all), status) || err != nil {
			t.Errorf("%s: %v, and the answer begins %.40q, want %q", path, err, all, status)
		}
		conn.Close()
	}
}

// TestStalledPipeline: a client that asks and asks and takes no answer loses its connection.
func TestStalledPipeline(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.ClientTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(over(t, b), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	requests := []byte(strings.Repeat("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 1000))
	for err == nil {
		_, err = conn.Write(requests) // blocks once the buffers of both directions are full
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays")
	}
}

// deadlines notes the deadlines of writes.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.last = at
	return nil
}

// TestDeadlineOfAnAnswer: what a handler says about its whole answer holds whatever pieces it has, and is never more than each
// piece may take.
func TestDeadlineOfAnAnswer(t *testing.T) {
	d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	w := &countedWriter{ResponseWriter: d, patience: time.Hour, started: func(int) {}}
	due := time.Now().Add(time.Minute)
	if err := http.NewResponseController(w).SetWriteDeadline(due); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := w.Write([]byte("x")); err != nil || !d.last.Equal(due) {
			t.Errorf("a piece is due at %v, %v; the answer at %v", d.last, err, due)
		}
	}
	if err := http.NewResponseController(w).SetWriteDeadline(due.Add(10 * time.Hour)); err != nil || d.last.After(time.Now().Add(time.Hour)) {
		t.Errorf("a piece has until %v, %v", d.last, err)
	}
}
