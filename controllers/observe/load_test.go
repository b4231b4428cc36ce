package observe

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

// epoch is when the tests begin.
var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

const fresh = 10 * time.Second

func sample(pods ...PodSample) PoolSample { return PoolSample{Pods: pods, FreshFor: fresh} }

func TestLoad(t *testing.T) {
	prefill := loads.Load{
		NumRunningReqs: 2, NumWaitingReqs: 12, TokenUsage: 0.5, GenThroughput: 0, CacheHitRate: 0.25, Utilization: -1,
		Disaggregation: &loads.Disaggregation{Mode: "prefill", PrefillBootstrapQueueReqs: 5, PrefillInflightQueueReqs: 3},
		Queues:         &loads.Queues{Waiting: 7},
	}
	decode := func(rank int, utilization, usage float64) loads.Load {
		return loads.Load{
			DPRank: rank, NumRunningReqs: 4, NumWaitingReqs: 16, TokenUsage: usage, GenThroughput: 100.04, Utilization: utilization,
			Disaggregation: &loads.Disaggregation{Mode: "decode", DecodePreallocQueueReqs: 5, DecodeTransferQueueReqs: 6, DecodeRetractedQueueReqs: 2},
			Queues:         &loads.Queues{Waiting: 3, Retracted: 2},
		}
	}
	refused := errors.New("connection refused")

	for _, tc := range []struct {
		name     string
		reason   string
		sample   PoolSample
		role     v1alpha1.Role
		expected []Rank
		want     *v1alpha1.PoolLoad
		missing  []Missing
	}{
		{
			name:     "NoPods",
			reason:   "a pool without engines has no load, and everything is missing",
			sample:   sample(),
			role:     v1alpha1.RoleUnified,
			expected: []Rank{{"a-0-0", 0}},
			missing:  []Missing{{Rank: Rank{"a-0-0", 0}, Reason: MissingNoSample}},
		},
		{
			name:   "Prefill",
			reason: "the sentinel is never a number, and prefill shows its own queues alone",
			sample: sample(PodSample{Name: "p-0-0", Taken: epoch, Ranks: []loads.Load{prefill}}),
			role:   v1alpha1.RolePrefill, expected: []Rank{{"p-0-0", 0}},
			want: &v1alpha1.PoolLoad{
				TokenUsage:      &v1alpha1.Spread{Min: "0.50", Mean: "0.50", Max: "0.50", MaxAt: "p-0-0/0"},
				RunningRequests: 2, WaitingRequests: 7,
				PrefillBootstrapQueue: new(int64(5)), PrefillInflightQueue: new(int64(3)),
				CacheHitRate: &v1alpha1.Spread{Min: "0.25", Mean: "0.25", Max: "0.25", MaxAt: "p-0-0/0"}, MostLoaded: "p-0-0/0",
				GenThroughput: "0.0", Ranks: 1, ExpectedRanks: 1, SampleTime: new(metav1.NewTime(epoch)),
			},
		},
		{
			name:   "DecodeSpread",
			reason: "the spread names the slowest rank; the time is the oldest sample's",
			sample: sample(
				PodSample{Name: "d-0-0", Taken: epoch, Ranks: []loads.Load{decode(0, 0.2, 0.1), decode(1, 1.1, 0.2)}},
				PodSample{Name: "d-1-0", Taken: epoch.Add(-time.Second), Ranks: []loads.Load{decode(0, 0.125, 0.9)}},
			),
			role: v1alpha1.RoleDecode, expected: []Rank{{"d-0-0", 0}, {"d-0-0", 1}, {"d-1-0", 0}},
			want: &v1alpha1.PoolLoad{
				Utilization:     &v1alpha1.Spread{Min: "0.13", Mean: "0.48", Max: "1.10", MaxAt: "d-0-0/1"},
				TokenUsage:      &v1alpha1.Spread{Min: "0.10", Mean: "0.40", Max: "0.90", MaxAt: "d-1-0/0"},
				RunningRequests: 12, WaitingRequests: 9,
				DecodePreallocQueue: new(int64(15)), DecodeTransferQueue: new(int64(18)), DecodeRetractedQueue: new(int64(6)),
				MostLoaded:    "d-0-0/0",
				GenThroughput: "300.1", Ranks: 3, ExpectedRanks: 3, SampleTime: new(metav1.NewTime(epoch.Add(-time.Second))),
			},
		},
		{
			name:   "StaleAndAbsent",
			reason: "a stale sample and a rank that is not in a fresh one are named and are no numbers",
			sample: sample(
				PodSample{Name: "d-0-0", Taken: epoch, Ranks: []loads.Load{decode(0, 0.5, 0.5)}},
				PodSample{Name: "d-1-0", Taken: epoch.Add(-fresh - 1), Ranks: []loads.Load{decode(0, 9, 9)}, Err: refused},
				PodSample{Name: "d-2-0", Err: refused},
				PodSample{Name: "d-3-0"},
				PodSample{Name: "d-4-0", Taken: epoch.Add(-fresh - 1), Ranks: []loads.Load{decode(0, 9, 9)}},
			),
			role: v1alpha1.RoleDecode, expected: []Rank{{"d-0-0", 0}, {"d-0-0", 1}, {"d-1-0", 0}, {"d-2-0", 0}, {"d-3-0", 0}, {"d-4-0", 0}},
			want: &v1alpha1.PoolLoad{
				Utilization:     &v1alpha1.Spread{Min: "0.50", Mean: "0.50", Max: "0.50", MaxAt: "d-0-0/0"},
				TokenUsage:      &v1alpha1.Spread{Min: "0.50", Mean: "0.50", Max: "0.50", MaxAt: "d-0-0/0"},
				RunningRequests: 4, WaitingRequests: 3,
				DecodePreallocQueue: new(int64(5)), DecodeTransferQueue: new(int64(6)), DecodeRetractedQueue: new(int64(2)),
				MostLoaded:    "d-0-0/0",
				GenThroughput: "100.0", Ranks: 1, ExpectedRanks: 6, SampleTime: new(metav1.NewTime(epoch)),
			},
			missing: []Missing{
				{Rank: Rank{"d-0-0", 1}, Reason: MissingRank},
				{Rank: Rank{"d-1-0", 0}, Reason: MissingDown, Err: refused},
				{Rank: Rank{"d-2-0", 0}, Reason: MissingDown, Err: refused},
				{Rank: Rank{"d-3-0", 0}, Reason: MissingNoSample},
				{Rank: Rank{"d-4-0", 0}, Reason: MissingStale},
			},
		},
		{
			name:   "ExactlyAsOldAsFreshFor",
			reason: "a sample counts up to and at the limit",
			sample: sample(PodSample{Name: "u-0-0", Taken: epoch.Add(-fresh), Ranks: []loads.Load{{Utilization: 0.5}}}),
			role:   v1alpha1.RoleUnified, expected: []Rank{{"u-0-0", 0}},
			want: &v1alpha1.PoolLoad{
				Utilization:   &v1alpha1.Spread{Min: "0.50", Mean: "0.50", Max: "0.50", MaxAt: "u-0-0/0"},
				TokenUsage:    &v1alpha1.Spread{Min: "0.00", Mean: "0.00", Max: "0.00", MaxAt: "u-0-0/0"},
				CacheHitRate:  &v1alpha1.Spread{Min: "0.00", Mean: "0.00", Max: "0.00", MaxAt: "u-0-0/0"},
				GenThroughput: "0.0", Ranks: 1, ExpectedRanks: 1, SampleTime: new(metav1.NewTime(epoch.Add(-fresh))),
			},
		},
		{
			name:   "DrainingPod",
			reason: "its requests are real, its ratios say nothing about the pool",
			sample: sample(
				PodSample{Name: "u-0-0", Taken: epoch, Ranks: []loads.Load{{NumRunningReqs: 3, NumWaitingReqs: 2, Utilization: 0.9, TokenUsage: 0.4, GenThroughput: 30}}},
				PodSample{Name: "u-1-0", Taken: epoch, Draining: true, Ranks: []loads.Load{{NumRunningReqs: 1, Utilization: 0.1, TokenUsage: 0.1, GenThroughput: 10}}},
			),
			role: v1alpha1.RoleUnified, expected: []Rank{{"u-0-0", 0}},
			want: &v1alpha1.PoolLoad{
				Utilization:     &v1alpha1.Spread{Min: "0.90", Mean: "0.90", Max: "0.90", MaxAt: "u-0-0/0"},
				TokenUsage:      &v1alpha1.Spread{Min: "0.40", Mean: "0.40", Max: "0.40", MaxAt: "u-0-0/0"},
				CacheHitRate:    &v1alpha1.Spread{Min: "0.00", Mean: "0.00", Max: "0.00", MaxAt: "u-0-0/0"},
				MostLoaded:      "u-0-0/0",
				RunningRequests: 4, WaitingRequests: 2, GenThroughput: "40.0", Ranks: 1, ExpectedRanks: 1,
				SampleTime: new(metav1.NewTime(epoch)),
			},
		},
		{
			name:   "NothingIsANumber",
			reason: "NaN and infinities leave no spread and add nothing",
			sample: sample(PodSample{Name: "u-0-0", Taken: epoch, Ranks: []loads.Load{{Utilization: math.NaN(), TokenUsage: math.Inf(1), GenThroughput: math.NaN(), CacheHitRate: -1}}}),
			role:   v1alpha1.RoleUnified,
			want:   &v1alpha1.PoolLoad{GenThroughput: "0.0", Ranks: 1, SampleTime: new(metav1.NewTime(epoch))},
		},
		{
			name:   "SlowAndQueued",
			reason: "the slowest is who gives each request the least, the most loaded who holds the most; who has no throughput yet is not slow",
			sample: sample(PodSample{Name: "u-0-0", Taken: epoch, Ranks: []loads.Load{
				{DPRank: 0, NumRunningReqs: 4, GenThroughput: 100, CacheHitRate: math.NaN(), TokenUsage: math.NaN(), Utilization: math.NaN()},
				{DPRank: 1, NumRunningReqs: 2, GenThroughput: 80, NumWaitingReqs: 3, CacheHitRate: math.NaN(), TokenUsage: math.NaN(), Utilization: math.NaN(),
					Queues: &loads.Queues{Waiting: 2, Grammar: 1, Paused: 1, Retracted: 1}},
				{DPRank: 2, NumRunningReqs: 1, CacheHitRate: math.NaN(), TokenUsage: math.NaN(), Utilization: math.NaN()},
			}}),
			role: v1alpha1.RoleUnified,
			want: &v1alpha1.PoolLoad{
				RunningRequests: 7, WaitingRequests: 2, GrammarRequests: 1, PausedRequests: 1, RetractedRequests: 1, GenThroughput: "180.0", Ranks: 3,
				MostLoaded: "u-0-0/1", Slowest: &v1alpha1.SlowRank{At: "u-0-0/0", TokensPerSecond: "25.0", Mean: "30.0"},
				SampleTime: new(metav1.NewTime(epoch)),
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			load, missing := Load(tc.sample, tc.role, tc.expected, epoch)
			if diff := cmp.Diff(tc.want, load); diff != "" {
				t.Errorf("load (-want +got), %s:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.missing, missing, cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) })); diff != "" {
				t.Errorf("missing (-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestMissingString(t *testing.T) {
	at := Rank{"chat-decode-0-0", 1}
	for want, m := range map[string]Missing{
		"chat-decode-0-0/1 (Stale)":                                         {Rank: at, Reason: MissingStale},
		"chat-decode-0-0/1 (RankAbsent)":                                    {Rank: at, Reason: MissingRank, Err: errors.New("changes from poll to poll")},
		"chat-decode-0-0/1 (TargetDown: /v1/loads does not answer in time)": {Rank: at, Reason: MissingDown, Err: errors.New("/v1/loads does not answer in time")},
		"chat-decode-0-0/1 (TargetDown: " + strings.Repeat("x", 120) + "…)": {Rank: at, Reason: MissingDown, Err: errors.New(strings.Repeat("x", 999))},
	} {
		if got := m.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSameLoad(t *testing.T) {
	at := func(seconds int, running int64) *v1alpha1.PoolLoad {
		return &v1alpha1.PoolLoad{
			RunningRequests: running, GenThroughput: "0.0", DecodePreallocQueue: new(int64(1)),
			Utilization: &v1alpha1.Spread{Min: "0.10", Mean: "0.10", Max: "0.10", MaxAt: "a/0"},
			SampleTime:  new(metav1.NewTime(epoch.Add(time.Duration(seconds) * time.Second))),
		}
	}
	for _, tc := range []struct {
		name string
		a, b *v1alpha1.PoolLoad
		want bool
	}{
		{"BothNil", nil, nil, true},
		{"OneNil", at(0, 0), nil, false},
		{"OtherNil", nil, at(0, 0), false},
		{"OtherTime", at(0, 0), at(2, 0), true},
		{"OtherNumber", at(0, 0), at(0, 1), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := SameLoad(tc.a, tc.b); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
