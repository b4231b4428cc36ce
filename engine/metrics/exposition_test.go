package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/prometheus/common/expfmt"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

var update = flag.Bool("update", false, "write the golden files of this package")

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// openStore gives a store that is closed at the end of the test.
func openStore(t testing.TB, dir, process string) *Store {
	t.Helper()
	s, err := OpenStore(dir, process, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := word(s.header, offNoRoom).Load(); n != 0 {
			t.Errorf("%d series found no room", n)
		}
	})
	return s
}

func newGatherer(t testing.TB, dir string) *Gatherer {
	g := NewGatherer(dir)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// scrape gives the text exposition of the stores.
func scrape(t testing.TB, g *Gatherer) string {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&buf, f); err != nil {
			t.Fatal(err)
		}
	}
	return buf.String()
}

// snapshot has another value in every field, see TestEveryFieldDiffers.
func snapshot(kind report.Kind) report.Snapshot {
	return report.Snapshot{
		Kind: kind, NumRunningReqs: count(11), NumQueueReqs: count(12), NumPausedReqs: 28, NumGrammarQueueReqs: 31,
		NumUsedTokens: 1301, KVAvailableTokens: 1402, KVEvictableTokens: 1503, KVUsedTokens: 1604, MaxTotalNumTokens: 4509,
		SWAAvailableTokens: 702, SWAEvictableTokens: 803, SWAUsedTokens: 904, SWAUsage: 0.3752,
		NumStreamingSessions: 13, StreamingSessionHeldTokens: 144,
		TokenUsage: 0.36, FullUsage: 0.3557, GenThroughput: 170.5, Utilization: 0.81, CacheHitRate: 0.19,
		DecodeSumSeqLens: 1515, NewTokenRatio: 0.55, FwdOccupancy: 61.5,
		NumUniqueRunningRoutingKeys: 16,
		RoutingKeyRunningReqCounts:  report.RoutingKeyCounts{101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111},
		RoutingKeyAllReqCounts:      report.RoutingKeyCounts{201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211},

		NumPrefillBootstrapQueueReqs: count(20), NumPrefillInflightQueueReqs: count(21), NumDecodePreallocQueueReqs: count(22),
		NumDecodeTransferQueueReqs: count(23), NumDecodeHostReceiveQueueReqs: count(24), NumDecodeDeferredKVReleaseReqs: 25, NumRetractedReqs: 26,
		MaxRunningRequestsUnderSLO: 27, PendingPreallocTokenUsage: 0.29,
	}
}

// constants have other values than a snapshot.
func constants() report.Constants {
	return report.Constants{
		PageSize: 17, NumPages: 266, MaxTotalNumTokens: 4510, MaxTotalNumTokensSWA: 2409, ContextLen: 8192, MaxRunningRequestsUnderSLO: 30,
		WeightBytes: 5 << 30, KVBytes: 7 << 29, AvailableBytes: 11 << 28,
	}
}

// loopTime has another value in every field.
func loopTime() report.LoopTime {
	t := report.LoopTime{Iterations: 57, IdleNanos: 58e7, CPUNanos: 59e7}
	for s := range t.StageNanos {
		for o := range t.StageNanos[s] {
			t.StageNanos[s][o] = int64(600+10*s+o) * int64(time.Millisecond)
		}
	}
	return t
}

// TestEveryFieldDiffers: what the golden expositions show has no zero and no value twice, so that none can stand for another.
func TestEveryFieldDiffers(t *testing.T) {
	seen := map[float64]string{}
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.Type != reflect.TypeFor[report.Kind]() {
					walk(v.Field(i), path+"."+f.Name)
				}
			}
		case reflect.Array:
			for i := range v.Len() {
				walk(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
			}
		case reflect.Slice: // by priority, which another test looks at
		case reflect.Int, reflect.Int64, reflect.Float64:
			n := v.Convert(reflect.TypeFor[float64]()).Float()
			if other, twice := seen[n]; n == 0 || twice {
				t.Errorf("%s is %v, as %q is", path, n, other)
			}
			seen[n] = path
		default:
			t.Errorf("%s is a %s", path, v.Kind())
		}
	}
	walk(reflect.ValueOf(snapshot(report.Decode)), "snapshot")
	walk(reflect.ValueOf(constants()), "constants")
	walk(reflect.ValueOf(loopTime()), "loopTime")
}

// count is a queue of requests without priorities.
func count(n int) report.QueueCount { return report.QueueCount{Total: n} }

