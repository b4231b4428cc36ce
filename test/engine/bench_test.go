package engine

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sluice-dev/sluice/bench"
	"github.com/sluice-dev/sluice/test/harness"
)

// TestBench puts a small load of every kind on a real engine with the real program, and compares its counts with the
// engine's own.
func TestBench(t *testing.T) {
	harness.NoteSources(t, "../..", "bench")
	program := filepath.Join(t.TempDir(), "sluice-bench")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/sluice-dev/sluice/cmd/bench").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	r := start(t, "--enable-cache-report")
	run := func(t *testing.T, args ...string) bench.Report {
		t.Helper()
		cmd := exec.Command(program, append([]string{"--url", r.url, "--json", "--quiet", "--num-prompts", "12", "--seed", "3"}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			var said []byte
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				said = exit.Stderr
			}
			t.Fatalf("%v\n%s%s", err, said, out)
		}
		return decode[bench.Report](t, string(out))
	}
	for name, args := range map[string][]string{
		"completions": {"--max-concurrency", "4", "--output-len", "9"},
		"open":        {"--request-rate", "40", "--burstiness", "0.5", "--output-len", "9"},
		"ids":         {"--max-concurrency", "4", "--token-ids", "10:200", "--input-len", "33", "--output-len", "9", "--prefix-ratio", "0.5", "--prefix-groups", "2"},
		"chat":        {"--api", "chat", "--max-concurrency", "4", "--output-len", "9", "--continuous-usage", "--send-seed"},
		"generate":    {"--api", "generate", "--max-concurrency", "4", "--output-len", "9", "--send-seed", "--temperature", "0"},
		"whole":       {"--stream=false", "--max-concurrency", "4", "--output-len", "9"},
	} {
		t.Run(name, func(t *testing.T) {
			report := run(t, args...)
			got := report.Servers[0]
			if got.Completed != 12 || got.OutputTokens != 12*9 || got.WithoutUsage != 0 || got.E2E == nil || (got.TTFT == nil) != (name == "whole") || got.CachedTokens == nil {
				t.Errorf("%+v", got)
			}
			if name == "ids" && got.InputTokens != 12*33 {
				t.Errorf("%d input tokens, want %d", got.InputTokens, 12*33)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		got := run(t, "--max-concurrency", "4", "--output-len", "400", "--cancel", "1", "--cancel-after-chunks", "uniform:1,5").Servers[0]
		if got.Cancelled != 12 || got.Failed != 0 {
			t.Errorf("%+v", got)
		}
		r.idle()
	})
	t.Run("two servers", func(t *testing.T) {
		report := run(t, "--vs", r.url, "--alternate", "round", "--round", "4", "--max-concurrency", "2", "--output-len", "5")
		if len(report.Servers) != 2 || report.Servers[1].Completed != 12 || len(report.Ratios) == 0 {
			text, _ := json.Marshal(report)
			t.Errorf("%s", text)
		}
	})
}
