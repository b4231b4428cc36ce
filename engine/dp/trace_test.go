package dp

import (
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/trace"
	"github.com/sluice-dev/sluice/engine/trace/tracetest"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// TestDispatchSpans: the DP rank goes on from the controller's slice, the caller's request stays as it is, and a request that no
// DP rank takes says so.
func TestDispatchSpans(t *testing.T) {
	root := traceparent.New()
	traced := request.Trace{Parent: root.String(), Level: 2, Module: trace.ModuleRequest, Previous: "00000000000000aa"}
	for _, tc := range []struct {
		name, reason string
		trace        *request.Trace
		dpRank       int
		failure      string
		slices       int // below the controller's thread
	}{
		{name: "taken", reason: "a thread with one slice", trace: &traced, slices: 1},
		{name: "level 1", reason: "a thread, and no slice to go on from", trace: &request.Trace{Parent: root.String(), Level: 1, Module: trace.ModuleRequest, Previous: "00000000000000aa"}},
		{name: "refused", reason: "nobody takes it", trace: &traced, dpRank: 7, failure: "invalid: routed_dp_rank is 7", slices: 1},
		{name: "not traced", reason: "it goes on as it is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			collector := tracetest.New(t)
			clock := ledgertest.New()
			clock.SetStep(time.Microsecond)
			cfg := trace.DefaultConfig()
			cfg.Enabled, cfg.Endpoint = true, collector.GRPC
			process, err := trace.Open(cfg, clock, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
			if err != nil {
				t.Fatal(err)
			}
			fakes := []*fakeRank{newFakeRank(), newFakeRank()}
			c, err := New([]rank.Client{fakes[0], fakes[1]}, RoundRobin, Options{Clock: clock, Tracer: process.Tracer(trace.Place{Label: trace.DPController})})
			if err != nil {
				t.Fatal(err)
			}
			r := &request.Request{RID: "r", PromptIDs: []int32{1}, DPRank: &tc.dpRank, Trace: tc.trace}
			before := *r
			if _, err := c.Submit(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, *r); diff != "" {
				t.Errorf("%s: the caller's request changed (-before +after)\n%s", tc.reason, diff)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := process.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans := collector.Spans()
			at := slices.IndexFunc(spans, tracetest.IsThread)
			if at < 0 != (tc.trace == nil) || len(spans) > 0 && len(spans) != 1+tc.slices {
				t.Fatalf("%s: the spans are %s", tc.reason, tracetest.Names(spans))
			}
			if tc.trace == nil {
				return
			}
			thread := spans[at]
			if thread.Failed != (tc.failure != "") || len(thread.Failure) < len(tc.failure) || thread.Failure[:len(tc.failure)] != tc.failure || thread.Parent != root.SpanID.String() {
				t.Errorf("%s: the thread is %+v", tc.reason, thread)
			}
			previous := tc.trace.Previous
			for _, s := range tracetest.Children(spans, thread) {
				if diff := cmp.Diff([]tracetest.Link{{Trace: root.TraceID.String(), ID: previous, Remote: true}}, s.Links); s.Name != "dpc_dispatch" || s.Nanos() <= 0 || diff != "" {
					t.Errorf("%s: a slice is %+v (links -want +got)\n%s", tc.reason, s, diff)
				}
				previous = s.ID
			}
			if tc.failure == "" {
				if got := fakes[0].got[0].Trace; got.Previous != previous || got.Parent != tc.trace.Parent || got.Level != tc.trace.Level {
					t.Errorf("%s: the DP rank got %+v, want %s before it", tc.reason, got, previous)
				}
			}
		})
	}
}