// fill sends one of everything, each with a value of its own.
func fill(m *Scheduler, f *Front, form ledger.Form) {
	const ms = int64(time.Millisecond)
	m.Started(constants())
	m.Report(snapshot(report.Prefill))
	m.Report(snapshot(report.Decode))
	m.LoopTime(loopTime())
	m.QueueTime(32*ms, report.Priority{})
	for _, s := range ledger.Stages() {
		if slices.Contains(s.Observed, form) {
			m.StageTime(s.Stage, int64(s.Stage)*33*ms)
		}
	}
	m.KVTransfer(report.KVTransfer{TotalBytes: 34 << 20, LatencyNanos: 35 * ms, BootstrapNanos: 36 * ms, AllocNanos: 37 * ms})
	for i, received := range []bool{false, true} {
		m.KVMoved(report.KVMoved{Bytes: int64(201 + i), Received: received, Done: true})
		m.KVMoved(report.KVMoved{Bytes: int64(203 + i), Received: received})
	}
	m.BootstrapFailed()
	m.TransferFailed()
	m.TransferFailed()
	m.Retracted(38, 39, 40)
	m.RealtimeTokens(41, 42, 43)
	m.PrefillTokens(61, 62)
	for i, mode := range report.ForwardModes() {
		m.Forward(mode, int64(63+i)*ms)
	}
	m.Estimated(report.Cost{Flops: 66e9, ReadBytes: 67e6, WriteBytes: 68e3})
	m.Evicted(690, 7*ms)
	for i, outcome := range report.ReleaseOutcomes() {
		for range i + 1 {
			m.KVReleased(outcome, int64(70+i)*ms)
		}
	}
	for i, reason := range report.Rejections() {
		for range i + 4 {
			m.Rejected(reason)
		}
	}
	for range 7 {
		m.PrefillRetried()
	}
	m.Grammar(report.Grammar{CompileNanos: 74 * ms, Schemas: 75, Size: 760})
	m.Grammar(report.Grammar{CacheHit: true, Schemas: 77, Size: 780})
	m.Grammar(report.Grammar{CacheHit: true, Size: 790})
	for range 8 {
		m.Grammar(report.Grammar{Outcome: report.GrammarAborted})
	}
	for range 9 {
		m.Grammar(report.Grammar{Outcome: report.GrammarTimedOut})
	}
	m.GrammarMasks(80*ms, 810*ms)

	batch, stream := Subject{}, Subject{Streaming: true, Custom: map[string]string{"team": "red", "unknown": "x"}}
	f.FirstToken(batch, 440*ms)
	f.FirstToken(stream, 450*ms)
	f.InterToken(stream, 46*ms, 3)
	f.InterToken(stream, 47*ms, 0)
	f.Finished(batch, Finished{PromptTokens: 480, CompletionTokens: 490, CachedTokens: 50, E2ENanos: 5100 * ms, TPOTNanos: 52e6})
	f.Finished(stream, Finished{PromptTokens: 53, CompletionTokens: 1, E2ENanos: 550 * ms})
	f.Finished(Subject{Priority: new(7)}, Finished{PromptTokens: 57, CompletionTokens: 58, Structured: true, E2ENanos: 5900 * ms})
	for i, outcome := range request.Outcomes() {
		f.Requests(60+i, i, outcome, 61)
	}
	f.RoutingKeyHeld("a")
	f.RoutingKeyHeld("b")
	f.FuncLatency("generate_request", 620*ms)
	f.StartupTime("load_weight", 630*ms)
	f.StartupStep("tokenizer", 640*ms)
	f.Aborted()
	f.LoadsServed(56 * ms / 10)
	f.RequestStarted("/v1/completions", "POST")
	f.RequestStarted("/v1/completions", "POST")
	f.ResponseStarted("/v1/completions", "POST", 200)
	f.RequestEnded("/v1/completions", "POST")
	f.RequestStarted("", "BREW")
	f.ResponseStarted("", "BREW", 418)
	f.RequestEnded("", "BREW")
}

const allFeatures = WithSlidingWindow | WithSessions | WithDeviceTimer | WithMFU

func TestExposition(t *testing.T) {
	for engineType, form := range map[string]ledger.Form{"unified": ledger.Unified, "prefill": ledger.Prefill, "decode": ledger.Decode} {
		t.Run(engineType, func(t *testing.T) {
			dir := t.TempDir()
			clock := ledgertest.New()
			extra := map[string]string{"zone": "b"}
			m := NewScheduler(openStore(t, dir, "rank-0"), RankLabels{ModelName: "tiny", EngineType: engineType, TPRank: 1, PPRank: 2, MoEEPRank: 3, Extra: extra, Features: allFeatures}, clock)
			api := openStore(t, dir, "api")
			f := NewFront(api, FrontLabels{ModelName: "tiny", EngineType: engineType, Priority: true, Custom: []string{"team"}, Extra: extra}, Buckets{}, clock)
			fill(m, f, form)
			NewSpansLost(api)(69)
			golden(t, engineType+".prom", scrape(t, newGatherer(t, dir)))
		})
	}
}

