package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/engine/rank"
)

// FuzzBody: whatever comes as a body, the answer is JSON or a stream of it, no fault of the server (5xx), and nothing of
// the request is left behind.
func FuzzBody(f *testing.F) {
	paths := []string{"/v1/completions", "/v1/chat/completions", "/generate", "/v1/tokenize", "/v1/detokenize", "/abort_request"}
	for _, seed := range []string{
		`{"prompt":"Hello","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[[1,2],[3]],"rid":["a","b"],"stop":["x"],"stop_token_ids":[1],"bootstrap_room":[1,2],"bootstrap_host":"h","bootstrap_port":1}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]},{"role":"assistant","content":null,"tool_calls":[{}]}],"chat_template_kwargs":{"a":1}}`,
		`{"text":["a","b"],"sampling_params":[{"max_new_tokens":1},{"temperature":0,"sampling_seed":-1}],"stream":true,"custom_labels":{"team":"a"}}`,
		`{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":1e2},"priority":-3,"log_metrics":false}`,
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
