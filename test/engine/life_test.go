package engine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

// stream opens a stream of a long answer and reads its first event.
func (r *replica) stream(ctx context.Context, body string) (rest *bufio.Reader, closeBody func()) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(answer.Body)
		r.t.Fatalf("status %d: %s", answer.StatusCode, data)
	}
	rest = bufio.NewReader(answer.Body)
	if _, err := rest.ReadString('\n'); err != nil {
		r.t.Fatal(err)
	}
	return rest, func() { _ = answer.Body.Close() }
}

const longAnswer = `{"prompt":"the river","max_tokens":2000,"ignore_eos":true,"stream":true}`

// TestDisconnect: a client that goes away leaves no KV and nothing running.
func TestDisconnect(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, closeBody := r.stream(ctx, longAnswer)
	r.wait("it runs", func() bool { return r.load().NumRunningReqs == 1 && r.load().NumUsedTokens > 0 })
	cancel()
	closeBody()
	r.idle()
}

// TestRankDeath: the death of the rank ends the clients' requests with an error and the engine with a named one.
func TestRankDeath(t *testing.T) {
	r := start(t)
	rest, closeBody := r.stream(t.Context(), longAnswer)
	defer closeBody()
	pid := r.rankPID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(rest)
	if err != nil {
		t.Errorf("the stream breaks instead of ending with an error: %v", err)
	}
	list := events(string(body))
	if last := list[len(list)-1]; !strings.HasPrefix(last, `{"error":{"message":"request`) || !strings.Contains(last, "signal: killed") {
		t.Errorf("the last event is %s", last)
	}
	want := fmt.Sprintf("sluice-engine: rank 0 (pid %d) ended: signal: killed", pid)
	if code := r.exit(); code == 0 || !strings.Contains(r.Log(), want) {
		t.Errorf("exit code %d, and the log lacks %q", code, want)
	}
}

// TestServeDeath: the rank does not outlive the API process.
func TestServeDeath(t *testing.T) {
	r := start(t)
	pid := r.rankPID()
	r.Signal(syscall.SIGKILL)
	r.exit()
	harness.Eventually(t, "the rank has ended", func() bool { return !alive(pid) })
}

// TestDrain: SIGTERM fails health at once, takes requests for a while, lets what runs finish, and exits 0.
func TestDrain(t *testing.T) {
	metrics := t.TempDir()
	t.Setenv("PROMETHEUS_MULTIPROC_DIR", metrics)
	r := start(t, "--enable-metrics", "--drain-accept", "1")
	rest, closeBody := r.stream(t.Context(), longAnswer)
	defer closeBody()
	pid := r.rankPID()
	r.Signal(syscall.SIGTERM)
	r.wait("health fails", func() bool { return r.status("/health") == http.StatusServiceUnavailable })
	if status, body := r.post("/v1/completions", `{"prompt":"late","max_tokens":1}`); status != http.StatusOK {
		t.Errorf("a request while routing moves away: status %d: %s", status, body)
	}
	body, err := io.ReadAll(rest)
	if err != nil {
		t.Fatal(err)
	}
	list := events(string(body))
	if len(list) < 2 || list[len(list)-1] != "[DONE]" || !strings.Contains(list[len(list)-2], `"finish_reason":"length"`) {
		t.Errorf("the running request does not finish: %s", list[max(0, len(list)-2):])
	}
	if code := r.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if alive(pid) {
		t.Errorf("the rank (pid %d) lives on", pid)
	}
	if left, _ := filepath.Glob(filepath.Join(metrics, "*")); len(left) > 0 {
		t.Errorf("files are left behind: %v", left)
	}
}

