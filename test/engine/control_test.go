package engine

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// ask sends a request with a key.
func (r *replica) ask(method, path, body, key string) (status int, answer string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// TestAdminKey: the two keys open what is theirs.
func TestAdminKey(t *testing.T) {
	r := start(t, "--api-key", "user", "--admin-api-key", "boss")
	for _, tc := range []struct {
		method, path, body, key string
		want                    int
	}{
		{"GET", "/v1/models", "", "user", 200}, {"GET", "/v1/models", "", "boss", 401}, {"GET", "/v1/models", "", "", 401},
		{"POST", "/freeze_gc", "", "boss", 200}, {"POST", "/freeze_gc", "", "user", 401}, {"POST", "/freeze_gc", "", "", 401},
		{"POST", "/flush_cache?timeout=10", "", "boss", 200}, {"GET", "/health", "", "", 200},
		{"POST", "/v1/completions", `{"prompt":"a","max_tokens":1}`, "user", 200},
	} {
		if got, body := r.ask(tc.method, tc.path, tc.body, tc.key); got != tc.want {
			t.Errorf("%s %s with key %q: status %d, want %d: %s", tc.method, tc.path, tc.key, got, tc.want, body)
		}
	}
}

// TestPause: what runs is aborted, or goes on after the pause to the answer that it had without one; new requests wait.
func TestPause(t *testing.T) {
	r := start(t)
	const body = `{"prompt":"the river","max_tokens":40,"temperature":0,"ignore_eos":true}`
	status, want := r.post("/v1/completions", body)
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, want)
	}
	for _, mode := range []string{"abort", "retract", "in_place"} {
		rest, closeBody := r.stream(t.Context(), longAnswer)
		if status, text := r.post("/pause_generation", `{"mode":"`+mode+`"}`); status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", mode, status, text)
		}
		answered := make(chan string, 1)
		go func() {
			_, text := r.post("/v1/completions", body)
			answered <- text
		}()
		r.wait("the request waits", func() bool { return r.load().NumWaitingReqs >= 1 })
		select {
		case text := <-answered:
			t.Errorf("%s: a paused engine answers: %s", mode, text)
		default:
		}
		if status, text := r.post("/continue_generation", `{}`); status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", mode, status, text)
		}
		if got := decode[completion](t, <-answered).Choices[0].Text; got != decode[completion](t, want).Choices[0].Text {
			t.Errorf("%s: after the pause the answer is %q, before it was %s", mode, got, want)
		}
		all, err := io.ReadAll(rest)
		closeBody()
		if ended := strings.Contains(string(all), `"code":"aborted_operator"`); err != nil || ended != (mode == "abort") {
			t.Errorf("%s: aborted %t: %v", mode, ended, err)
		}
		r.idle()
	}
}

// TestProfile: the API process and the rank write profiles of their own.
func TestProfile(t *testing.T) {
	r := start(t)
	dir := t.TempDir()
	if status, text := r.post("/start_profile", `{"output_dir":"`+dir+`","profile_id":"p"}`); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	if status, text := r.post("/start_profile", `{"output_dir":"`+dir+`"}`); status != http.StatusBadRequest || !strings.Contains(text, "stop it first") {
		t.Errorf("a second recording: status %d: %s", status, text)
	}
	if status, text := r.post("/v1/completions", `{"prompt":"a","max_tokens":50}`); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	status, text := r.post("/stop_profile", ``)
	files := strings.Split(strings.TrimSpace(text), "\n")[1:]
	if status != http.StatusOK || len(files) != 4 {
		t.Fatalf("status %d: %s", status, text)
	}
	for i, want := range []string{"p-api-", "p-api-", "p-rank0-", "p-rank0-"} {
		info, err := os.Stat(files[i])
		if err != nil || info.Size() == 0 || !strings.Contains(files[i], want) {
			t.Errorf("%s: %v", files[i], err)
		}
	}
	if status, text := r.post("/stop_profile", ``); status != http.StatusBadRequest {
		t.Errorf("a second end: status %d: %s", status, text)
	}
}

// TestRequestLog: it can be turned on while the engine serves.
func TestRequestLog(t *testing.T) {
	r := start(t)
	ask := func(rid string) {
		t.Helper()
		if status, text := r.post("/v1/completions", `{"prompt":"a","max_tokens":1,"rid":"`+rid+`"}`); status != http.StatusOK {
			t.Fatalf("status %d: %s", status, text)
		}
	}
	ask("before")
	if status, text := r.post("/configure_logging", `{"log_requests":true,"log_requests_level":2}`); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	ask("after")
	r.wait("the end is in the log", func() bool { return strings.Contains(r.Log(), `msg="request ended" rid=after`) })
	if strings.Contains(r.Log(), "rid=before") {
		t.Error("a request from before is in the log")
	}
}

// TestQueueFull: beyond the queue there is 503 before the first byte, with the time to come again.
func TestQueueFull(t *testing.T) {
	r := start(t, "--max-queued-requests", "1", "--max-running-requests", "1")
	_, closeBody := r.stream(t.Context(), longAnswer)
	defer closeBody()
	answers := make(chan *http.Response, 4)
	for range cap(answers) {
		go func() {
			response, err := http.Post(r.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","max_tokens":1,"stream":true}`))
			if err != nil {
				t.Error(err)
			}
			answers <- response
		}()
	}
	for range cap(answers) - 1 {
		response := <-answers
		if response == nil {
			continue
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" || !strings.Contains(string(text), `"code":"refused"`) {
			t.Errorf("status %d, Retry-After %q: %s", response.StatusCode, response.Header.Get("Retry-After"), text)
		}
	}
	closeBody()
	if response := <-answers; response != nil {
		if response.StatusCode != http.StatusOK {
			t.Errorf("the queued request: status %d", response.StatusCode)
		}
		response.Body.Close()
	}
}

// TestRequestTimeouts: a request that runs or waits longer than it may has 504, as the last event where its stream has begun.
func TestRequestTimeouts(t *testing.T) {
	t.Run("running", func(t *testing.T) {
		r := start(t, "--request-running-timeout", "0.05")
		status, body := r.post("/v1/completions", strings.Replace(longAnswer, `"stream":true`, `"stream":false`, 1))
		if e := decode[completion](t, body).Error; status != http.StatusGatewayTimeout || e == nil || e.Code != "timeout" {
			t.Errorf("status %d: %s", status, body)
		}
		rest, closeBody := r.stream(t.Context(), longAnswer)
		defer closeBody()
		all, err := io.ReadAll(rest)
		list := events(string(all))
		if last := list[len(list)-1]; err != nil || !strings.Contains(last, `"code":"timeout"`) || !strings.Contains(last, `"retryable":true`) {
			t.Errorf("the last event is %s: %v", last, err)
		}
		r.idle()
	})
	t.Run("waiting", func(t *testing.T) {
		r := start(t, "--request-waiting-timeout", "0.05", "--max-running-requests", "1")
		_, closeBody := r.stream(t.Context(), longAnswer)
		defer closeBody()
		status, body := r.post("/v1/completions", `{"prompt":"a","max_tokens":1,"stream":true}`)
		if status != http.StatusGatewayTimeout || !strings.Contains(body, `"code":"timeout"`) {
			t.Errorf("status %d: %s", status, body)
		}
		closeBody()
		r.idle()
	})
}
