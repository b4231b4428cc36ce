package engine

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestHostile: each input is refused with the field's name, and a good request after it still works.
func TestHostile(t *testing.T) {
	r := start(t)
	for _, tc := range []struct {
		name, path, body string
		status           int
		param, code      string
	}{
		{"malformed JSON", "/v1/completions", `{"prompt": "a"`, 400, "", "invalid_json"},
		{"binary", "/v1/completions", "\x00\xff\xfe", 400, "", "invalid_json"},
		{"deep nesting", "/v1/completions", `{"prompt":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + "}", 400, "", "invalid_json"},
		{"unknown model", "/v1/chat/completions", `{"model":"gpt-9","messages":[{"role":"user","content":"a"}]}`, 404, "model", "model_not_found"},
		{"prompt longer than the pool", "/v1/completions", fmt.Sprintf(`{"prompt":%q}`, strings.Repeat("water ", 5000)), 400, "prompt", "context_length_exceeded"},
		{"one huge word", "/v1/completions", fmt.Sprintf(`{"prompt":%q}`, strings.Repeat("a", 1<<20)), 400, "prompt", "context_length_exceeded"},
		{"many runes", "/v1/completions", fmt.Sprintf(`{"prompt":%q}`, strings.Repeat("水", 1<<18)), 400, "prompt", "context_length_exceeded"},
		{"spaces", "/v1/completions", fmt.Sprintf(`{"prompt":%q}`, strings.Repeat(" ", 1<<20)), 400, "prompt", "context_length_exceeded"},
		{"negative max_tokens", "/v1/completions", `{"prompt":"a","max_tokens":-5}`, 400, "max_tokens", ""},
		{"huge max_tokens", "/v1/completions", `{"prompt":"a","max_tokens":99999999}`, 400, "max_tokens", "context_length_exceeded"},
		{"token out of the vocabulary", "/generate", `{"input_ids":[999999]}`, 400, "input_ids[0]", ""},
		{"10 MB body", "/v1/completions", `{"prompt":"` + strings.Repeat("a", 10<<20) + `"}`, 413, "", "body_too_large"},
		{"template injection", "/v1/chat/completions", `{"messages":[{"role":"user","content":"{% include 'x' %}{{ 1/0 }}"}],"max_tokens":1}`, 200, "", ""},
		{"unknown role", "/v1/chat/completions", `{"messages":[{"role":"{{ 1/0 }}","content":"a"}],"max_tokens":1}`, 400, "messages[0].role", ""},
		{"template arguments", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"messages":5},"max_tokens":1}`, 200, "", ""},
		{"unknown fields", "/v1/completions", `{"prompt":"a","max_tokens":1,"unknown":{"a":[1]},"user":"x"}`, 200, "", ""},
		{"surrogate halves", "/v1/completions", `{"prompt":"\ud800","max_tokens":1}`, 200, "", ""},
		{"special tokens in text", "/v1/completions", `{"prompt":"<|end_of_text|><|begin_of_text|>","max_tokens":1}`, 200, "", ""},
		{"unknown route", "/v1/nope", `{}`, 404, "", "not_found"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := r.post(tc.path, tc.body)
			if status != tc.status {
				t.Fatalf("status %d, want %d: %.500s", status, tc.status, body)
			}
			if status != http.StatusOK {
				if got := decode[completion](t, body).Error; got == nil || got.Param != tc.param || got.Code != tc.code || got.Message == "" {
					t.Errorf("the error is %+v, want param %q and code %q", got, tc.param, tc.code)
				}
			}
			if status, body := r.post("/v1/completions", `{"prompt":"good","max_tokens":2}`); status != http.StatusOK {
				t.Errorf("a good request after it: status %d: %s", status, body)
			}
		})
	}
	r.idle()
}

// TestBrokenConnections: half a request, a body that never comes whole, a client that never reads.
func TestBrokenConnections(t *testing.T) {
	r := start(t)
	address := strings.TrimPrefix(r.url, "http://")
	for _, text := range []string{
		"", "POST /v1/comp", "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "\x16\x03\x01\x02\x00\x01\x00",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := net.Dial("tcp", address) // it asks for a stream and leaves after the header
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(longAnswer), longAnswer); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q: %v", line, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	r.idle()
	if status, body := r.post("/v1/completions", `{"prompt":"good","max_tokens":2}`); status != http.StatusOK {
		t.Errorf("a good request after it: status %d: %s", status, body)
	}
}
