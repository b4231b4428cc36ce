package bench

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBody(t *testing.T) {
	warm, high := 0.5, 10
	r := Request{OutputTokens: 7, Priority: &high, Seed: 5 << 33}
	tests := []struct {
		name, reason string
		target       Target
		prompt       Prompt
		want         string
	}{
		{
			name: "completion", reason: "usage is asked for in a stream",
			target: Target{API: Completions, Model: "m", Stream: true, IgnoreEOS: true}, prompt: Prompt{Text: "Hi"},
			want: `{"model":"m","prompt":"Hi","stream":true,"stream_options":{"include_usage":true},"max_tokens":7,"ignore_eos":true,"priority":10}`,
		},
		{
			name: "whole", reason: "a whole answer has usage anyway, and OpenAI itself knows no ignore_eos",
			target: Target{API: Completions, Model: "m"}, prompt: Prompt{IDs: []int32{4, 5}},
			want: `{"model":"m","prompt":[4,5],"stream":false,"max_tokens":7,"priority":10}`,
		},
		{
			name: "chat", reason: "a made prompt is one message of the user",
			target: Target{API: Chat, Stream: true, ContinuousUsage: true, Temperature: &warm, SeedSent: true}, prompt: Prompt{Text: "Hi"},
			want: `{"messages":[{"role":"user","content":"Hi"}],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"max_tokens":7,"temperature":0.5,"seed":5,"priority":10}`,
		},
		{
			name: "messages", reason: "messages of a file are sent as they are",
			target: Target{API: Chat}, prompt: Prompt{Messages: json.RawMessage(`[{"role":"system","content":"S"}]`)},
			want: `{"messages":[{"role":"system","content":"S"}],"stream":false,"max_tokens":7,"priority":10}`,
		},
		{
			name: "generate", reason: "the native interface has its sampling apart and takes no model",
			target: Target{API: Generate, Model: "m", Stream: true, IgnoreEOS: true, SeedSent: true}, prompt: Prompt{IDs: []int32{4}},
			want: `{"input_ids":[4],"stream":true,"sampling_params":{"max_new_tokens":7,"ignore_eos":true,"sampling_seed":5},"priority":10}`,
		},
		{
			name: "extra", reason: "the user's own fields win",
			target: Target{API: Generate, Extra: map[string]json.RawMessage{"priority": json.RawMessage("1"), "log_metrics": json.RawMessage("false")}}, prompt: Prompt{Text: "Hi"},
			want: `{"text":"Hi","stream":false,"sampling_params":{"max_new_tokens":7},"priority":1,"log_metrics":false}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body, err := tt.target.body(r, tt.prompt)
			if err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestParseURL(t *testing.T) {
	for text, want := range map[string]string{
		"http://a:1":         "http://a:1",
		"http://a:1/":        "http://a:1",
		"http://a:1/v1":      "http://a:1",
		"http://a:1/v1/":     "http://a:1",
		"https://a/proxy/v1": "https://a/proxy",
		"localhost:30000":    "http://localhost:30000",
		"ftp://a":            "error: give http or https",
		"http://":            "error: names no host",
		"http://a?x=1":       "error: query",
		"http://a b":         "error: is no URL",
	} {
		got, err := ParseURL(text)
		if message, fails := strings.CutPrefix(want, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%q: error %v, want one with %q", text, err, message)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestParseHeader(t *testing.T) {
	for text, want := range map[string][2]string{
		"X-A: b":           {"X-A", "b"},
		"X-A=b:c":          {"X-A", "b:c"},
		"X-A: k=v":         {"X-A", "k=v"},
		"X-Empty:":         {"X-Empty", ""},
		"no":               {},
		": b":              {},
		"X A: b":           {},
		"X-A: b\r\nEvil:1": {},
	} {
		name, value, err := ParseHeader(text)
		if (err == nil) != (want[0] != "") || name != want[0] && err == nil || value != want[1] && err == nil {
			t.Errorf("%q: %q, %q, %v", text, name, value, err)
		}
	}
}

func TestAccepts(t *testing.T) {
	if err := (&Target{API: Completions}).Accepts(Prompt{Messages: []byte("[]")}); err == nil {
		t.Error("completions take messages")
	}
	if err := (&Target{API: Chat}).Accepts(Prompt{IDs: []int32{1}}); err == nil {
		t.Error("chat takes token ids")
	}
	if err := (&Target{API: Chat}).Accepts(Prompt{Text: "a"}); err != nil {
		t.Errorf("chat takes no text: %v", err)
	}
}
