package traces

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/engine/trace/tracetest"
	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs *harness.Programs
	receiver string // the program of collector/
	tiny     string // model folder
	slow     string // of a model whose answers take seconds when they are long
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(p *harness.Programs) error {
		programs, receiver = p, filepath.Join(p.Dir, "collector")
		build := exec.Command("go", "build", "-o", receiver, ".")
		build.Dir = "collector"
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build the collector: %w\n%s", err, out)
		}
		return nil
	},
		harness.Model{Dir: &slow, Name: "slow", Flags: []string{"--seed", "8", "--hidden-size", "256", "--layers", "8", "--context-length", "4096"}},
		harness.Model{Dir: &tiny, Name: "tiny"},
	))
}

// collector is a running receiver.
type collector struct {
	*harness.Process
	grpc, http int // ports
}

// startCollector runs the receiver until the test ends and waits until it receives.
func startCollector(t *testing.T) *collector {
	t.Helper()
	harness.NoteSources(t, "../..")
	for _, name := range []string{"main.go", "go.mod", "go.sum"} { // the cached result of a test is not that of another collector
		if _, err := os.ReadFile(filepath.Join("collector", name)); err != nil {
			t.Fatal(err)
		}
	}
	ports := harness.FreePorts(t, 2)
	c := &collector{grpc: ports[0], http: ports[1]}
	c.run(t)
	return c
}

func (c *collector) run(t *testing.T) {
	t.Helper()
	c.Process = harness.Start(t, "collector", receiver, nil, "--grpc", "127.0.0.1:"+strconv.Itoa(c.grpc), "--http", "127.0.0.1:"+strconv.Itoa(c.http))
	harness.Eventually(t, "the collector receives", func() bool { return strings.Contains(c.Log(), "collector: receiving") })
}

// spans gives what has come, by start.
func (c *collector) spans(t *testing.T) []tracetest.Span {
	t.Helper()
	var list []tracetest.Span
	for line := range strings.Lines(c.Log()) {
		if !strings.HasPrefix(line, "{") || !strings.HasSuffix(line, "\n") {
			continue
		}
		var s tracetest.Span
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&s); err != nil {
			t.Fatalf("the collector wrote %q: %v", line, err)
		}
		list = append(list, s)
	}
	slices.SortStableFunc(list, func(a, b tracetest.Span) int {
		return int(min(1, max(-1, a.Start-b.Start)))
	})
	return list
}

// await waits for so many roots and threads below each of them, and gives all spans.
func (c *collector) await(t *testing.T, roots, threads int) []tracetest.Span {
	t.Helper()
	var spans []tracetest.Span
	harness.Eventually(t, fmt.Sprintf("%d roots with %d threads each have come", roots, threads), func() bool {
		spans = c.spans(t)
		found, below := 0, 0
		for _, s := range spans {
			switch {
			case tracetest.IsRoot(s):
				found++
			case tracetest.IsThread(s):
				below++
			}
		}
		return found >= roots && below >= roots*threads
	})
	return spans
}

// startEngine runs an engine that traces into the collector.
func startEngine(t *testing.T, c *collector, mode string, env []string, args ...string) *harness.Engine {
	t.Helper()
	return programs.StartEngine(t, mode, append(c.env(), env...), append(c.args(), args...)...)
}

// env and args are what engines have that trace into the collector.
func (c *collector) env() []string {
	return []string{"SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS=20"}
}

func (c *collector) args() []string {
	return []string{
		"--model-path", tiny, "--page-size", "4", "--chunked-prefill-size", "8", "--max-total-tokens", "2048",
		"--enable-trace", "--otlp-traces-endpoint", "127.0.0.1:" + strconv.Itoa(c.grpc),
	}
}

// startSlow runs a unified engine that computes the answer to longAnswer for seconds. Its steps have no spans: there are many.
func startSlow(t *testing.T, c *collector, args ...string) *harness.Engine {
	t.Helper()
	return startEngine(t, c, "", []string{"SGLANG_TRACE_LEVEL=2"}, append([]string{"--model-path", slow, "--max-total-tokens", "16384"}, args...)...)
}

// longAnswer is a body of /generate for an answer that is not over before the test ends it.
func longAnswer(rid string) string {
	return `{"rid":"` + rid + `","input_ids":[1,2,3],"sampling_params":{"max_new_tokens":4000,"ignore_eos":true}}`
}

// prompt is so many tokens, of which no beginning is cached by another.
func prompt(tokens, seed int) []int32 {
	ids := make([]int32, tokens)
	for i := range ids {
		ids[i] = int32(10 + (seed*31+i*7)%400)
	}
	return ids
}

// generate asks for an answer of so many tokens; more are fields of the body.
func generate(t *testing.T, url, rid string, ids []int32, tokens int, more map[string]any, header http.Header) (status int, body []byte) {
	t.Helper()
	fields := map[string]any{"rid": rid, "input_ids": ids, "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true}}
	for k, v := range more {
		fields[k] = v
	}
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return ask(t, t.Context(), http.MethodPost, url+"/generate", string(data), header)
}

// ask makes a request and reads the answer.
func ask(t *testing.T, ctx context.Context, method, url, body string, header http.Header) (status int, answer []byte) {
	t.Helper()
	status, answer, err := try(ctx, method, url, body, header)
	if err != nil {
		t.Fatal(err)
	}
	return status, answer
}

func try(ctx context.Context, method, url, body string, header http.Header) (status int, answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer w.Body.Close()
	var text strings.Builder
	buffer := make([]byte, 4096)
	for {
		n, readErr := w.Body.Read(buffer)
		text.Write(buffer[:n])
		if readErr != nil {
			break
		}
	}
	return w.StatusCode, []byte(text.String()), nil
}