// TestDrainTimeout: what runs longer than the drain may is aborted, and the exit is still orderly.
func TestDrainTimeout(t *testing.T) {
	r := start(t, "--drain-accept", "0", "--drain-timeout", "0.2", "--context-length", "2048")
	done := make(chan string, 1)
	rest, closeBody := r.stream(t.Context(), longAnswer)
	defer closeBody()
	go func() {
		body, _ := io.ReadAll(rest)
		done <- string(body)
	}()
	r.Signal(syscall.SIGTERM)
	list := events(<-done)
	last := list[len(list)-1]
	if !strings.Contains(last, `"code":"aborted_operator"`) && last != "[DONE]" { // a fast machine finishes in time
		t.Errorf("the last event is %s", last)
	}
	if code := r.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestRefusedStarts: a replica that can't start says why, with the flag, and leaves nothing.
func TestRefusedStarts(t *testing.T) {
	taken := start(t)
	port := taken.url[strings.LastIndexByte(taken.url, ':')+1:]
	broken := t.TempDir()
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(model, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(broken, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"unknown flag", []string{"--ep-size", "2"}, "unknown flag: --ep-size"},
		{"port in use", []string{"--port", port}, "(--host and --port)"},
		{"no such model", []string{"--model-path", "/nowhere"}, "load the tokenizer of --model-path /nowhere"},
		{"no weights", []string{"--model-path", broken}, "model.safetensors"},
		{"context beyond the model's", []string{"--context-length", "1000000"}, "1000000"},
		{"bad mode", []string{"--disaggregation-mode", "both"}, "use prefill, decode or null"},
		{"open host without a secret", []string{"--disaggregation-mode", "decode", "--host", "0.0.0.0"}, "--disaggregation-secret-file is missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := launch(t, tc.flags...)
			if code := r.exit(); code != 1 || !strings.Contains(r.Log(), tc.want) {
				t.Errorf("exit code %d, want 1 and %q in\n%s", code, tc.want, r.Log())
			}
			if said := strings.Count(r.Log(), "sluice-engine: "); said != 1 {
				t.Errorf("the cause is told %d times, want once:\n%s", said, r.Log())
			}
		})
	}
}

// TestInitModel: the same flags give the same bytes, and what is there is kept unless forced.
func TestInitModel(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	make := func(flags ...string) (string, error) {
		return command(append([]string{"init-model", "--arch", "llama", "--layers", "1", "--hidden-size", "32", "--heads", "2", "--vocab-size", "300"}, flags...)...)
	}
	for _, out := range []string{first, second} {
		if text, err := make("--out", out, "--seed", "3"); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	same := func() bool {
		for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} {
			a, errA := os.ReadFile(filepath.Join(first, name))
			b, errB := os.ReadFile(filepath.Join(second, name))
			if errA != nil || errB != nil || string(a) != string(b) {
				return false
			}
		}
		return true
	}
	if !same() {
		t.Error("the same seed gives different files")
	}
	if text, err := make("--out", second, "--seed", "4"); err == nil || !strings.Contains(text, "--force") || !same() {
		t.Errorf("a model that is there: %v: %s", err, text)
	}
	if text, err := make("--out", second, "--seed", "4", "--force"); err != nil || same() {
		t.Errorf("forced: %v: %s", err, text)
	}
	third := filepath.Join(dir, "third")
	if text, err := make("--out", third, "--head-dim", "7"); err == nil || !strings.Contains(text, "head_dim is 7") {
		t.Errorf("an odd head: %v: %s", err, text)
	}
	if _, err := os.Lstat(third); err == nil {
		t.Error("a failed run leaves something that is in the way of the next")
	}
	if text, err := make("--out", filepath.Join(first, "config.json")); err == nil || !strings.Contains(text, "name a directory") {
		t.Errorf("a file: %v: %s", err, text)
	}
	if text, err := make("--out", filepath.Join(dir, "c"), "--arch", "other"); err == nil || !strings.Contains(text, "--arch") {
		t.Errorf("another architecture: %v: %s", err, text)
	}
}

// TestKilledEngineLeavesNothingForLong: the folders of an engine that was killed go with the next start, whatever its flags;
// those of one that lives stay.
func TestKilledEngineLeavesNothingForLong(t *testing.T) {
	temp := t.TempDir()
	folders := func() []string {
		found, err := filepath.Glob(filepath.Join(temp, "sluice-*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	killed := startIn(t, temp, "--enable-metrics", "--tp-size", "2")
	ranks := killed.rankPIDs()[0]
	left := folders()
	if len(left) != 1 {
		t.Fatalf("the folders %v", left)
	}
	living := startIn(t, temp, "--enable-metrics")
	killed.Signal(syscall.SIGKILL)
	killed.exit()
	harness.Eventually(t, "its ranks have ended", func() bool { return !slices.ContainsFunc(ranks, alive) })
	if now := folders(); len(now) != 2 || !slices.Contains(now, left[0]) {
		t.Fatalf("the folders %v after the kill", now)
	}
	startIn(t, temp)
	if now := folders(); len(now) != 1 || now[0] == left[0] {
		t.Errorf("the folders %v after the next start, of them %v of the killed engine", now, left)
	}
	if status := living.status("/metrics"); status != http.StatusOK {
		t.Errorf("the metrics of the living engine: status %d", status)
	}
}
