//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/hack/trial"
)

// checkHostile sends what nobody should and asks after each whether a good request still works.
func checkHostile(t *testing.T, ns string) {
	base := reach(t, ns, "chat")
	pods, err := cluster.EnginePods(t.Context(), ns, "chat", "")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, reason, body string
		status             int
		says               string // must be in the error's message or param
	}{
		{name: "malformed", reason: "no JSON", body: `{"model": "tiny", "prompt": `, status: 400, says: "JSON"},
		{name: "unknown model", reason: "a model that is not served", body: `{"model": "other", "prompt": "a", "max_tokens": 2}`, status: 404, says: "model"},
		{name: "negative max_tokens", reason: "a field out of range", body: `{"model": "tiny", "prompt": "a", "max_tokens": -1}`, status: 400, says: "max_tokens"},
		{name: "wrong type", reason: "a field of another type", body: `{"model": "tiny", "prompt": "a", "max_tokens": "many"}`, status: 400, says: "max_tokens"},
		{name: "temperature", reason: "a field out of range", body: `{"model": "tiny", "prompt": "a", "temperature": -3}`, status: 400, says: "temperature"},
		{name: "too long", reason: "a prompt longer than the pool", body: fmt.Sprintf(`{"model": "tiny", "prompt": %q, "max_tokens": 2}`, strings.Repeat("zq ", 200_000)), status: 400, says: "token"},
		{name: "huge body", reason: "ten megabytes", body: fmt.Sprintf(`{"model": "tiny", "prompt": %q}`, strings.Repeat("a", 10<<20)), status: 413, says: "body"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body := post(t, base+"/v1/completions", tt.body)
			var answer struct {
				Object  string `json:"object"`
				Message string `json:"message"`
				Param   string `json:"param"`
				Type    string `json:"type"`
				Code    any    `json:"code"`
			}
			if err := json.Unmarshal(body, &answer); err != nil {
				t.Fatalf("%s: the answer is not JSON: %.200s", tt.reason, body)
			}
			if status != tt.status || answer.Object != "error" || answer.Type == "" || !strings.Contains(answer.Message+" "+answer.Param, tt.says) {
				t.Errorf("%s: status %d, answer %.300s; want status %d, an error that says %q", tt.reason, status, body, tt.status, tt.says)
			}
			good(t, base)
		})
	}
	t.Run("dropped connection", func(t *testing.T) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		body := `{"model":"tiny","prompt":"drop","max_tokens":2000,"ignore_eos":true,"stream":true}`
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		if _, err := conn.Read(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		until(t, 30*time.Second, "the engines to let the request go", func(ctx context.Context) (string, bool, error) {
			expositions, err := cluster.Scrape(ctx, ns, "chat")
			if err != nil {
				return "", false, err
			}
			for _, e := range expositions {
				running, ok := e.Gauge("num_running_reqs", "0")
				used, ok2 := e.Gauge("kv_used_tokens", "0")
				if !ok || !ok2 || running != 0 || used != 0 {
					return fmt.Sprintf("%s: %v running, %v tokens used", e.Source, running, used), false, nil
				}
			}
			return "", true, nil
		})
		good(t, base)
	})
	after, err := cluster.EnginePods(t.Context(), ns, "chat", "")
	if err != nil {
		t.Fatal(err)
	}
	restarts := 0
	for _, pod := range after {
		for _, status := range pod.Status.ContainerStatuses {
			restarts += int(status.RestartCount)
		}
	}
	if restarts > 0 || len(after) != len(pods) || after[0].UID != pods[0].UID {
		t.Errorf("%d restarts, %d pods; want none and the same pods as before", restarts, len(after))
	}
}

func post(t *testing.T, url, body string) (int, []byte) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text
}

func good(t *testing.T, base string) {
	t.Helper()
	text, err := trial.Complete(t.Context(), base, trial.Completion{Model: "tiny", Prompt: "still here", MaxTokens: 4, IgnoreEOS: true}, nil)
	if err != nil || text == "" {
		t.Fatalf("a good request afterwards: %q, %v", text, err)
	}
}

// TestBadFieldsAreRefused applies services with one wrong field each. The API server must refuse them with a message that
// names the field and says what to write instead.
func TestBadFieldsAreRefused(t *testing.T) {
	ns := "e2e-refused"
	if err := cluster.EnsureNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.RemoveNamespace(context.Background(), ns); err != nil {
			t.Error(err)
		}
	})
	tests := []struct {
		name, old, new string // the change to the good manifest
		says           []string
	}{
		{name: "uri", old: "pvc://models/tiny", new: "http://models/tiny", says: []string{"uri", "pvc://"}},
		{name: "role", old: "role: Decode", new: "role: Decoder", says: []string{"role", "Decode"}},
		{name: "no decode pool", old: "role: Decode", new: "role: Prefill", says: []string{"pools", "Decode"}},
		{name: "pool name", old: "name: decode", new: "name: Decode", says: []string{"name", "lower-case"}},
		{name: "negative replicas", old: "role: Decode", new: "role: Decode\n    replicas: -1", says: []string{"replicas", "greater than or equal to 0"}},
		{name: "bounds", old: "maxReplicas: 3", new: "maxReplicas: 0", says: []string{"maxReplicas"}},
		{name: "target", old: `target: "0.6"`, new: `target: "0"`, says: []string{"target", "0.8"}},
		{name: "prefill utilization", old: "role: Decode", new: "role: Prefill", says: []string{"Prefill"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			manifest := strings.Replace(scaled, tt.old, tt.new, 1)
			if manifest == scaled {
				t.Fatalf("%q is not in the manifest", tt.old)
			}
			err := cluster.Apply(t.Context(), ns, manifest)
			if err == nil {
				t.Fatal("the API server took it")
			}
			for _, word := range tt.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the refusal does not say %q: %v", word, err)
				}
			}
		})
	}
}
