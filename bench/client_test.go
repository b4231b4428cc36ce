package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ms = time.Millisecond

// TestRecord looks at one request against a server whose times are known to the nanosecond.
func TestRecord(t *testing.T) {
	at := func(d time.Duration) *time.Duration { return &d }
	count := func(n int) *int { return &n }
	tests := []struct {
		name, reason string
		api          API
		script       []step
		whole        bool // not streamed
		cancel       *Cancel
		timeout      time.Duration
		want         Record
	}{
		{
			name: "completion", reason: "the first token, the gaps and the server's own counts", api: Completions,
			script: completion(4, 100*ms, 20*ms),
			want: Record{First: at(100 * ms), End: 160 * ms, Gaps: []time.Duration{20 * ms, 20 * ms, 20 * ms},
				InputTokens: 11, OutputTokens: 4, CachedTokens: count(4), Counted: true, Outcome: Completed},
		},
		{
			name: "no usage", reason: "chunks are counted where the server does not", api: Completions,
			script: []step{{50 * ms, event(`{"choices":[{"text":"a"}]}`)}, {30 * ms, event(`{"choices":[{"text":"b","finish_reason":"stop"}]}`)}, {0, done}},
			want:   Record{First: at(50 * ms), End: 80 * ms, Gaps: []time.Duration{30 * ms}, InputTokens: 7, OutputTokens: 2, Outcome: Completed},
		},
		{
			name: "chat", reason: "the chunk that names the role is no token", api: Chat,
			script: []step{
				{10 * ms, event(`{"choices":[{"delta":{"role":"assistant","content":""}}]}`)},
				{40 * ms, ": a comment\n\n" + event(`{"choices":[{"delta":{"reasoning_content":"hm"}}]}`)},
				{5 * ms, event(`{"choices":[{"delta":{"content":"a"}}]}`)},
				{5 * ms, event(`{"choices":[{"delta":{},"finish_reason":"stop"}]}`) + event(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`) + done},
			},
			want: Record{First: at(50 * ms), End: 60 * ms, Gaps: []time.Duration{5 * ms}, InputTokens: 3, OutputTokens: 2, Counted: true, Outcome: Completed},
		},
		{
			name: "continuous usage", reason: "a chunk of three tokens is three gaps", api: Completions,
			script: []step{
				{10 * ms, event(`{"choices":[{"text":"a"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`)},
				{30 * ms, event(`{"choices":[{"text":"bcd"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`)},
				{9 * ms, event(`{"choices":[{"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`) + done},
			},
			want: Record{First: at(10 * ms), End: 49 * ms, Gaps: []time.Duration{10 * ms, 10 * ms, 10 * ms}, InputTokens: 3, OutputTokens: 4, Counted: true, Outcome: Completed},
		},
		{
			name: "generate", reason: "each event repeats what came before", api: Generate,
			script: []step{
				{10 * ms, event(`{"text":"a","meta_info":{"finish_reason":null,"prompt_tokens":5,"completion_tokens":1,"cached_tokens":2}}`)},
				{20 * ms, event(`{"text":"abc","meta_info":{"finish_reason":null,"prompt_tokens":5,"completion_tokens":3,"cached_tokens":2}}`)},
				{1 * ms, event(`{"text":"abc","meta_info":{"finish_reason":{"type":"length","length":3},"prompt_tokens":5,"completion_tokens":3,"cached_tokens":2}}`) + done},
			},
			want: Record{First: at(10 * ms), End: 31 * ms, Gaps: []time.Duration{10 * ms, 10 * ms}, InputTokens: 5, OutputTokens: 3, CachedTokens: count(2), Counted: true, Outcome: Completed},
		},
		{
			name: "whole", reason: "an answer at once has no first token", api: Chat, whole: true,
			script: []step{{70 * ms, `{"choices":[{"message":{"content":"abc"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`}},
			want:   Record{End: 70 * ms, InputTokens: 3, OutputTokens: 2, Counted: true, Outcome: Completed},
		},
		{
			name: "nothing", reason: "an answer without output has its first token at its end", api: Chat,
			script: []step{{30 * ms, event(`{"choices":[{"delta":{},"finish_reason":"stop"}]}`) + done}},
			want:   Record{First: at(30 * ms), End: 30 * ms, InputTokens: 7, Outcome: Completed},
		},
		{
			name: "cancelled in time", reason: "what came until then counts", api: Completions, cancel: &Cancel{After: 130 * ms},
			script: completion(4, 100*ms, 20*ms),
			want:   Record{First: at(100 * ms), End: 130 * ms, Gaps: []time.Duration{20 * ms}, InputTokens: 7, OutputTokens: 2, Outcome: Cancelled},
		},
		{
			name: "cancelled by chunks", reason: "after the second chunk", api: Completions, cancel: &Cancel{Chunks: 2},
			script: completion(4, 100*ms, 20*ms),
			want:   Record{First: at(100 * ms), End: 120 * ms, Gaps: []time.Duration{20 * ms}, InputTokens: 7, OutputTokens: 2, Outcome: Cancelled},
		},
		{
			name: "too late to cancel", reason: "an answer that is whole before is complete", api: Completions, cancel: &Cancel{After: time.Second},
			script: completion(1, 100*ms, 0),
			want:   Record{First: at(100 * ms), End: 100 * ms, InputTokens: 11, OutputTokens: 1, CachedTokens: count(4), Counted: true, Outcome: Completed},
		},
		{
			name: "time-out", reason: "counts from when it was sent", api: Completions, timeout: 90 * ms,
			script: completion(1, 100*ms, 0),
			want:   Record{End: 90 * ms, InputTokens: 7, Outcome: Failed, Failure: TimedOut, Message: "the time for one request is over"},
		},
		{
			name: "error in the stream", reason: "an answer may end badly after a good start", api: Completions,
			script: []step{{10 * ms, event(`{"choices":[{"text":"a"}]}`)}, {10 * ms, event(`{"error":{"message":"the rank died","code":500}}`)}},
			want:   Record{First: at(10 * ms), End: 20 * ms, InputTokens: 7, OutputTokens: 1, Outcome: Failed, Failure: ServerError, Message: "the rank died"},
		},
		{
			name: "abort", reason: "SGLang ends a request that it drops so", api: Generate,
			script: []step{{10 * ms, event(`{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"x"},"prompt_tokens":5,"completion_tokens":0}}`)}},
			want:   Record{End: 10 * ms, InputTokens: 7, Outcome: Failed, Failure: ServerError, Message: "the server ended the answer with finish reason abort"},
		},
		{
			name: "truncated", reason: "no reason of the end and no [DONE]", api: Completions,
			script: []step{{10 * ms, event(`{"choices":[{"text":"a"}]}`)}},
			want: Record{First: at(10 * ms), End: 10 * ms, InputTokens: 7, OutputTokens: 1, Outcome: Failed, Failure: Truncated,
				Message: "the stream ended after 1 chunks without [DONE] or a finish reason"},
		},
		{
			name: "no [DONE]", reason: "the reason of the end is enough", api: Completions,
			script: []step{{10 * ms, event(`{"choices":[{"text":"a","finish_reason":"stop"}]}`)}},
			want:   Record{First: at(10 * ms), End: 10 * ms, InputTokens: 7, OutputTokens: 1, Outcome: Completed},
		},
		{
			name: "lost", reason: "a connection that breaks", api: Completions,
			script: []step{{10 * ms, event(`{"choices":[{"text":"a"}]}`)}, {10 * ms, "!"}},
			want:   Record{First: at(10 * ms), End: 20 * ms, InputTokens: 7, OutputTokens: 1, Outcome: Failed, Failure: Broken, Message: "unexpected EOF"},
		},
		{
			name: "malformed", reason: "an event that is no JSON", api: Completions,
			script: []step{{10 * ms, "data: {\n\n"}},
			want:   Record{End: 10 * ms, InputTokens: 7, Outcome: Failed, Failure: Malformed, Message: `read "{": unexpected end of JSON input`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &scripted{script: steady(tt.script)}
				c := server.client(tt.api)
				c.Target.Stream, c.Timeout = !tt.whole, tt.timeout
				epoch := time.Now()
				got := c.do(t.Context(), Request{InputTokens: 7, Corpus: -1, Cancel: tt.cancel}, []byte("{}"), epoch, epoch)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
				}
				synctest.Wait()
				if server.now != 0 {
					t.Error("the server still works on it")
				}
			})
		})
	}
}

func TestTimes(t *testing.T) {
	first := 350 * ms
	r := Record{Start: 100 * ms, Sent: 120 * ms, First: &first, End: 650 * ms, OutputTokens: 4}
	ttft, _ := r.TTFT()
	tpot, _ := r.TPOT()
	if ttft != 250*ms || tpot != 100*ms || r.E2E() != 550*ms {
		t.Errorf("TTFT %v, TPOT %v, E2E %v; want 250ms, 100ms, 550ms", ttft, tpot, r.E2E())
	}
	r.OutputTokens = 1
	if _, ok := r.TPOT(); ok {
		t.Error("one token has a time per token after the first")
	}
	r.First = nil
	if _, ok := r.TTFT(); ok {
		t.Error("no token has a time to the first")
	}
}

// TestOverHTTP speaks to real servers on loopback.
func TestOverHTTP(t *testing.T) {
	do := func(t *testing.T, c *Client) Record {
		t.Helper()
		defer c.HTTP.CloseIdleConnections()
		record := c.do(t.Context(), Request{Corpus: -1}, []byte(`{"stream":true}`), time.Now(), time.Now())
		if record.Sent > record.End {
			t.Errorf("sent at %v, over at %v", record.Sent, record.End)
		}
		return record
	}
	client := func(url string) *Client {
		header := http.Header{}
		header.Set("Authorization", "Bearer key")
		header.Set("Host", "model.example")
		return &Client{URL: url, Target: Target{API: Completions, Stream: true, Header: header}, HTTP: NewHTTP()}
	}
	t.Run("stream", func(t *testing.T) {
		var got []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = []string{r.Method, r.URL.Path, r.Host, r.Header.Get("Authorization"), r.Header.Get("Content-Type")}
			w.Header().Set("Content-Type", "text/event-stream")
			for _, one := range completion(3, 0, 0) {
				_, _ = w.Write([]byte(one.text))
			}
		}))
		defer server.Close()
		record := do(t, client(server.URL))
		if record.Outcome != Completed || record.OutputTokens != 3 {
			t.Errorf("%+v", record)
		}
		want := []string{"POST", "/v1/completions", "model.example", "Bearer key", "application/json"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the server saw (-want +got):\n%s", diff)
		}
	})
	refusals := []struct {
		name, body, want string
		status           int
		failure          Failure
	}{
		{"OpenAI", `{"error":{"message":"no such model"}}`, "no such model", 404, "http 404"},
		{"SGLang", `{"object":"error","message":"queue is full","code":503}`, "queue is full", 503, "http 503"},
		{"text", "bad gateway\n", "bad gateway", 502, "http 502"},
		{"no stream", `{"choices":[]}`, "no event stream", 200, Malformed},
	}
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer server.Close()
			record := do(t, client(server.URL))
			if record.Outcome != Failed || record.Failure != tt.failure || !strings.Contains(record.Message, tt.want) {
				t.Errorf("%+v, want %s with %q", record, tt.failure, tt.want)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		server := httptest.NewServer(nil)
		url := server.URL
		server.Close()
		if record := do(t, client(url)); record.Failure != Refused {
			t.Errorf("%+v, want %s", record, Refused)
		}
	})
	t.Run("hung up", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		defer server.Close()
		if record := do(t, client(server.URL)); record.Failure != Broken {
			t.Errorf("%+v, want %s", record, Broken)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		gone := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte(event(`{"choices":[{"text":"a"}]}`)))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(gone)
		}))
		defer server.Close()
		c := client(server.URL)
		defer c.HTTP.CloseIdleConnections()
		record := c.do(t.Context(), Request{Cancel: &Cancel{Chunks: 1}}, []byte("{}"), time.Now(), time.Now())
		<-gone // the server learned of it
		if record.Outcome != Cancelled || record.OutputTokens != 1 {
			t.Errorf("%+v", record)
		}
	})
}

