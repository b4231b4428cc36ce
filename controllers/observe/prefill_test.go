package observe

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/engine/loads"
)

func TestPrefillHistory(t *testing.T) {
	rank := func(rank int, tokens, micros int64) loads.Load {
		return loads.Load{DPRank: rank, TotalPrefillUncached: tokens, TotalPrefillBusyMicro: micros}
	}
	one := func(tokens, micros int64) []semantics.Work { return []semantics.Work{{Tokens: tokens, Micros: micros}} }
	type sample struct {
		second int
		ranks  []loads.Load
		want   []semantics.Work
	}
	for _, tc := range []struct {
		name    string
		reason  string
		samples []sample
	}{
		{"Nothing", "no prompt was ever computed", []sample{{0, []loads.Load{rank(0, 0, 0)}, one(0, 0)}, {2, []loads.Load{rank(0, 0, 0)}, one(0, 0)}}},
		{"FirstSample", "an engine that ran before the operator tells its lifetime", []sample{{0, []loads.Load{rank(0, 500, 1000)}, one(500, 1000)}}},
		{"Window", "only the last minute counts", []sample{
			{0, []loads.Load{rank(0, 100, 1000)}, one(100, 1000)},
			{2, []loads.Load{rank(0, 110, 1020)}, one(10, 20)},
			{15, []loads.Load{rank(0, 120, 1040)}, one(20, 40)},
			{30, []loads.Load{rank(0, 220, 1140)}, one(120, 140)},
			{75, []loads.Load{rank(0, 320, 1640)}, one(200, 600)},
			{90, []loads.Load{rank(0, 330, 1700)}, one(110, 560)},
		}},
		{"IdleKeepsTheRate", "the last measured rate goes on", []sample{
			{0, []loads.Load{rank(0, 100, 1000)}, one(100, 1000)},
			{20, []loads.Load{rank(0, 150, 1100)}, one(50, 100)},
			{200, []loads.Load{rank(0, 150, 1100)}, one(50, 100)},
			{400, []loads.Load{rank(0, 150, 1100)}, one(50, 100)},
		}},
		{"Restart", "another process begins anew", []sample{
			{0, []loads.Load{rank(0, 100, 1000)}, one(100, 1000)},
			{20, []loads.Load{rank(0, 150, 1100)}, one(50, 100)},
			{22, []loads.Load{rank(0, 7, 10)}, one(7, 10)},
			{24, []loads.Load{rank(0, 9, 14)}, one(2, 4)},
		}},
		{"Missing", "a field that is not there gives no rate", []sample{{0, []loads.Load{rank(0, -1, -1)}, one(0, 0)}}},
		{"Ranks", "each has its own", []sample{
			{0, []loads.Load{rank(0, 10, 10), rank(1, 0, 0)}, []semantics.Work{{Tokens: 10, Micros: 10}, {}}},
			{2, []loads.Load{rank(0, 10, 10), rank(1, 5, 50)}, []semantics.Work{{Tokens: 10, Micros: 10}, {Tokens: 5, Micros: 50}}},
			{4, []loads.Load{rank(1, 8, 60)}, []semantics.Work{{Tokens: 8, Micros: 60}}},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h prefillHistory
			for _, s := range tc.samples {
				got := h.add(epoch.Add(time.Duration(s.second)*time.Second), s.ranks)
				if diff := cmp.Diff(s.want, got); diff != "" {
					t.Errorf("second %d (-want +got), %s:\n%s", s.second, tc.reason, diff)
				}
				if n := len(h.marks); n > int(prefillWindow/prefillStep)+2 {
					t.Errorf("second %d: %d marks", s.second, n)
				}
			}
		})
	}
}
