package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the expected reports anew")

// exampleReport has a different value in every field.
func exampleReport() *Report {
	cached, goodput, low, high, one := 30, 1.5, 0.81, 0.99, 1.02
	d := func(base float64) *Distribution {
		return &Distribution{Count: 4, Mean: base, SD: base / 10, Min: base - 5, P50: base + 1, P90: base + 2, P95: base + 3, P99: base + 4, Max: base + 5}
	}
	return &Report{
		Version: "v1", API: Chat, Model: "tiny", Stream: true,
		Load: Load{
			Requests: 7, Duration: time.Minute, Rate: 2.5, Arrivals: Gamma, Burstiness: 0.5, Concurrency: 3, PrefixRatio: 0.25, PrefixGroups: 2,
			Priorities: Priorities{{0, 0.75}, {10, 0.25}}, CancelShare: 0.125, Seed: 9,
		},
		Lengths: map[string]string{"input-len": "128", "output-len": "uniform:8,16"}, Interrupted: true,
		Servers: []Summary{
			{
				URL: "http://a", Requests: 7, Completed: 4, Cancelled: 1, Interrupted: 0, Failed: 2,
				Errors:  []ErrorCount{{Kind: "http 503", Count: 2, Example: "queue is full\nsecond line"}},
				Seconds: 2.5, RequestsPerSecond: 1.6, InputTokensPerSecond: 48, OutputTokensPerSecond: 22, InputTokens: 120, OutputTokens: 55,
				CachedTokens: &cached, WithoutUsage: 1, TokensPerGap: 1.25, ConcurrencyMean: 1.75, ConcurrencyPeak: 3,
				Latencies: Latencies{TTFT: d(40), ITL: d(50), TPOT: d(60), E2E: d(700)}, SendLag: d(10), Goodput: &goodput,
				ByPriority: []PriorityLatencies{{Priority: 10, Completed: 2, Latencies: Latencies{TTFT: d(80)}}},
			},
			{URL: "http://b", Requests: 3, Interrupted: 3, Errors: []ErrorCount{}, Seconds: 1},
		},
		Alternate: ByRound,
		Ratios: []Ratio{
			{Name: "TTFT mean ms", First: 40, Second: 36, Ratio: 0.9, Low: &low, High: &high, Units: 12},
			{Name: "E2E mean ms", First: 700, Second: 690, Ratio: 0.986, Low: &low, High: &one, Units: 12},
			{Name: "requests/s", First: 1.6, Second: 1.7, Ratio: 1.063, Units: 12},
		},
		Notes: []string{"a note"},
	}
}

func TestReport(t *testing.T) {
	report := exampleReport()
	var table, text bytes.Buffer
	if err := report.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if err := report.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{"report.txt": table.Bytes(), "report.json": text.Bytes()} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s; run the test with -update when the change is meant (-want +got):\n%s", name, diff)
		}
	}
	var again Report
	if err := json.Unmarshal(text.Bytes(), &again); err != nil {
		t.Error(err)
	}
}

func TestProgress(t *testing.T) {
	start := time.Unix(1000, 0)
	now := start.Add(12 * time.Second)
	tests := []struct {
		name, reason string
		status       Status
		columns      int
		want         string // of the bar
	}{
		{name: "before", reason: "nothing is known yet", columns: 80, want: "[                              ]   0% not started"},
		{name: "requests", reason: "by requests", status: Status{Planned: 40, Started: start, InFlight: 3, Completed: 10, OutputTokens: 240}, columns: 120,
			want: "[=======                       ]  25% 10/40 done, 3 in flight, 20.0 tokens/s, 12s"},
		{name: "time", reason: "by time, and what went wrong", status: Status{Duration: 24 * time.Second, Started: start, Completed: 8, Failed: 2, Cancelled: 1}, columns: 100,
			want: "[==============               ]  50% 11 done, 0 in flight, 2 failed, 1 cancelled, 0.0 tokens/s, 12s"},
		{name: "over", reason: "never more than all", status: Status{Duration: time.Second, Started: start}, columns: 62,
			want: "[===============] 100% 0 done, 0 in flight, 0.0 tokens/s, 12s"},
		{name: "narrow", reason: "a narrow terminal gets the words it has room for", status: Status{Planned: 40, Started: start}, columns: 12, want: "   0% 0/40 "},
		{name: "none", reason: "a terminal without room", status: Status{Planned: 40, Started: start}, columns: 1, want: ""},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, tt.status.Bar(now, tt.columns)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", tt.name, tt.reason, diff)
		}
	}
}

func TestWatch(t *testing.T) {
	for columns, want := range map[int]string{
		0:  "1/2 done, 0 in flight, 0.0 tokens/s, 1s\n",
		60: "\r[======      ]  50% 1/2 done, 0 in flight, 0.0 tokens/s, 1s\x1b[K\r\x1b[K",
	} {
		var out bytes.Buffer
		tick, stop, stopped := make(chan time.Time), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			Watch(&out, columns, tick, stop, func() Status { return Status{Planned: 2, Completed: 1, Started: time.Unix(1, 0)} })
		}()
		tick <- time.Unix(2, 0)
		close(stop)
		<-stopped
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%d columns (-want +got):\n%s", columns, diff)
		}
	}
}