func TestModel(t *testing.T) {
	answers := map[string]string{
		`{"data":[{"id":"tiny"},{"id":"other"}]}`: "tiny",
		`{"data":[]}`: "error: names no model",
		`nonsense`:    "error: /v1/models: ",
	}
	for answer, want := range answers {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "models.example" || r.Header.Get("X-Team") != "a" {
				t.Errorf("host %s, header %v: want those of the target", r.Host, r.Header)
			}
			_, _ = w.Write([]byte(answer))
		}))
		c := &Client{URL: server.URL, HTTP: NewHTTP(), Target: Target{Header: http.Header{"Host": {"models.example"}, "X-Team": {"a"}}}}
		got, err := c.Model(t.Context())
		c.HTTP.CloseIdleConnections()
		server.Close()
		if message, fails := strings.CutPrefix(want, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%s: error %v, want one with %q", answer, err, message)
			}
		} else if err != nil || got != want {
			t.Errorf("%s: %q, %v", answer, got, err)
		}
	}
}

func TestCalibrate(t *testing.T) {
	most := 1 << 30
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Prompt string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		words := len(strings.Fields(body.Prompt))
		if words > most {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":{"message":"too long"}}`))
			return
		}
		fmt.Fprintf(w, `{"choices":[{"text":""}],"usage":{"prompt_tokens":%d,"completion_tokens":1}}`, 5+3*words)
	}))
	defer server.Close()
	c := &Client{URL: server.URL, Target: Target{API: Completions}, HTTP: NewHTTP()}
	defer c.HTTP.CloseIdleConnections()
	for _, most = range []int{1 << 30, 70, 20} {
		w, err := c.Calibrate(t.Context())
		if err != nil || w.TokensPerWord != 3 || w.Overhead != 5 {
			t.Errorf("up to %d words: %+v, %v; want 3 tokens a word and 5 more", most, w, err)
		}
	}
	most = 10
	if _, err := c.Calibrate(t.Context()); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("error %v", err)
	}
	silent := &scripted{kind: "application/json", script: steady([]step{{0, `{"choices":[{"text":"a"}]}`}})}
	if _, err := silent.client(Completions).Calibrate(t.Context()); err == nil || !strings.Contains(err.Error(), "does not say") {
		t.Errorf("error %v", err)
	}
}

