package server

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// numbered answers each request with its rid's last letter.
func (b *bench) numbered(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
	b.say(length(), r.RID[len(r.RID)-1:])(r, s, aborted)
}

// TestChoices compares whole answers of several answers to a prompt.
func TestChoices(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		path, body   string
		want         string
	}{
		{
			name: "completion", reason: "a prompt counts once; answer k to prompt i is choice i*n+k", path: "/v1/completions", body: `{"prompt":[[1,2],[3]],"n":2,"rid":"a","best_of":2}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[
			{"index":0,"text":"0","logprobs":null,"finish_reason":"length","matched_stop":null},
			{"index":1,"text":"1","logprobs":null,"finish_reason":"length","matched_stop":null},
			{"index":2,"text":"2","logprobs":null,"finish_reason":"length","matched_stop":null},
			{"index":3,"text":"3","logprobs":null,"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}},
			"sglext":{"cached_tokens_details":{"device":2,"host":0}}}`,
		},
		{
			name: "echo", reason: "each answer has its prompt", path: "/v1/completions", body: `{"prompt":["p","q"],"n":2,"rid":"a","echo":true}`,
			want: `{"id":"a","object":"text_completion","created":1700000000,"model":"tiny","choices":[
			{"index":0,"text":"p0","logprobs":null,"finish_reason":"length","matched_stop":null},
			{"index":1,"text":"p1","logprobs":null,"finish_reason":"length","matched_stop":null},
			{"index":2,"text":"q2","logprobs":null,"finish_reason":"length","matched_stop":null},
			{"index":3,"text":"q3","logprobs":null,"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":4,"completion_tokens":4,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":2}},
			"sglext":{"cached_tokens_details":{"device":2,"host":0}}}`,
		},
		{
			name: "chat", reason: "one message each", path: "/v1/chat/completions", body: `{"messages":[{"role":"user","content":"Hi"}],"n":2,"rid":"a"}`,
			want: `{"id":"a","object":"chat.completion","created":1700000000,"model":"tiny","choices":[
			{"index":0,"message":{"role":"assistant","content":"0"},"logprobs":null,"finish_reason":"length","matched_stop":null},
			{"index":1,"message":{"role":"assistant","content":"1"},"logprobs":null,"finish_reason":"length","matched_stop":null}],
			"usage":{"prompt_tokens":19,"completion_tokens":2,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":1}},
			"sglext":{"cached_tokens_details":{"device":1,"host":0}}}`,
		},
		{
			name: "generate", reason: "a list, also for one prompt", path: "/generate", body: `{"input_ids":[1],"sampling_params":{"n":2},"rid":"a"}`,
			want: `[{"text":"0","output_ids":[48],"meta_info":{"id":"a_0","finish_reason":{"type":"length","length":1},"prompt_tokens":1,"completion_tokens":1,"reasoning_tokens":0,"cached_tokens":1,
			"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"e2e_latency":0}},
			{"text":"1","output_ids":[49],"meta_info":{"id":"a_1","finish_reason":{"type":"length","length":1},"prompt_tokens":1,"completion_tokens":1,"reasoning_tokens":0,"cached_tokens":1,
			"cached_tokens_details":{"device":1,"host":0},"num_retractions":2,"weight_version":"default","dp_rank":null,"e2e_latency":0}}]`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.EnableCacheReport = true })
			b.rank.script = b.numbered
			body := tc.body
			if tc.path != "/generate" {
				body = strings.TrimSuffix(body, "}") + `,"return_cached_tokens_details":true}`
			}
			w := b.call(http.MethodPost, tc.path, body)
			if w.Code != http.StatusOK {
				t.Fatalf("%s: status %d: %s", tc.reason, w.Code, w.Body)
			}
			if diff := cmp.Diff(lines(tc.want), indent(w.Body.String())); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestChoiceStreams: the pieces of each answer come in order under its index, the role of each chat message first.