// Every family of the table is in one of the golden expositions, and in those of its engine types alone.
func TestExpositionHasEveryFamily(t *testing.T) {
	for _, engineType := range []string{"unified", "prefill", "decode"} {
		text, err := os.ReadFile(filepath.Join("testdata", engineType+".prom"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range Families() {
			has := strings.Contains(string(text), "# TYPE "+f.Name+" "+f.Kind.String()+"\n")
			if has != f.Engines.Has(engineType) {
				t.Errorf("%s of %s engine: in the exposition %v, in the table %v", f.Name, engineType, has, f.Engines.Has(engineType))
			}
		}
	}
}

func TestHandler(t *testing.T) {
	dir := t.TempDir()
	f := NewFront(openStore(t, dir, "api"), FrontLabels{ModelName: "tiny", EngineType: "unified"}, Buckets{}, ledgertest.New())
	f.Aborted()
	server := httptest.NewServer(Handler(newGatherer(t, dir)))
	defer server.Close()
	for _, c := range []struct {
		name, reason, accept, contentType string
		lines                             []string
	}{
		{"text", "names and _total as written, hits are there before the first one, go_* and process_* of this process", "", "text/plain", []string{
			`# TYPE sglang:num_aborted_requests_total counter`,
			`sglang:num_aborted_requests_total{engine_type="unified",model_name="tiny"} 1`,
			`sglang:cached_tokens_total{cache_source="device",engine_type="unified",model_name="tiny"} 0`,
			`# TYPE go_goroutines gauge`,
			`# TYPE process_cpu_seconds_total counter`,
		}},
		{"OpenMetrics", "the family is without _total, the sample has it once", "application/openmetrics-text;version=1.0.0;escaping=underscores", "application/openmetrics-text", []string{
			`# TYPE sglang:num_aborted_requests counter`,
			`sglang:num_aborted_requests_total{engine_type="unified",model_name="tiny"} 1.0`,
			`# EOF`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := nethttp.NewRequest(nethttp.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept", c.accept)
			resp, err := nethttp.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != nethttp.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), c.contentType) {
				t.Errorf("status %d, content type %q", resp.StatusCode, resp.Header.Get("Content-Type"))
			}
			for _, line := range c.lines {
				if !strings.Contains("\n"+string(body), "\n"+line+"\n") {
					t.Errorf("%s: no line %q", c.reason, line)
				}
			}
			if strings.Contains(string(body), "_total_total") {
				t.Error("a counter has _total twice")
			}
		})
	}
}

// TestOverwrittenRanks: extra labels may overwrite those that tell ranks apart. The series of all ranks are then one, that
// counters add up in and gauges have the newest value of; none is there twice.
func TestOverwrittenRanks(t *testing.T) {
	for name, extra := range map[string]map[string]string{
		"all that tell ranks apart": {"tp_rank": "x", "pp_rank": "x", "dp_rank": "x", "moe_ep_rank": "x", "priority": "x", "cache_type": "x"},
		"one of them":               {"tp_rank": "x"},
		"engines":                   {"model_name": "x", "engine_type": "x"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, clock := t.TempDir(), ledgertest.New()
			for rank := range 4 {
				m := NewScheduler(openStore(t, dir, fmt.Sprint("rank-", rank)), RankLabels{
					ModelName: "tiny", EngineType: "unified", TPRank: rank % 2, DPRank: new(rank / 2), Priority: true, Extra: extra, Features: allFeatures,
				}, clock)
				f := NewFront(openStore(t, dir, "api"), FrontLabels{ModelName: "tiny", EngineType: "unified", Priority: true, Custom: []string{"team"}, Extra: extra}, Buckets{}, clock)
				fill(m, f, ledger.Unified)
			}
			seen, sum := map[string]bool{}, 0.0
			for line := range strings.Lines(scrape(t, newGatherer(t, dir))) {
				line = strings.TrimSpace(line)
				if strings.HasPrefix(line, "#") {
					continue
				}
				at := strings.LastIndexByte(line, ' ')
				series, value := line[:at], line[at+1:]
				if seen[series] {
					t.Errorf("%s is there twice", series)
				}
				seen[series] = true
				if strings.HasPrefix(series, "sglang:realtime_tokens_total{") && strings.Contains(series, `mode="decode"`) {
					n, err := strconv.ParseFloat(value, 64)
					if err != nil {
						t.Fatal(err)
					}
					sum += n
				}
			}
			if sum == 0 || math.Mod(sum, 4) != 0 {
				t.Errorf("the four ranks decoded %v tokens, each as many", sum)
			}
		})
	}
}
