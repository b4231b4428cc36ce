package scheduler

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

func TestOccupancy(t *testing.T) {
	type batch struct{ ended, busy int64 }
	tests := []struct {
		name, reason string
		window       int
		batches      []batch
		want         []float64
	}{
		{"window", "the first batch starts the clock and keeps the value; each further one counts", 3,
			[]batch{{100, 50}, {200, 40}, {300, 60}, {400, 90}, {500, 100}}, []float64{math.NaN(), 40, 50, 50, 100}},
		{"no time", "a window without time has no share: the value stays", 4, []batch{{100, 5}, {100, 5}, {200, 45}}, []float64{math.NaN(), math.NaN(), 50}},
		{"too much", "several queues can be busy at once; the share is at most all", 4, []batch{{0, 0}, {100, 250}}, []float64{math.NaN(), 100}},
		{"window of one", "it would never have a length", 1, []batch{{0, 0}, {100, 30}, {200, 50}, {300, 60}}, []float64{math.NaN(), 30, 30, 60}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var o occupancy
			o.reset()
			var got []float64
			for _, b := range tt.batches {
				o.add(ledger.Instant(b.ended), b.busy, tt.window)
				got = append(got, o.percent)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if o.reset(); o.known() {
				t.Error("it is known after a reset")
			}
		})
	}
}

// TestRoutingKeyCounts: a number that is a bound belongs to that bound, and no bucket has what is in another.
func TestRoutingKeyCounts(t *testing.T) {
	bounds := report.RoutingKeyBounds()
	for i, bound := range bounds {
		for at, requests := range map[int]int{i: bound, i + 1: bound + 1} {
			if at < len(bounds) && requests > bounds[at] {
				continue
			}
			var got, want report.RoutingKeyCounts
			got.Add(requests)
			want[at] = 1
			if got != want {
				t.Errorf("%d requests count as %v, want %v", requests, got, want)
			}
		}
	}
}

// endedTransfer is a transfer that is over.
type endedTransfer struct {
	state disagg.State
	err   error
}

func (e endedTransfer) State() disagg.State         { return e.state }
func (e endedTransfer) Err() error                  { return e.err }
func (e endedTransfer) Abort(error)                 {}
func (e endedTransfer) Stats() disagg.TransferStats { return disagg.TransferStats{} }

func TestReleaseOutcome(t *testing.T) {
	failed := func(reason disagg.Reason) error { return fmt.Errorf("x: %w", &disagg.Error{Reason: reason}) }
	tests := []struct {
		name, reason string
		transfer     endedTransfer
		want         report.ReleaseOutcome
	}{
		{"done", "it came over after all", endedTransfer{disagg.Done, nil}, report.ReleaseDrained},
		{"aborted", "the peer has heard of it", endedTransfer{disagg.Failed, failed(disagg.ReasonAborted)}, report.ReleaseDrained},
		{"aborted there", "both have", endedTransfer{disagg.Failed, failed(disagg.ReasonPeerAborted)}, report.ReleaseDrained},
		{"silence", "", endedTransfer{disagg.Failed, failed(disagg.ReasonTimeout)}, report.ReleaseTimeout},
		{"death", "", endedTransfer{disagg.Failed, failed(disagg.ReasonPeerDied)}, report.ReleaseError},
		{"other", "what is no transfer's own error", endedTransfer{disagg.Failed, errors.New("x")}, report.ReleaseError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := (&handoff{transfer: tt.transfer}).release(); got != tt.want {
				t.Errorf("%s: %s, want %s", tt.reason, got, tt.want)
			}
		})
	}
}
