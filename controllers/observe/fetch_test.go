package observe

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-dev/sluice/engine/loads"
)

func TestParse(t *testing.T) {
	rank := `"dp_rank":0,"num_running_reqs":2,"num_waiting_reqs":1,"token_usage":0.25,"gen_throughput":12.5,"cache_hit_rate":0.125,"utilization":0.5`
	want := loads.Load{NumRunningReqs: 2, NumWaitingReqs: 1, TokenUsage: 0.25, GenThroughput: 12.5, CacheHitRate: 0.125, Utilization: 0.5, NumWaitingUncached: -1, TotalPrefillUncached: -1, TotalPrefillBusyMicro: -1}

	for _, tc := range []struct {
		name   string
		reason string
		body   string
		want   []loads.Load
		err    string
	}{
		{name: "One", reason: "the plain case", body: `{"loads":[{` + rank + `}]}`, want: []loads.Load{want}},
		{name: "UnknownFields", reason: "engines may say more", body: `{"later":1,"loads":[{` + rank + `,"decode_moments":null}]}`, want: []loads.Load{want}},
		{name: "NullUtilization", reason: "null is no number, and so not 0",
			body: `{"loads":[{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0,"token_usage":null,"utilization":null}]}`,
			want: []loads.Load{{TokenUsage: math.NaN(), GenThroughput: math.NaN(), CacheHitRate: math.NaN(), Utilization: math.NaN(), NumWaitingUncached: -1, TotalPrefillUncached: -1, TotalPrefillBusyMicro: -1}}},
		{name: "Sorted", reason: "ranks ascend whatever the engine's order",
			body: `{"loads":[{"dp_rank":1,"num_running_reqs":0,"num_waiting_reqs":0,"token_usage":0,"gen_throughput":0,"cache_hit_rate":0,"utilization":0},{` + rank + `}]}`,
			want: []loads.Load{want, {DPRank: 1, NumWaitingUncached: -1, TotalPrefillUncached: -1, TotalPrefillBusyMicro: -1}}},
		{name: "Empty", reason: "no body", body: ``, err: "read the answer"},
		{name: "HTML", reason: "a proxy's page", body: `<html>`, err: "read the answer"},
		{name: "NaN", reason: "not JSON", body: `{"loads":[{"dp_rank":0,"utilization":NaN}]}`, err: "read the answer"},
		{name: "Null", reason: "JSON without loads", body: `null`, err: "loads is empty"},
		{name: "NoLoads", reason: "an engine has at least one rank", body: `{"loads":[]}`, err: "loads is empty"},
		{name: "NoRunning", reason: "a missing count is not 0", body: `{"loads":[{"dp_rank":0,"num_waiting_reqs":0}]}`, err: "loads[0].num_running_reqs is missing"},
		{name: "NegativeWaiting", reason: "a count is not negative", body: `{"loads":[{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":-1}]}`, err: "loads[0].num_waiting_reqs is -1, want 0 to"},
		{name: "AbsurdRunning", reason: "sums must not overflow", body: `{"loads":[{"dp_rank":0,"num_running_reqs":9000000000000000000,"num_waiting_reqs":0}]}`, err: "num_running_reqs is 9000000000000000000"},
		{name: "NegativeQueue", reason: "a negative queue could hide another", body: `{"loads":[{` + rank + `,"disaggregation":{"prefill_inflight_queue_reqs":-1}}]}`, err: "loads[0].disaggregation has a queue"},
		{name: "Twice", reason: "two answers for one rank", body: `{"loads":[{` + rank + `},{` + rank + `}]}`, err: "dp_rank 0 is there twice"},
		{name: "TooMany", reason: "memory is bounded", body: `{"loads":[` + strings.Repeat(`{},`, maxRanks) + `{}]}`, err: "want at most 1024"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parse([]byte(tc.body))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got error %v, want one with %q: %s", err, tc.err, tc.reason)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v: %s", err, tc.reason)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestParseFullAnswer reads an answer with every section.
func TestParseFullAnswer(t *testing.T) {
	body, err := os.ReadFile(filepath.Join("testdata", "loads_decode.json"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse(body)
	if err != nil {
		t.Fatal(err)
	}
	want := []loads.Load{{
		Timestamp: 1796040000.25, DPRank: 0, NumRunningReqs: 7, NumWaitingReqs: 9, NumWaitingUncached: 321, NumUsedTokens: 4096,
		NumTotalTokens: 5000, NumActiveTokens: 4500, MaxTotalNumTokens: 8192, MaxRunningRequests: 16, TokenUsage: 0.5,
		GenThroughput: 210.55, CacheHitRate: 0.125, Utilization: 0.5556, TotalPrefillUncached: 77, TotalPrefillBusyMicro: 88,
		Memory: &loads.Memory{WeightGB: 1.5, KVCacheGB: 2.5, GraphGB: 0.5, TokenCapacity: 8192},
		Disaggregation: &loads.Disaggregation{Mode: "decode", DecodePreallocQueueReqs: 2, DecodeTransferQueueReqs: 3,
			DecodeRetractedQueueReqs: 1, KVTransferSpeedGBs: 1.25, KVTransferLatencyMs: 3.5},
		Queues: &loads.Queues{Waiting: 3, Grammar: 4, Paused: 5, Retracted: 1, PreallocReady: 2},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n, ok := (PodSample{Role: "Decode", Ranks: got}).Outstanding(); !ok || n != 7+9+4+5 {
		t.Errorf("outstanding: got %d, %t; want running 7 + waiting 9 + grammar 4 + paused 5", n, ok)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"loads":[{"dp_rank":0,"num_running_reqs":2,"num_waiting_reqs":1,"utilization":-1}]}`))
	f.Add([]byte(`{"loads":[{"DP_RANK":0}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		ranks, err := parse(body)
		if err != nil {
			return
		}
		if len(ranks) == 0 || len(ranks) > maxRanks {
			t.Fatalf("%d ranks", len(ranks))
		}
		for i, r := range ranks {
			if i > 0 && ranks[i-1].DPRank >= r.DPRank {
				t.Fatalf("rank %d after %d", r.DPRank, ranks[i-1].DPRank)
			}
			if r.NumRunningReqs < 0 || r.NumWaitingReqs < 0 || waiting(r) < 0 {
				t.Fatalf("negative count in %+v", r)
			}
			if n, ok := rankOutstanding("Decode", r); ok && n < int64(r.NumRunningReqs)+int64(r.NumWaitingReqs) {
				t.Fatalf("outstanding %d is less than the counts of %+v", n, r)
			}
		}
		Load(PoolSample{Pods: []PodSample{{Name: "a", Taken: epoch, Ranks: ranks}}, FreshFor: fresh}, "Decode", nil, epoch)
	})
}
