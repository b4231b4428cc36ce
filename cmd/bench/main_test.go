package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/bench"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an OpenAI-compatible server that answers every completion with so many tokens as are asked for.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	bodies   []map[string]any
	keys     []string
	flushed  int
	silent   bool          // no usage
	answered func(n int)   // called before the n-th completion is answered
	hold     chan struct{} // not nil: completions wait for it, or for the client to leave
}

func serve(t *testing.T) *server {
	s := &server{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	t.Setenv("OPENAI_API_KEY", "")
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprint(w, `{"data":[{"id":"tiny"}]}`)
		return
	case "/flush_cache":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flushed++
		return
	case "/v1/completions", "/v1/chat/completions", "/generate":
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.bodies, s.keys = append(s.bodies, body), append(s.keys, r.Header.Get("Authorization"))
	n := len(s.bodies)
	s.mu.Unlock()
	if s.answered != nil {
		s.answered(n)
	}
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-r.Context().Done():
			return
		}
	}
	prompt, _ := body["prompt"].(string)
	tokens, words := int(body["max_tokens"].(float64)), len(strings.Fields(prompt))
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d}`, words+2, tokens)
	if s.silent {
		usage = "null"
	}
	if body["stream"] != true {
		fmt.Fprintf(w, `{"choices":[{"text":"x","finish_reason":"length"}],"usage":%s}`, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for range tokens {
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
	}
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", usage)
}

// sluiceBench runs the program.
func sluiceBench(ctx context.Context, args ...string) (out, log string, err error) {
	var stdout, stderr bytes.Buffer
	c := command(terminal{out: &stdout, err: &stderr})
	c.SetArgs(args)
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	err = c.ExecuteContext(ctx)
	return stdout.String(), stderr.String(), err
}

func TestFlags(t *testing.T) {
	const url = "--url=http://127.0.0.1:1"
	tests := []struct {
		args []string
		want string
	}{
		{nil, "neither --request-rate nor --max-concurrency"},
		{[]string{"--max-concurrency=1"}, "give --url"},
		{[]string{url, "--max-concurrency=1", "--vs=ftp://b"}, "--vs: "},
		{[]string{url, "--request-rate=0"}, `--request-rate is "0"`},
		{[]string{url, "--request-rate=fast"}, `--request-rate is "fast"`},
		{[]string{url, "--request-rate=inf", "--duration=1s"}, "--request-rate inf starts all requests at once"},
		{[]string{url, "--request-rate=1", "--arrivals=constant", "--burstiness=2"}, "--burstiness shapes gamma arrivals"},
		{[]string{url, "--request-rate=1", "--arrivals=weekly"}, `--arrivals is "weekly"`},
		{[]string{url, "--max-concurrency=1", "--arrivals=poisson"}, "--arrivals spaces an open loop"},
		{[]string{url, "--max-concurrency=1", "--input-len=many"}, `invalid argument "many" for "--input-len"`},
		{[]string{url, "--max-concurrency=1", "--api=soap"}, `--api is "soap"`},
		{[]string{url, "--max-concurrency=1", "--temperature=-2"}, "--temperature is -2"},
		{[]string{url, "--max-concurrency=1", "--header=none"}, "--header: "},
		{[]string{url, "--max-concurrency=1", "--extra-body=[1]"}, "--extra-body is no JSON object"},
		{[]string{url, "--max-concurrency=1", "--token-ids=5"}, `--token-ids is "5"`},
		{[]string{url, "--max-concurrency=1", "--token-ids=5:9", "--api=chat"}, "chat takes text"},
		{[]string{url, "--max-concurrency=1", "--token-ids=5:9", "--prompts=x"}, "leave it or --prompts out"},
		{[]string{url, "--max-concurrency=1", "--tokens-per-word=-1"}, "--tokens-per-word is -1"},
		{[]string{url, "--max-concurrency=1", "--prompts=/does/not/exist"}, "--prompts /does/not/exist: "},
		{[]string{url, "--max-concurrency=1", "--shuffle"}, "--shuffle is for --prompts"},
		{[]string{url, "--max-concurrency=1", "--priorities=high"}, "--priorities: "},
		{[]string{url, "--max-concurrency=1", "--goodput=ttft"}, "--goodput has"},
		{[]string{url, "--max-concurrency=1", "--goodput=itl=1s"}, "the names are ttft, tpot and e2e"},
		{[]string{url, "--max-concurrency=1", "--alternate=never"}, `--alternate is "never"`},
		{[]string{url, "--max-concurrency=1", "--round=0"}, "--round is 0"},
		{[]string{url, "--max-concurrency=1", "--warmup=-1"}, "--warmup is -1"},
		{[]string{url, "--max-concurrency=1", "--timeout=-1s"}, "--timeout is -1s"},
		{[]string{url, "--max-concurrency=1", "--progress-interval=0s"}, "--progress-interval is 0s"},
		{[]string{url, "--max-concurrency=1", "--continuous-usage", "--stream=false"}, "--continuous-usage is for streams"},
		{[]string{url, "--max-concurrency=1", "--cancel-after-chunks=3", "--stream=false"}, "--cancel-after-chunks counts chunks"},
		{[]string{url, "--max-concurrency=1", "--nonsense"}, "see sluice-bench --help"},
		{[]string{url, "--max-concurrency=1"}, "learn the model (or give --model)"},
	}
	for _, tt := range tests {
		if _, _, err := sluiceBench(t.Context(), tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: error %v, want one with %q", tt.args, err, tt.want)
		}
	}
}

func TestRun(t *testing.T) {
	s := serve(t)
	file := filepath.Join(t.TempDir(), "out.json")
	out, log, err := sluiceBench(t.Context(), "--base-url", s.URL+"/v1", "--max-concurrency", "3", "--num-prompts", "20", "--input-len", "12",
		"--output-len", "4", "--api-key", "key", "--extra-body", `{"user":"me"}`, "--warmup", "2", "--flush-cache", "--output", file, "--records",
		"--goodput", "e2e=1h")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{s.URL + "\n", "20: 20 completed", "80 tokens", "240 tokens", "TTFT", "goodput"} {
		if !strings.Contains(out, want) {
			t.Errorf("the table has no %q:\n%s", want, out)
		}
	}
	if log != "" {
		t.Errorf("a short run wrote %q", log)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report bench.Report
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	got := report.Servers[0]
	if report.Model != "tiny" || len(report.Records) != 20 || got.Completed != 20 || got.InputTokens != 240 || got.ConcurrencyPeak > 3 || *got.Goodput != got.RequestsPerSecond {
		t.Errorf("%+v", report)
	}
	if len(s.bodies) != 2+2+20 || s.flushed != 1 { // calibration, warm-up, run
		t.Errorf("%d requests and %d flushes", len(s.bodies), s.flushed)
	}
	for i, key := range s.keys {
		if key != "Bearer key" || s.bodies[i]["model"] != "tiny" || s.bodies[i]["user"] != "me" {
			t.Errorf("request %d: key %q, body %v", i, key, s.bodies[i])
		}
	}
}

func TestTwoServers(t *testing.T) {
	one, two := serve(t), serve(t)
	two.silent = true
	out, _, err := sluiceBench(t.Context(), "--url", one.URL, "--vs", two.URL, "--alternate", "round", "--round", "4", "--max-concurrency", "2",
		"--num-prompts", "12", "--input-len", "8", "--output-len", "3", "--warmup", "0", "--tokens-per-word", "1", "--json", "--progress-interval", "1ns")
	if err != nil {
		t.Fatal(err)
	}
	var report bench.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Servers) != 2 || len(report.Ratios) != 9 || report.Alternate != bench.ByRound || report.Ratios[0].Units != 3 || report.Ratios[0].Low == nil {
		t.Errorf("%+v", report)
	}
	want := []string{two.URL + ": 12 answers told no usage; their input tokens are those that were wanted, their output tokens are chunks"}
	if diff := cmp.Diff(want, report.Notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if second := report.Servers[1]; second.OutputTokens != 36 || second.InputTokens != 96 {
		t.Errorf("counted without usage: %+v", second)
	}
	prompts := func(s *server) map[any]int {
		set := map[any]int{}
		for _, body := range s.bodies {
			set[body["prompt"]]++
		}
		return set
	}
	if diff := cmp.Diff(prompts(one), prompts(two)); diff != "" || len(prompts(one)) != 12 {
		t.Errorf("%d prompts; the servers got different ones:\n%s", len(prompts(one)), diff)
	}
}

func TestInterrupt(t *testing.T) {
	s := serve(t)
	s.hold = make(chan struct{})
	ctx, interrupt := context.WithCancel(t.Context())
	s.answered = func(n int) {
		if n == 2 {
			interrupt()
		}
	}
	out, _, err := sluiceBench(ctx, "--url", s.URL, "--model", "m", "--max-concurrency", "2", "--warmup", "0", "--tokens-per-word", "1")
	if !errors.Is(err, errInterrupted) {
		t.Errorf("error %v, want %v", err, errInterrupted)
	}
	for _, want := range []string{"2: 0 completed, 2 interrupted", "interrupted: these are the requests until then"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestPrompts(t *testing.T) {
	s := serve(t)
	file := filepath.Join(t.TempDir(), "prompts.jsonl")
	if err := os.WriteFile(file, []byte("{\"prompt\":\"one\"}\n{\"prompt\":\"two\",\"output_tokens\":2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := sluiceBench(t.Context(), "--url", s.URL, "--prompts", file, "--max-concurrency", "1", "--num-prompts", "3", "--output-len", "5", "--warmup", "0",
		"--header", "X-A: b", "--priorities", "4")
	if err != nil {
		t.Fatal(err)
	}
	type sent struct{ Prompt, MaxTokens, Priority any }
	var got []sent
	for _, body := range s.bodies {
		got = append(got, sent{body["prompt"], body["max_tokens"], body["priority"]})
	}
	if diff := cmp.Diff([]sent{{"one", 5.0, 4.0}, {"two", 2.0, 4.0}, {"one", 5.0, 4.0}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := os.WriteFile(file, []byte(`{"messages":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = sluiceBench(t.Context(), "--url", s.URL, "--prompts", file, "--max-concurrency", "1")
	if err == nil || !strings.Contains(err.Error(), "prompt 1: messages need --api chat") {
		t.Errorf("error %v", err)
	}
}

func TestEveryRequestFails(t *testing.T) {
	s := serve(t)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, "slow down")
	})
	out, _, err := sluiceBench(t.Context(), "--url", s.URL, "--model", "m", "--max-concurrency", "2", "--num-prompts", "4", "--warmup", "0", "--tokens-per-word", "1")
	if err == nil || !strings.Contains(err.Error(), "every request failed: http 429") || !strings.Contains(out, "slow down") {
		t.Errorf("error %v and\n%s", err, out)
	}
	_, _, err = sluiceBench(t.Context(), "--url", s.URL, "--model", "m", "--max-concurrency", "2", "--tokens-per-word", "1")
	if err == nil || !strings.Contains(err.Error(), "warm-up of "+s.URL) {
		t.Errorf("error %v", err)
	}
}
