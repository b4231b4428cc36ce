package server

import (
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestLogprobAnswers compares whole bodies. Tokens are bytes: "x" is 120, "é" is 195 and 169. The script's logprob of token t
// is -t/8; of the likeliest, which are t, t+1, … , -1, -2, …; of an asked one minus its id.
func TestLogprobAnswers(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		pieces       []string
		finish       request.Finish
		path, body   string
		want         string
	}{
		{
			name: "completion", reason: "the token is among the likeliest; 0 asks for none of them", pieces: []string{"xy"}, finish: length(),
			path: "/v1/completions", body: `{"prompt":[1],"rid":"a","logprobs":0}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"xy","logprobs":{"text_offset":[0,1],
			"token_logprobs":[-15,-15.125],"tokens":["x","y"],"top_logprobs":[]},"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"prompt_tokens_details":null}}`,
		},
		{
			name: "completion of half runes", reason: "a part of a rune has a name of its own and begins where the rune does", pieces: []string{"éz"}, finish: length(),
			path: "/v1/completions", body: `{"prompt":[1],"rid":"a","logprobs":1}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"éz","logprobs":{"text_offset":[0,0,1],
			"token_logprobs":[-24.375,-21.125,-15.25],"tokens":["bytes:\\xc3","bytes:\\xa9","z"],
			"top_logprobs":[{"bytes:\\xc3":-1},{"bytes:\\xa9":-1},{"z":-1}]},"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4,"prompt_tokens_details":null}}`,
		},
		{
			name: "echo", reason: "the prompt goes before the text, and its tokens before the answer's", pieces: []string{"x"}, finish: length(),
			path: "/v1/completions", body: `{"prompt":[104,105],"rid":"a","logprobs":2,"echo":true}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"hix","logprobs":{"text_offset":[0,1,2],
			"token_logprobs":[null,-13.125,-15],"tokens":["h","i","x"],"top_logprobs":[null,{"i":-1,"j":-2},{"x":-1,"y":-2}]},"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3,"prompt_tokens_details":null}}`,
		},
		{
			name: "echo of one token", reason: "it has no logprob", pieces: []string{"x"}, finish: length(),
			path: "/v1/completions", body: `{"prompt":[104],"rid":"a","logprobs":0,"echo":true}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"hx","logprobs":{"text_offset":[0,1],
			"token_logprobs":[null,-15],"tokens":["h","x"],"top_logprobs":[]},"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,"prompt_tokens_details":null}}`,
		},
		{
			name: "echo of a text", reason: "as it was sent, without logprobs", pieces: []string{"x"}, finish: length(),
			path: "/v1/completions", body: `{"prompt":"hi ","rid":"a","echo":true}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"hi x","logprobs":null,"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":4,"completion_tokens":1,"total_tokens":5,"prompt_tokens_details":null}}`,
		},
		{
			name: "echo stream", reason: "the prompt comes with the first piece alone", pieces: []string{"x", "y"}, finish: length(),
			path: "/v1/completions", body: `{"prompt":[104,105],"rid":"a","logprobs":0,"echo":true,"stream":true}`,
			want: `data: {"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"hix","logprobs":{"text_offset":[0,1,2],"token_logprobs":[null,-13.125,-15],"tokens":["h","i","x"],"top_logprobs":[]},"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"y","logprobs":{"text_offset":[3],"token_logprobs":[-15.125],"tokens":["y"],"top_logprobs":[]},"finish_reason":"length","matched_stop":null}],"usage":null}

data: [DONE]`,
		},
		{
			name: "stream with held text", reason: "logprobs don't wait for the text that a stop string holds back", pieces: []string{"E", "N", "D"},
			finish: request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop, MatchedStop: "END"},
			path:   "/v1/completions", body: `{"prompt":[1],"rid":"a","logprobs":0,"stream":true,"stop":"END"}`,
			want: `data: {"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"","logprobs":{"text_offset":[0],"token_logprobs":[-8.625],"tokens":["E"],"top_logprobs":[]},"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"","logprobs":{"text_offset":[1],"token_logprobs":[-9.75],"tokens":["N"],"top_logprobs":[]},"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"","logprobs":{"text_offset":[2],"token_logprobs":[-8.5],"tokens":["D"],"top_logprobs":[]},"finish_reason":"stop","matched_stop":"END"}],"usage":null}

data: [DONE]`,
		},
		{
			name: "chat", reason: "exact bytes, also of half runes", pieces: []string{"é"}, finish: length(),
			path: "/v1/chat/completions", body: `{"messages":[{"role":"user","content":"Hi"}],"rid":"a","logprobs":true,"top_logprobs":1}`,
			want: `{"id":"a","object":"chat.completion","created":1700000000,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"é"},"logprobs":{"content":[
			{"token":"\\xc3","bytes":[195],"logprob":-24.375,"top_logprobs":[{"token":"\\xc3","bytes":[195],"logprob":-1}]},
			{"token":"\\xa9","bytes":[169],"logprob":-21.125,"top_logprobs":[{"token":"\\xa9","bytes":[169],"logprob":-1}]}],"refusal":null},
			"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":19,"completion_tokens":2,"total_tokens":21,"prompt_tokens_details":null}}`,
		},
		{
			name: "chat stream", reason: "each token's with the token", pieces: []string{"x"}, finish: length(),
			path: "/v1/chat/completions", body: `{"messages":[{"role":"user","content":"Hi"}],"rid":"a","logprobs":true,"stream":true}`,
			want: `data: {"id":"a","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"a","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"token":"x","bytes":[120],"logprob":-15,"top_logprobs":[]}],"refusal":null},"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"a","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}

data: [DONE]`,
		},
		{
			name: "generate", reason: "the answer's tokens alone by default, without their text", pieces: []string{"x"}, finish: length(),
			path: "/generate", body: `{"input_ids":[1,2],"rid":"a","return_logprob":true}`,
			want: `{"text":"x","output_ids":[120],"meta_info":{"id":"a","finish_reason":{"type":"length","length":1},"prompt_tokens":2,"completion_tokens":1,"reasoning_tokens":0,"cached_tokens":1,
			"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"e2e_latency":0,
			"input_token_logprobs":[],"output_token_logprobs":[[-15,120,null]],"output_token_logprobs_length":1}}`,
		},
		{
			name: "generate with all", reason: "the prompt from a position on, the likeliest, the asked, and texts", pieces: []string{"x"}, finish: length(),
			path: "/generate", body: `{"input_ids":[[7,104,105]],"rid":"a","return_logprob":[true],"logprob_start_len":1,"top_logprobs_num":2,"token_ids_logprob":[65],"return_text_in_logprobs":true}`,
			want: `[{"text":"x","output_ids":[120],"meta_info":{"id":"a","finish_reason":{"type":"length","length":1},"prompt_tokens":3,"completion_tokens":1,"reasoning_tokens":0,"cached_tokens":1,
			"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"e2e_latency":0,
			"input_token_logprobs":[[null,104,"h"],[-13.125,105,"i"]],"output_token_logprobs":[[-15,120,"x"]],"output_token_logprobs_length":1,
			"input_top_logprobs":[null,[[-1,105,"i"],[-2,106,"j"]]],"output_top_logprobs":[[[-1,120,"x"],[-2,121,"y"]]],
			"input_token_ids_logprobs":[null,[[-65,65,"A"]]],"output_token_ids_logprobs":[[[-65,65,"A"]]]}}]`,
		},
		{
			name: "generate stream", reason: "chunks repeat what came before", pieces: []string{"x", "y"}, finish: length(),
			path: "/generate", body: `{"input_ids":[1],"rid":"a","return_logprob":true,"stream":true}`,
			want: `data: {"text":"x","output_ids":[120],"meta_info":{"id":"a","finish_reason":null,"prompt_tokens":1,"completion_tokens":1,"reasoning_tokens":0,"cached_tokens":1,"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"input_token_logprobs":[],"output_token_logprobs":[[-15,120,null]],"output_token_logprobs_length":1}}

data: {"text":"xy","output_ids":[120,121],"meta_info":{"id":"a","finish_reason":{"type":"length","length":2},"prompt_tokens":1,"completion_tokens":2,"reasoning_tokens":0,"cached_tokens":1,"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"e2e_latency":0,"input_token_logprobs":[],"output_token_logprobs":[[-15,120,null],[-15.125,121,null]],"output_token_logprobs_length":2}}

data: [DONE]`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			b.rank.script = b.say(tc.finish, tc.pieces...)
			w := b.call(http.MethodPost, tc.path, tc.body)
			if w.Code != http.StatusOK {
				t.Fatalf("%s: status %d: %s", tc.reason, w.Code, w.Body)
			}
			if diff := cmp.Diff(lines(tc.want), indent(w.Body.String())); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestTextOffsets: "€" is three tokens of a byte each; a broken one is a replacement rune of its own.
func TestTextOffsets(t *testing.T) {
	words, err := seededTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[byte]int32{}
	for id := range int32(words.VocabSize()) {
		if piece := words.Piece(id); len(piece) == 1 {
			ids[piece[0]] = id
		}
	}
	for text, want := range map[string][]int{
		"a\xe2\x82\xacb": {0, 1, 1, 1, 2}, "\xe2a": {0, 1}, "\xe2\x82a": {0, 0, 1}, "\xe2\xe2\x82\xac": {0, 1, 1, 1}, "\xe0\x80a": {0, 1, 2}, "\xffa": {0, 1},
	} {
		offsets := newTextOffsets(words, true)
		var got []int
		for _, b := range []byte(text) {
			got = append(got, offsets.next(ids[b]))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got)\n%s", text, diff)
		}
	}
}

// TestWantedLogprobs: what the rank is asked for.
func TestWantedLogprobs(t *testing.T) {
	for _, tc := range []struct {
		name, path, body string
		want             *request.WantLogprobs
	}{
		{"none", "/v1/completions", `{"prompt":[1,2]}`, nil},
		{"completion", "/v1/completions", `{"prompt":[1,2],"logprobs":5}`, &request.WantLogprobs{Top: 5}},
		{"echo alone", "/v1/completions", `{"prompt":[1,2],"echo":true}`, nil},
		{"echo", "/v1/completions", `{"prompt":[1,2],"logprobs":0,"echo":true}`, &request.WantLogprobs{PromptFrom: 1}},
		{"echo of one token", "/v1/completions", `{"prompt":[1],"logprobs":0,"echo":true}`, &request.WantLogprobs{}},
		{"chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":3}`, &request.WantLogprobs{Top: 3}},
		{"generate from the begin", "/generate", `{"input_ids":[1,2,3],"return_logprob":true,"logprob_start_len":0}`, &request.WantLogprobs{PromptFrom: 1}},
		{"generate of the last token", "/generate", `{"input_ids":[1,2,3],"return_logprob":true,"logprob_start_len":2}`, &request.WantLogprobs{}},
		{"generate of no prompt", "/generate", `{"input_ids":[1,2,3],"return_logprob":true,"logprob_start_len":3,"token_ids_logprob":[4,2]}`, &request.WantLogprobs{TokenIDs: []int32{4, 2}}},
		{"generate off", "/generate", `{"input_ids":[1,2,3],"return_logprob":false,"top_logprobs_num":3}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			if w := b.call(http.MethodPost, tc.path, tc.body); w.Code != http.StatusOK {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			if diff := cmp.Diff(tc.want, b.rank.asked()[0].Logprobs); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestPromptLogprobsOfPairs: both engines take what can be handed over with the first token and refuse more.
func TestPromptLogprobsOfPairs(t *testing.T) {
	for _, mode := range []rank.Mode{rank.ModePrefill, rank.ModeDecode} {
		b := newBench(t, func(c *Config, r *scriptedRank) {
			c.Rank.Disagg.Mode, c.MaxBodyBytes = mode, 1<<20
			r.info.ContextLength, r.info.MaxTotalNumTokens = 1<<20, 1<<20
		})
		const pair = `"bootstrap_room":1,"bootstrap_host":"h"}`
		if r := b.call(http.MethodPost, "/v1/completions", `{"prompt":[1,2],"logprobs":0,"echo":true,`+pair); r.Code != http.StatusOK {
			t.Errorf("%s: status %d: %s", mode, r.Code, r.Body)
		}
		if diff := cmp.Diff(&request.WantLogprobs{PromptFrom: 1}, b.rank.asked()[0].Logprobs); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", mode, diff)
		}
		prompt := strings.TrimSuffix(strings.Repeat("1,", 40_000), ",")
		r := b.call(http.MethodPost, "/generate", `{"input_ids":[`+prompt+`],"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":256,`+pair)
		want := refused{400, "logprob_start_len", "", "logprob_start_len wants logprobs of 40000 positions with 256 further tokens each, 82400036 bytes, " +
			"but a prefill engine can hand over 67108864: ask for fewer"}
		if diff := cmp.Diff(want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", mode, diff)
		}
	}
}

// TestLogprobNumbers: JSON has no infinity.
func TestLogprobNumbers(t *testing.T) {
	for value, want := range map[float32]float32{-0.5: -0.5, float32(math.Inf(-1)): leastLogprob, -1e30: leastLogprob, float32(math.NaN()): leastLogprob} {
		if got := logprob(value); got != want {
			t.Errorf("%v is written %v, want %v", value, got, want)
		}
	}
}
