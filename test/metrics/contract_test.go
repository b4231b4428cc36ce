package metrics

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/engine/metrics/contract"
	"github.com/sluice-dev/sluice/test/harness"
)

// groups are those that the engines must fill.
var groups = []string{
	"basics", "kv-pool", "radix", "retract", "pd", "utilization", "request-latency", "tokenizer", "http", "routing-key",
	"scheduler-stage", "function-timer", "engine-info", "startup", "grammar", "execution",
}

func readList[T any](t *testing.T, name string, parse func(io.Reader) (T, error)) T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "engine", "metrics", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	value, err := parse(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// everything switches on what an engine can observe.
var (
	everything = []string{
		"--page-size", "4", "--decode-log-interval", "5", "--enable-priority-scheduling", "--enable-mfu-metrics", "--max-running-requests", "6",
		"--tokenizer-metrics-allowed-custom-labels", "team", "--extra-metric-labels", `{"zone":"b"}`,
	}
	environment = []string{"SGLANG_ENABLE_METRICS_DEVICE_TIMER=1"}
)

// A unified engine and a pair behind a router, under everything that clients do, expose what the contract says: no fault in
// any exposition, and together no family is missing but those that no engine has.
func TestLiveExpositions(t *testing.T) {
	harness.NoteSources(t, "../..")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	unified := programs.StartEngine(t, "", append(environment, "SGLANG_TEST_RETRACT=1", "SGLANG_TEST_RETRACT_INTERVAL=40"),
		append(everything, "--model-path", windowed, "--max-total-tokens", "2048", "--enable-streaming-session")...)
	prefill := programs.StartEngine(t, "prefill", environment, append(everything, "--model-path", tiny, "--max-total-tokens", "2048")...)
	decode := programs.StartEngine(t, "decode", environment, append(everything, "--model-path", tiny, "--max-total-tokens", "1536")...)
	router := programs.StartRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode})
	t.Logf("a unified engine at %s; prefill %s and decode %s behind a router at %s", unified.URL, prefill.URL, decode.URL, router)

	const requests = 160
	for _, l := range []*load{{t: t, url: unified.URL, sessions: true, seed: seed}, {t: t, url: router, seed: seed + 1}} {
		t.Logf("%s: %d requests: %v", l.url, requests, l.run(requests))
	}
	for _, e := range []*harness.Engine{unified, prefill, decode} {
		e.Idle(t)
	}

	c, absent := readList(t, "contract.txt", contract.Parse), readList(t, "absent.txt", contract.ParseAbsent)
	options := contract.Options{Groups: groups, Extra: []string{"zone"}, Absent: absent}
	var all contract.Exposition
	for name, e := range map[string]*harness.Engine{"unified": unified, "prefill": prefill, "decode": decode} {
		text := harness.Get(t, e.URL+"/metrics")
		var one contract.Exposition
		for _, exposition := range []*contract.Exposition{&one, &all} {
			if err := exposition.Read(name, strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
		}
		report := c.Check(&one, options)
		for _, fault := range report.Faults {
			t.Errorf("%s: %s", name, fault)
		}
		checkOwn(t, name, text)
		if dir := os.Getenv("SLUICE_EXPOSITIONS"); dir != "" { // to look at, or to give to another program
			if err := os.WriteFile(filepath.Join(dir, name+".prom"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	report := c.Check(&all, options)
	var table bytes.Buffer
	if err := report.Write(&table); err != nil {
		t.Fatal(err)
	}
	t.Logf("the three together:\n%s", table.String())
	if !report.OK() {
		t.Error("something is missing or wrong")
	}
}

// checkOwn looks at what the engine says about its own counting.
func checkOwn(t *testing.T, name, text string) {
	t.Helper()
	lines := 0
	for line := range strings.Lines(text) {
		if line[0] == '#' {
			continue
		}
		lines++
		for _, zero := range []string{"sluice_ledger_violations_total{", "sluice_metrics_store_faults_total{"} {
			if strings.HasPrefix(line, zero) && !strings.HasSuffix(line, " 0\n") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	at := strings.Index(text, "\nsluice_metrics_series ")
	if want := "\nsluice_metrics_series " + strconv.Itoa(lines) + "\n"; at < 0 || !strings.HasPrefix(text[at:], want) {
		t.Errorf("%s: %d lines are not what it counts", name, lines)
	}
}

// /metrics answers with and without a slash, without a redirect, in what a scraper asks for.
func TestPaths(t *testing.T) {
	e := programs.StartEngine(t, "", nil, "--model-path", tiny, "--max-total-tokens", "512")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, path := range []string{"/metrics", "/metrics/"} {
		for accept, want := range map[string]string{"text/plain": "text/plain", "application/openmetrics-text;version=1.0.0": "application/openmetrics-text"} {
			req, err := http.NewRequest(http.MethodGet, e.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept", accept)
			answer, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if got := answer.Header.Get("Content-Type"); err != nil || answer.StatusCode != http.StatusOK || !strings.HasPrefix(got, want) ||
				!slices.Contains(strings.Split(string(text), "\n"), "# TYPE sglang:num_running_reqs gauge") {
				t.Errorf("%s as %s: status %d, type %s, %v", path, accept, answer.StatusCode, got, err)
			}
		}
	}
}