func TestChoiceStreams(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/completions":      `{"prompt":[1],"n":2,"rid":"a","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"Hi"}],"n":2,"rid":"a","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
		"/generate":            `{"input_ids":[1],"sampling_params":{"n":2},"rid":"a","stream":true}`,
	} {
		b := newBench(t, nil)
		b.rank.script = b.numbered
		r := b.call(http.MethodPost, path, body)
		texts := map[string][]string{}
		for line := range strings.Lines(indent(r.Body.String())) {
			for _, index := range []string{"0", "1"} {
				if strings.Contains(line, `"index":`+index) {
					texts[index] = append(texts[index], line)
				}
			}
		}
		chunks := map[string]int{"/v1/completions": 1, "/v1/chat/completions": 3, "/generate": 1}[path]
		if len(texts["0"]) != chunks || len(texts["1"]) != chunks || !strings.HasSuffix(r.Body.String(), "data: [DONE]\n\n") {
			t.Errorf("%s: want %d chunks of each answer:\n%s", path, chunks, r.Body)
			continue
		}
		for index, list := range texts {
			all := strings.Join(list, "")
			if !strings.Contains(all, `"`+index+`"`) {
				t.Errorf("%s: answer %s has another's text:\n%s", path, index, all)
			}
			if strings.Contains(path, "chat") && !strings.Contains(list[0], `"role":"assistant"`) {
				t.Errorf("the role is not first:\n%s", all)
			}
			if path != "/generate" && !strings.Contains(all, `"completion_tokens":1,`) {
				t.Errorf("%s: the usage of a chunk is not its answer's:\n%s", path, all)
			}
		}
		if path != "/generate" && !strings.Contains(r.Body.String(), `"choices":[],"usage":{"prompt_tokens":`) {
			t.Errorf("%s: no usage at the end:\n%s", path, r.Body)
		}
	}
}

// TestIdentities: rids, seeds and rooms of all sequences.
func TestIdentities(t *testing.T) {
	type sequence struct {
		RID  string
		Seed int64
		Room int64
	}
	for _, tc := range []struct {
		name, reason string
		path, body   string
		want         []sequence
	}{
		{"one", "its rid is the request's", "/v1/completions", `{"prompt":[1],"rid":"a","seed":5,"bootstrap_room":9}`, []sequence{{"a", 5, 9}}},
		{"two answers", "a seed counts up", "/v1/completions", `{"prompt":[1],"rid":"a","seed":5,"n":2,"bootstrap_room":9}`, []sequence{{"a_0", 5, 9}, {"a_1", 6, 10}}},
		{"two prompts", "each has the same seeds", "/v1/completions", `{"prompt":[[1],[2]],"rid":"a","seed":5,"n":2,"bootstrap_room":9}`,
			[]sequence{{"a_0", 5, 9}, {"a_1", 6, 10}, {"a_2", 5, 11}, {"a_3", 6, 12}}},
		{"a rid each", "an answer's follows from its prompt's", "/v1/completions", `{"prompt":[[1],[2]],"rid":["a","b"],"seed":9223372036854775807,"n":2,"bootstrap_room":[7,8]}`,
			[]sequence{{"a_0", 1<<63 - 1, 7}, {"a_1", -1 << 63, (7 + roomStride) & (1<<63 - 1)}, {"b_0", 1<<63 - 1, 8}, {"b_1", -1 << 63, (8 + roomStride) & (1<<63 - 1)}}},
		{"a list of one", "it is the only prompt's", "/generate", `{"input_ids":[[1]],"rid":["a"],"sampling_params":[{"n":2,"sampling_seed":1}],"bootstrap_room":[7]}`,
			[]sequence{{"a_0", 1, 7}, {"a_1", 2, 8}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.Rank.Disagg.Mode = rank.ModePrefill })
			if w := b.call(http.MethodPost, tc.path, tc.body); w.Code != http.StatusOK {
				t.Fatalf("%s: status %d: %s", tc.reason, w.Code, w.Body)
			}
			var got []sequence
			for _, r := range b.rank.asked() {
				got = append(got, sequence{r.RID, *r.Sampling.Seed, r.Bootstrap.Room})
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestAbortByAnswerID: the id of an answer, which the client sees, aborts all sequences of its request.
func TestAbortByAnswerID(t *testing.T) {
	b := newBench(t, nil)
	b.rank.script = b.waitForAbort("x")
	answered := make(chan int)
	go func() { answered <- b.call(http.MethodPost, "/v1/completions", `{"prompt":[1],"n":3}`).Code }()
	eventually(t, "all sequences are at the rank", func() bool { return len(b.rank.asked()) == 3 })
	rids := map[string]bool{}
	for i, r := range b.rank.asked() {
		base, number, _ := strings.Cut(r.RID, "_")
		rids[base] = true
		if number != fmt.Sprint(i) {
			t.Errorf("sequence %d has rid %s", i, r.RID)
		}
	}
	if len(rids) != 1 {
		t.Fatalf("the rids have no common begin: %v", rids)
	}
	base := slices.Collect(maps.Keys(rids))[0]
	if r := b.call(http.MethodPost, "/abort_request", `{"rid":"`+base+`"}`); r.Code != http.StatusOK {
		t.Fatalf("status %d: %s", r.Code, r.Body)
	}
	if got := <-answered; got != http.StatusServiceUnavailable {
		t.Errorf("status %d", got)
	}
}
