package scheduler

import (
	stdcmp "cmp"
	"context"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

func stillClock() ledger.Clock { return ledgertest.New() }

// TestObservations: which samples a request's path leaves. Each stage once, the first wait once, whatever happens in
// between; a request whose metrics are off leaves none but the tokens of its steps.
func TestObservations(t *testing.T) {
	type seen struct {
		Stages    map[ledger.Stage]int
		Queue     int
		Realtime  [3]int
		Transfers int
	}
	tests := []struct {
		name, reason string
		roles        []Role
		change       func(*Config)
		silent       bool
		tokens       int // of the answer; 0: 6
		want         []seen
	}{
		{name: "unified", reason: "13 prompt tokens in chunks of 5: two laps, the rest belongs to the forward", roles: []Role{Unified},
			want: []seen{{Stages: map[ledger.Stage]int{ledger.StageRequestProcess: 1, ledger.StagePrefillForward: 1, ledger.StageChunkedPrefill: 2}, Queue: 1, Realtime: [3]int{13, 0, 5}}}},
		{name: "retracted", reason: "the second pass is no second sample; what it finds in the cache is not computed again", roles: []Role{Unified},
			change: func(c *Config) { c.TestRetractSteps = 3 },
			want:   []seen{{Stages: map[ledger.Stage]int{ledger.StageRequestProcess: 1, ledger.StagePrefillForward: 1, ledger.StageChunkedPrefill: 2}, Queue: 1, Realtime: [3]int{17, 12, 4}}}},
		{name: "one token", reason: "the prompt is computed to its end all the same", roles: []Role{Unified}, tokens: 1,
			want: []seen{{Stages: map[ledger.Stage]int{ledger.StageRequestProcess: 1, ledger.StagePrefillForward: 1, ledger.StageChunkedPrefill: 2}, Queue: 1, Realtime: [3]int{13, 0, 0}}}},
		{name: "silent", reason: "a health check is not counted", roles: []Role{Unified}, silent: true, want: []seen{{Realtime: [3]int{13, 0, 5}}}},
		{name: "pair", reason: "each half has its stages", roles: []Role{Prefill, Decode},
			want: []seen{
				{Stages: map[ledger.Stage]int{ledger.StagePrefillBootstrap: 1, ledger.StagePrefillForward: 1, ledger.StageChunkedPrefill: 2, ledger.StagePrefillTransferKVCache: 1}, Queue: 1, Realtime: [3]int{13, 0, 0}, Transfers: 1},
				{Stages: map[ledger.Stage]int{ledger.StageDecodePrepare: 1, ledger.StageDecodeBootstrap: 1, ledger.StageDecodeTransferred: 1, ledger.StageDecodeWaiting: 1, ledger.StageFakeOutput: 1}, Queue: 1, Realtime: [3]int{0, 0, 5}, Transfers: 1},
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var cfgs []Config
			for _, role := range tt.roles {
				cfg := testConfig(role, 4, 64)
				cfg.ChunkTokens = 5
				if tt.change != nil {
					tt.change(&cfg)
				}
				cfgs = append(cfgs, cfg)
			}
			r := newReplica(t, cfgs...)
			sinks := r.submit(&request.Request{
				RID: "a", PromptIDs: testPrompt(13, 1), LogMetrics: !tt.silent,
				Sampling: request.Sampling{MaxNewTokens: stdcmp.Or(tt.tokens, 6), IgnoreEOS: true, Seed: new(int64(1))},
			}, 1)
			for _, sink := range sinks {
				r.wait(sink)
			}
			r.end()
			var got []seen
			for _, said := range r.said {
				got = append(got, seen{Stages: said.stages, Queue: said.queue, Realtime: said.realtime, Transfers: len(said.transfers)})
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

// TestTransferTimeIsOne: record, report and load tell the same time of a hand-over, also where the transfer measured none.
func TestTransferTimeIsOne(t *testing.T) {
	for _, latency := range []int64{0, 40e6} {
		r := newReplica(t, testConfig(Prefill, 4, 64), testConfig(Decode, 4, 64))
		r.wire.latency = latency
		sink := r.submit(&request.Request{
			RID: "a", PromptIDs: testPrompt(13, 1), LogMetrics: true, Sampling: request.Sampling{MaxNewTokens: 2, IgnoreEOS: true},
		}, 1)[0]
		r.wait(sink)
		r.end()
		record := sink.finish.Timeline
		want := record.Transfer.Nanos
		if latency > 0 && want != latency || latency == 0 && want != record.Of(ledger.StagePrefillTransferKVCache).Nanos || want <= 0 {
			t.Errorf("latency %d: the record says %d, and %+v", latency, want, record.Spent)
		}
		told := r.said[0].transfers
		if len(told) != 1 || told[0].LatencyNanos != want || told[0].TotalBytes != record.Transfer.OwnBytes {
			t.Errorf("latency %d: the report is %+v, want %d", latency, told, want)
		}
		moved := [][]report.KVMoved{r.said[0].moved, r.said[1].moved}
		bytes := record.Transfer.OwnBytes
		if diff := cmp.Diff([][]report.KVMoved{{{Bytes: bytes, Done: true}}, {{Bytes: bytes, Received: true, Done: true}}}, moved); diff != "" {
			t.Errorf("latency %d: bytes told (-want +got):\n%s", latency, diff)
		}
		if got := r.scheds[0].Load().Disaggregation.KVTransferLatencyMs; got != round(float64(want)/1e6, 2) {
			t.Errorf("latency %d: the load says %v ms, want %d ns", latency, got, want)
		}
	}
}

// TestSnapshot: every field of a report has the value of its own source.
func TestSnapshot(t *testing.T) {
	clock := ledgertest.New()
	said := newRecorder()
	w := newWire(4)
	w.auto = false
	cfg := testConfig(Decode, 4, 100)
	cfg.MaxRunning, cfg.MaxRunningUnderSLO = 8, 3
	s, err := New(cfg, Deps{Executor: newTape(4), Clock: clock, Reporter: said, Decoder: letters{}, Log: quiet(), Receiver: wireReceiver{w}})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s)
	for room := range int64(3) { // prompts of 5, 6 and 7 tokens
		r := &request.Request{
			RID: string(rune('a' + room)), PromptIDs: testPrompt(int(room)+5, 1), Bootstrap: &request.Bootstrap{Host: "h", Port: 1, Room: room + 1},
			Sampling: request.Sampling{MaxNewTokens: 9},
		}
		if err := s.Submit(r, newSink()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.turn(); err != nil {
		t.Fatal(err)
	}
	(&harness{t: t, s: s, wire: w, tape: newTape(4)}).command("room 1 pages")
	clock.Advance(time.Second)
	if _, err := s.turn(); err != nil {
		t.Fatal(err)
	}
	want := report.Snapshot{
		Kind: report.Idle, NumUsedTokens: 8, KVAvailableTokens: 92, KVUsedTokens: 8, MaxTotalNumTokens: 100, TokenUsage: 0.08, FullUsage: 0.08,
		Utilization: 0.08 / 0.9, NumDecodePreallocQueueReqs: report.QueueCount{Total: 2}, NumDecodeTransferQueueReqs: report.QueueCount{Total: 1}, MaxRunningRequestsUnderSLO: 3,
		PendingPreallocTokenUsage: 0.13, NewTokenRatio: 0.7, FwdOccupancy: math.NaN(),
	}
	if diff := cmp.Diff(want, said.snapshots[len(said.snapshots)-1], cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTheEndIsReported: an engine that ends while requests run leaves no gauges behind that say they still do.
func TestTheEndIsReported(t *testing.T) {
	said := newRecorder()
	cfg := testConfig(Unified, 4, 64)
	cfg.DecodeInterval = 1
	s, err := New(cfg, Deps{Executor: newTape(4), Clock: ledger.System(), Reporter: said, Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	sink := newSink()
	sink.onPiece = func(request.Output) { stop() } // once it runs
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if err := s.Submit(&request.Request{RID: "a", PromptIDs: testPrompt(5, 1), Sampling: request.Sampling{MaxNewTokens: 50, IgnoreEOS: true}}, sink); err != nil {
		t.Fatal(err)
	}
	if err := await(t, "it does not end", ended); err != nil {
		t.Fatal(err)
	}
	last := said.snapshots[len(said.snapshots)-1]
	if last.Kind != report.Idle || last.NumRunningReqs.Total != 0 || last.KVUsedTokens != 0 || last.GenThroughput != 0 {
		t.Errorf("the last report is %+v", last)
	}
}