func TestWarmUp(t *testing.T) {
	load := busyLoad()
	server := &scripted{script: steady(completion(2, 0, 0))}
	c := server.client(Completions)
	c.Seed = load.Seed
	if err := WarmUp(t.Context(), c, load, 3); err != nil {
		t.Error(err)
	}
	if len(server.requests) != 3 {
		t.Errorf("%d requests, want 3", len(server.requests))
	}
	for _, sent := range server.requests {
		for _, r := range Plan(load, 0, load.Requests) {
			if c.Writer.Prompt(load.Seed, r).Text == sent["prompt"] {
				t.Fatal("the warm-up sends a prompt of the run")
			}
		}
	}
	failing := &scripted{script: steady([]step{{0, "data: {\n\n"}})}
	if err := WarmUp(t.Context(), failing.client(Completions), load, 2); err == nil || !strings.Contains(err.Error(), "none of 2 requests") {
		t.Errorf("error %v", err)
	}
	ended, end := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	end(stop)
	if err := WarmUp(ended, c, load, 2); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
	if err := Each([]*Client{c, c}, func(*Client) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}

func FuzzFollower(f *testing.F) {
	for _, script := range [][]step{completion(3, 0, 0), {{0, event(`{"error":"x"}`)}}, {{0, event(`{"choices":[{"delta":{"content":"a"}}]}`)}}} {
		var all strings.Builder
		for _, one := range script {
			all.WriteString(one.text)
		}
		f.Add(all.String(), 0)
	}
	f.Add(event(`{"text":"a","meta_info":{"completion_tokens":-5,"finish_reason":{"type":"stop"}}}`), 2)
	f.Fuzz(func(t *testing.T, text string, api int) {
		record := Record{}
		follower := follower{record: &record, epoch: time.Now(), api: []API{Completions, Chat, Generate}[(api%3+3)%3]}
		stream := newEvents(strings.NewReader(text))
		for {
			data, err := stream.next()
			if err != nil || follower.event(data) != nil {
				break
			}
		}
		if len(record.Gaps) > 0 && record.First == nil {
			t.Errorf("gaps without a first token: %+v", record)
		}
		if len(record.Gaps) > 1<<24 {
			t.Errorf("%d gaps", len(record.Gaps))
		}
	})
}
