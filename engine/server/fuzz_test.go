package server

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank"
)

// FuzzBody: whatever comes as a body, the answer is JSON or a stream of it, no fault of the server (5xx), and nothing of
// the request is left behind.
func FuzzBody(f *testing.F) {
	var paths []string
	for _, route := range Reference() {
		if len(route.Body) > 0 && route.Pattern != "/start_profile" { // which would write where the fuzzer says; see FuzzProfile
			paths = append(paths, route.Pattern)
		}
	}
	for _, seed := range []string{
		`{"prompt":"Hello","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[[1,2],[3]],"rid":["a","b"],"stop":["x"],"stop_token_ids":[1],"bootstrap_room":[1,2],"bootstrap_host":"h","bootstrap_port":1}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]},{"role":"assistant","content":null,"tool_calls":[{}]}],"chat_template_kwargs":{"a":1}}`,
		`{"text":["a","b"],"sampling_params":[{"max_new_tokens":1},{"temperature":0,"sampling_seed":-1}],"stream":true,"custom_labels":{"team":"a"}}`,
		`{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":1e2},"priority":-3,"log_metrics":false}`,
		`{"prompt":["a",""],"n":2,"best_of":2,"logprobs":3,"echo":true,"seed":-1,"min_p":0.5,"logit_bias":{"1":-100},"frequency_penalty":-2,"cache_salt":["a","b"],"extra_key":"k"}`,
		`{"messages":[{"role":"user","content":"a"}],"n":3,"logprobs":true,"top_logprobs":2,"stream":true,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object"}}}}`,
		`{"input_ids":[[1,2],[3]],"return_logprob":[true,false],"logprob_start_len":[0,-1],"top_logprobs_num":2,"token_ids_logprob":[[1],null],"return_text_in_logprobs":true,"sampling_params":{"n":2,"regex":"a+"},"stream":true}`,
		`{"input_ids":[1],"session_params":{"id":"s","rid":"r","offset":0,"replace":true},"routed_dp_rank":0,"return_cached_tokens_details":true,"no_logs":true}`,
		`{"session_id":"s","capacity_of_str_len":10,"streaming":true,"timeout":0.5}`, `{"mode":"retract"}`, `{"torch_empty_cache":true}`,
		`{"log_requests":true,"log_requests_level":3}`, `{"server_args":{"enable_cache_report":true,"log_requests_level":1}}`,
		`{"tokens":[1,2],"skip_special_tokens":false}`, `{"rid":"a","abort_all":true}`, `{"prompt":"\ud800\u0000"}`, `{}`, `[]`, `"`, "",
	} {
		for path := range paths {
			for mode := range 3 {
				f.Add(uint8(path), uint8(mode), seed)
			}
		}
	}
	modes := []rank.Mode{rank.ModeUnified, rank.ModePrefill, rank.ModeDecode}
	f.Fuzz(func(t *testing.T, path, mode uint8, body string) {
		b := newBench(t, func(c *Config, _ *scriptedRank) {
			c.Rank.Disagg.Mode, c.AllowedCustomLabels = modes[int(mode)%len(modes)], []string{"team"}
		})
		r := b.call(http.MethodPost, paths[int(path)%len(paths)], body)
		if r.Code >= 500 {
			t.Fatalf("status %d: %s", r.Code, r.Body)
		}
		answer := r.Body.String()
		if !strings.HasPrefix(r.Header().Get("Content-Type"), "text/event-stream") {
			if answer != "" && !json.Valid([]byte(answer)) {
				t.Fatalf("status %d: the answer is no JSON: %q", r.Code, answer)
			}
			return
		}
		for event := range strings.SplitSeq(strings.TrimSuffix(answer, "\n\n"), "\n\n") {
			data, isData := strings.CutPrefix(event, "data: ")
			if !isData || data != "[DONE]" && !json.Valid([]byte(data)) {
				t.Fatalf("the event is no JSON: %q", event)
			}
		}
	})
}

// FuzzProfile: a recording that is accepted has a file's name that stays in its directory.
func FuzzProfile(f *testing.F) {
	for _, seed := range []string{
		`{"output_dir":"/tmp/x","profile_id":"a","profile_prefix":"b","activities":["CPU","MEM"]}`, `{"activities":"CPU"}`, `{"profile_id":"../a"}`, `{"num_steps":null}`, `{}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		b := newBench(t, nil)
		o, err := b.decode([]byte(body))
		if err != nil {
			return
		}
		options := b.readProfile(o)
		if *o.fault != nil {
			return
		}
		if !options.CPU && !options.Memory || !filepath.IsAbs(options.Dir) || profile.CheckName(options.Name) != nil || filepath.Base(options.Name) != options.Name {
			t.Errorf("%+v", options)
		}
	})
}

// FuzzHeaders: headers that clients choose reach the rank as they are or are refused.
func FuzzHeaders(f *testing.F) {
	f.Add("0", "key", `{"team":"a"}`)
	f.Add("-1", "", `{"team":1}`)
	f.Add("9223372036854775808", "\x00", "x")
	f.Fuzz(func(t *testing.T, dataRank, routingKey, labels string) {
		b := newBench(t, func(c *Config, _ *scriptedRank) { c.AllowedCustomLabels = []string{"team"} })
		r := b.call(http.MethodPost, "/v1/completions", `{"prompt":[1]}`, dataRankHeader, dataRank, routingKeyHeader, routingKey, "x-custom-labels", labels)
		switch {
		case r.Code == http.StatusOK && len(b.rank.asked()) == 1 && b.rank.asked()[0].RoutingKey == routingKey:
		case r.Code == http.StatusBadRequest && len(b.rank.asked()) == 0:
		default:
			t.Errorf("status %d: %s", r.Code, r.Body)
		}
	})
}
