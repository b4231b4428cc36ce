package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

// indent makes bodies comparable and readable: JSON one field a line; the events of a stream one after another.
func indent(body string) string {
	var out bytes.Buffer
	for part := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		data := strings.TrimPrefix(part, "data: ")
		var buf bytes.Buffer
		if json.Compact(&buf, []byte(data)) != nil {
			buf.WriteString(data)
		}
		out.WriteString(buf.String() + "\n")
	}
	return out.String()
}

func lines(text string) string {
	return indent(strings.ReplaceAll(strings.TrimSpace(text), "\n\t\t\t", ""))
}

func length() request.Finish {
	return request.Finish{Type: request.FinishLength, Outcome: request.OutcomeLength, QueueNanos: 5e8, ForwardEntryWallNanos: 1_700_000_001_000_000_000}
}

func TestAnswers(t *testing.T) {
	stopString := request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop, MatchedStop: "END"}
	for _, tc := range []struct {
		name, reason string
		change       func(*Config, *scriptedRank)
		finish       request.Finish
		pieces       []string
		path, body   string
		want         string
	}{
		{
			name: "completion", reason: "the fields of OpenAI, with SGLang's matched_stop", finish: length(), pieces: []string{"Hello", " world"},
			path: "/v1/completions", body: `{"model":"tiny","prompt":"Hi","rid":"a"}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"Hello world","logprobs":null,
			"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":3,"completion_tokens":8,"total_tokens":11,"prompt_tokens_details":null}}`,
		},
		{
			name: "completion of several prompts", reason: "one choice each, in order; usage sums", finish: length(), pieces: []string{"x"},
			change: func(c *Config, _ *scriptedRank) { c.EnableCacheReport = true },
			path:   "/v1/completions", body: `{"prompt":[[1,2,3],[4]],"rid":"a"}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[
			{"index":0,"text":"x","logprobs":null,"finish_reason":"length","matched_stop":null},
			{"index":1,"text":"x","logprobs":null,"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":2}}}`,
		},
		{
			name: "completion stream with a stop string across chunks", reason: "what could begin the stop is held back and cut", finish: stopString,
			pieces: []string{"one E", "N", "D"},
			path:   "/v1/completions", body: `{"prompt":"Hi","rid":"a","stream":true,"stop":"END","stream_options":{"include_usage":true}}`,
			want: `data: {"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"one ","logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","matched_stop":"END"}],"usage":null}

data: {"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":6,"total_tokens":9,"prompt_tokens_details":null}}

data: [DONE]`,
		},
		{
			name: "chat", reason: "the message of the assistant", finish: length(), pieces: []string{"Hello"},
			path: "/v1/chat/completions", body: `{"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"rid":"a","max_completion_tokens":5}`,
			want: `{"id":"a","object":"chat.completion","created":1700000000,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},
			"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":19,"completion_tokens":4,"total_tokens":23,"prompt_tokens_details":null}}`,
		},
		{
			name: "chat stream", reason: "role first, then text, then the reason of the end", finish: length(), pieces: []string{"Hello"},
			path: "/v1/chat/completions", body: `{"messages":[{"role":"user","content":"Hi"}],"rid":"a","stream":true}`,
			want: `data: {"id":"a","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"a","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"a","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}

data: [DONE]`,
		},
		{
			name: "generate", reason: "meta_info without times while metrics are off", finish: length(), pieces: []string{"x"},
			path: "/generate", body: `{"input_ids":[1,2],"rid":"a","sampling_params":{"max_new_tokens":4}}`,
			want: `{"text":"x","output_ids":[120],"meta_info":{"id":"a","finish_reason":{"type":"length","length":1},"prompt_tokens":2,"completion_tokens":1,"reasoning_tokens":0,"cached_tokens":1,
			"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"e2e_latency":0}}`,
		},
		{
			name: "generate with metrics", reason: "the times of the ledger are there", finish: length(), pieces: []string{"x"},
			change: func(c *Config, _ *scriptedRank) { c.EnableMetrics = true },
			path:   "/generate", body: `{"input_ids":[1,2],"rid":"a"}`,
			want: `{"text":"x","output_ids":[120],"meta_info":{"id":"a","finish_reason":{"type":"length","length":1},"prompt_tokens":2,"completion_tokens":1,"reasoning_tokens":0,"cached_tokens":1,
			"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"e2e_latency":0,"queue_time":0.5,"forward_entry_time":1700000001,
			"request_received_ts":1700000000,"api_server_dispatch_finish_ts":1700000000,"response_sent_to_client_ts":1700000000,"request_finished_ts":1700000000,"first_token_latency":0}}`,
		},
		{
			name: "generate batch", reason: "a list of one is a list", finish: length(), pieces: []string{"x"},
			path: "/generate", body: `{"input_ids":[[1,2]],"rid":["a"],"sampling_params":[{}]}`,
			want: `[{"text":"x","output_ids":[120],"meta_info":{"id":"a","finish_reason":{"type":"length","length":1},"prompt_tokens":2,"completion_tokens":1,"reasoning_tokens":0,"cached_tokens":1,
			"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"e2e_latency":0}}]`,
		},
		{
			name: "models", reason: "one card", path: "/v1/models",
			want: `{"object":"list","data":[{"id":"tiny","object":"model","created":1700000000,"owned_by":"sluice","root":"tiny","parent":null,"max_model_len":128}]}`,
		},
		{
			name: "model", reason: "the card alone", path: "/v1/models/tiny",
			want: `{"id":"tiny","object":"model","created":1700000000,"owned_by":"sluice","root":"tiny","parent":null,"max_model_len":128}`,
		},
		{
			name: "loads", reason: "core and the sections that were asked for",
			change: func(_ *Config, r *scriptedRank) {
				r.load = loads.Load{NumRunningReqs: 1, NumWaitingReqs: 2, MaxTotalNumTokens: 96, Utilization: 0.25, Memory: &loads.Memory{WeightGB: 1},
					Queues: &loads.Queues{Waiting: 2}, Disaggregation: &loads.Disaggregation{Mode: "null"}}
			},
			path: "/v1/loads?include=core,queues",
			want: `{"timestamp":"2023-11-14T22:13:20Z","version":"dev","accelerator":"cpu-amd64","num_accelerators":1,"loads":[{"timestamp":0,"dp_rank":0,"num_running_reqs":1,
			"num_waiting_reqs":2,"num_waiting_uncached_tokens":0,"num_used_tokens":0,"num_total_tokens":0,"num_active_tokens":0,"max_total_num_tokens":96,
			"max_running_requests":0,"token_usage":0,"gen_throughput":0,"cache_hit_rate":0,"utilization":0.25,"total_prefill_uncached_tokens":0,
			"total_prefill_busy_us":0,"total_generated_tokens":0,"queues":{"waiting":2,"grammar":0,"paused":0,"retracted":0,"prealloc_ready":0}}]}`,
		},
		{
			name: "get_load", reason: "the deprecated form",
			change: func(_ *Config, r *scriptedRank) {
				r.load = loads.Load{NumRunningReqs: 1, NumWaitingReqs: 2, NumUsedTokens: 10, NumTotalTokens: 30}
			},
			path: "/get_load", want: `[{"dp_rank":0,"num_reqs":3,"num_waiting_reqs":2,"num_tokens":30,"num_pending_tokens":20,"ts_tic":0}]`,
		},
		{
			name: "tokenize", reason: "bos comes first", path: "/v1/tokenize", body: `{"prompt":"x"}`,
			want: `{"tokens":[316,120],"count":2,"max_model_len":128}`,
		},
		{
			name: "detokenize batch", reason: "lists give lists", path: "/v1/detokenize", body: `{"tokens":[[120],[316,121]]}`, want: `{"text":["x","y"]}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, tc.change)
			if tc.pieces != nil {
				b.rank.script = b.say(tc.finish, tc.pieces...)
			}
			method := http.MethodGet
			if tc.body != "" {
				method = http.MethodPost
			}
			w := b.call(method, tc.path, tc.body)
			if w.Code != http.StatusOK {
				t.Fatalf("%s: status %d: %s", tc.reason, w.Code, w.Body)
			}
			if diff := cmp.Diff(lines(tc.want), indent(w.Body.String())); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestSubmitted compares the whole request that reaches the rank.
func TestSubmitted(t *testing.T) {
	seed, priority := int64(7), 3
	words, err := seededTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	text, err := words.ApplyChatTemplate([]tokenizer.Message{{Role: "user", Content: "a"}}, true, nil, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	chatPrompt := words.Encode(text, false)
	for _, tc := range []struct {
		name, reason string
		mode         rank.Mode
		path, body   string
		want         request.Request
	}{
		{
			name: "all fields", reason: "each goes where it belongs", path: "/v1/completions",
			body: `{"prompt":[1,2],"rid":"a","max_tokens":9,"min_tokens":2,"temperature":0.5,"top_p":0.25,"top_k":4,"seed":7,"stop":["x","y"],
				"stop_token_ids":[5],"ignore_eos":true,"priority":3,"log_metrics":false,"user":"unknown to us","n":1,"echo":false}`,
			want: request.Request{
				RID: "a", PromptIDs: []int32{1, 2}, Priority: &priority, ReceivedWallNanos: 1_700_000_000_000_000_000,
				Sampling: request.Sampling{MaxNewTokens: 9, MinNewTokens: 2, Temperature: 0.5, TopP: 0.25, TopK: 4, Seed: &seed, Stop: []string{"x", "y"}, StopTokenIDs: []int32{5}, IgnoreEOS: true},
			},
		},
		{
			name: "sampling", reason: "penalties, biases in the order of their tokens", path: "/v1/chat/completions",
			body: `{"messages":[{"role":"user","content":"a"}],"rid":"a","max_tokens":9,"frequency_penalty":0.5,"presence_penalty":-2,"repetition_penalty":1.25,"min_p":0.125,
				"logit_bias":{"30":-100,"4":1.5},"response_format":{"type":"json_schema","json_schema":{"name":"s","strict":true,"schema":{ "type" : "object" }}},
				"spaces_between_special_tokens":false,"extra_key":"k","cache_salt":"s","routed_dp_rank":0,"session_params":{"id":"t","rid":"before","offset":3,"replace":true,"drop_previous_output":true}}`,
			want: request.Request{
				RID: "a", PromptIDs: chatPrompt, LogMetrics: true, ReceivedWallNanos: 1_700_000_000_000_000_000,
				CacheKey: "s\x00k", DPRank: new(int),
				Grammar: &request.Grammar{Kind: request.GrammarJSONSchema, Source: `{"type":"object"}`},
				Session: &request.Turn{SessionID: "t", RID: "before", Offset: &priority, Replace: true, DropPreviousOutput: true},
				Sampling: request.Sampling{
					MaxNewTokens: 9, Temperature: 1, TopP: 1, TopK: -1, MinP: 0.125, FrequencyPenalty: 0.5, PresencePenalty: -2, RepetitionPenalty: 1.25,
					LogitBias: []request.TokenBias{{Token: 4, Bias: 1.5}, {Token: 30, Bias: -100}},
				},
			},
		},
		{
			name: "native sampling", reason: "the grammar is in sampling_params", path: "/generate",
			body: `{"input_ids":[1],"rid":"a","extra_key":["k"],"session_id":"talk","sampling_params":{"max_new_tokens":1,"regex":"a+","repetition_penalty":1}}`,
			want: request.Request{
				RID: "a", PromptIDs: []int32{1}, LogMetrics: true, ReceivedWallNanos: 1_700_000_000_000_000_000, CacheKey: "k",
				Grammar:  &request.Grammar{Kind: request.GrammarRegex, Source: "a+"},
				Sampling: request.Sampling{MaxNewTokens: 1, Temperature: 1, TopP: 1, TopK: -1},
			},
		},
		{
			name: "defaults", reason: "OpenAI's 16 tokens, temperature 1", path: "/v1/completions", body: `{"prompt":[1],"rid":"a"}`,
			want: request.Request{
				RID: "a", PromptIDs: []int32{1}, LogMetrics: true, ReceivedWallNanos: 1_700_000_000_000_000_000,
				Sampling: request.Sampling{MaxNewTokens: 16, Temperature: 1, TopP: 1, TopK: -1},
			},
		},
		{
			name: "clamped to the pool", reason: "the KV pool of 96 tokens is smaller than the context", path: "/v1/completions", body: `{"prompt":[1],"rid":"a","max_tokens":127}`,
			want: request.Request{
				RID: "a", PromptIDs: []int32{1}, LogMetrics: true, ReceivedWallNanos: 1_700_000_000_000_000_000,
				Sampling: request.Sampling{MaxNewTokens: 95, Temperature: 1, TopP: 1, TopK: -1},
			},
		},
		{
			name: "default does not fit", reason: "SGLang's 128 tokens shrink to what fits", path: "/generate", body: `{"input_ids":[1],"rid":"a","sampling_params":{"temperature":0}}`,
			want: request.Request{
				RID: "a", PromptIDs: []int32{1}, LogMetrics: true, ReceivedWallNanos: 1_700_000_000_000_000_000,
				Sampling: request.Sampling{MaxNewTokens: 95, TopP: 1, TopK: -1},
			},
		},
		{
			name: "bootstrap", reason: "where the halves meet, exact to 63 bits", mode: rank.ModeDecode, path: "/generate",
			body: `{"input_ids":[1],"rid":"a","sampling_params":{"max_new_tokens":1,"sampling_seed":7},"bootstrap_host":"h","bootstrap_port":99,"bootstrap_room":9223372036854775807}`,
			want: request.Request{
				RID: "a", PromptIDs: []int32{1}, LogMetrics: true, ReceivedWallNanos: 1_700_000_000_000_000_000,
				Bootstrap: &request.Bootstrap{Host: "h", Port: 99, Room: 9223372036854775807},
				Sampling:  request.Sampling{MaxNewTokens: 1, Temperature: 1, TopP: 1, TopK: -1, Seed: &seed},
			},
		},
		{
			name: "bootstrap ignored", reason: "a unified engine has no peer", path: "/generate", body: `{"input_ids":[1],"rid":"a","bootstrap_room":1,"sampling_params":{"max_new_tokens":1}}`,
			want: request.Request{
				RID: "a", PromptIDs: []int32{1}, LogMetrics: true, ReceivedWallNanos: 1_700_000_000_000_000_000,
				Sampling: request.Sampling{MaxNewTokens: 1, Temperature: 1, TopP: 1, TopK: -1},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.Rank.Disagg.Mode = tc.mode })
			if w := b.call(http.MethodPost, tc.path, tc.body, routingKeyHeader, "route"); w.Code != http.StatusOK {
				t.Fatalf("%s: status %d: %s", tc.reason, w.Code, w.Body)
			}
			tc.want.RoutingKey = "route"
			if diff := cmp.Diff([]*request.Request{&tc.want}, b.rank.asked()); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestRoomsOfABatch: both engines must give the sequences of one client request the same rooms.
func TestRoomsOfABatch(t *testing.T) {
	for _, tc := range []struct {
		name, rooms string
		want        []int64
	}{
		{"counted from one", "40", []int64{40, 41}},
		{"given", "[7,5]", []int64{7, 5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.Rank.Disagg.Mode = rank.ModePrefill })
			w := b.call(http.MethodPost, "/v1/completions", `{"prompt":[[1],[2]],"max_tokens":1,"bootstrap_room":`+tc.rooms+`}`)
			if w.Code != http.StatusOK {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			var got []int64
			for _, r := range b.rank.asked() {
				got = append(got, r.Bootstrap.Room)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestEvents compares every event of one request, with the clock going on by a millisecond at each reading.
func TestEvents(t *testing.T) {
	subject := metrics.Subject{Streaming: true, Custom: map[string]string{"team": "a"}}
	done := finished{subject, metrics.Finished{PromptTokens: 2, CompletionTokens: 2, CachedTokens: 1, E2ENanos: 5e6, TPOTNanos: 2e6}}
	begun, answered, ended := httpBegun{"/v1/completions", "POST"}, httpAnswered{"/v1/completions", "POST", 200}, httpEnded{"/v1/completions", "POST"}
	in, out := counted{Submitted: 1, InFlight: 1}, counted{Ended: 1, Outcome: request.OutcomeLength}
	tokenized, handed, served := timed{funcTokenize, 1e6}, timed{funcDispatch, 1e6}, timed{funcGenerate, 6e6}
	for _, tc := range []struct {
		name, reason string
		mode         rank.Mode
		body         string
		want         []any
	}{
		{
			name: "unified", reason: "TTFT, ITL and the end", body: `{"prompt":[1,2],"stream":true}`,
			want: []any{begun, in, tokenized, handed, firstToken{subject, 3e6}, answered, interToken{subject, 1e6, 1}, done, out, served, ended},
		},
		{
			name: "prefill", reason: "neither TTFT nor ITL", mode: rank.ModePrefill, body: `{"prompt":[1,2],"stream":true,"bootstrap_room":1}`,
			want: []any{begun, in, tokenized, handed, answered, done, out, served, ended},
		},
		{
			name: "uncounted", reason: "log_metrics=false", body: `{"prompt":[1,2],"stream":true,"log_metrics":false}`,
			want: []any{begun, answered, ended},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) {
				c.Rank.Disagg.Mode, c.AllowedCustomLabels = tc.mode, []string{"team"}
			})
			taken := make(chan struct{})
			b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
				s.Put(request.Output{RID: r.RID, TokenIDs: []int32{87}, PromptTokens: 2, CachedTokens: 1, CompletionTokens: 1})
				<-taken
				s.Put(request.Output{
					RID: r.RID, TokenIDs: []int32{88}, PromptTokens: 2, CachedTokens: 1, CompletionTokens: 2,
					Finish: &request.Finish{Type: request.FinishLength, Outcome: request.OutcomeLength},
				})
			}
			b.clock.SetStep(time.Millisecond)
			output := b.outputs.wait()
			go func() { <-output; close(taken) }()
			w := b.call(http.MethodPost, "/v1/completions", tc.body, "x-custom-labels", `{"team":"a","other":"b"}`)
			if w.Code != http.StatusOK {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			if diff := cmp.Diff(tc.want, b.seen.events()); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}
