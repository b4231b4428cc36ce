package observe

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

func TestRankLoads(t *testing.T) {
	taken := metav1.NewTime(epoch)
	for _, tc := range []struct {
		name   string
		reason string
		role   v1alpha1.Role
		sample PoolSample
		want   []v1alpha1.RankLoad
	}{
		{name: "NoPods", reason: "there is nothing to tell", role: v1alpha1.RoleDecode, sample: sample()},
		{
			name: "Busiest", reason: "the most requests come first, then the most memory, then names", role: v1alpha1.RoleUnified,
			sample: sample(
				PodSample{Name: "u-0-0", Taken: epoch, Ranks: []loads.Load{
					{DPRank: 0, NumRunningReqs: 1, TokenUsage: 0.1, Utilization: 0.25, GenThroughput: 12.34, CacheHitRate: 0.5},
					{DPRank: 1, NumRunningReqs: 1, NumWaitingReqs: 2, TokenUsage: 0.2},
				}},
				PodSample{Name: "u-1-0", Taken: epoch, Draining: true, Ranks: []loads.Load{{NumRunningReqs: 1, TokenUsage: 0.3}}},
				PodSample{Name: "u-2-0", Taken: epoch.Add(-fresh - 1), Ranks: []loads.Load{{NumRunningReqs: 9}}},
			),
			want: []v1alpha1.RankLoad{
				{Pod: "u-0-0", DPRank: 1, RunningRequests: 1, WaitingRequests: 2, Utilization: "0.00", TokenUsage: "0.20", CacheHitRate: "0.00", GenThroughput: "0.0", SampleTime: taken},
				{Pod: "u-1-0", Draining: true, RunningRequests: 1, Utilization: "0.00", TokenUsage: "0.30", CacheHitRate: "0.00", GenThroughput: "0.0", SampleTime: taken},
				{Pod: "u-0-0", RunningRequests: 1, Utilization: "0.25", TokenUsage: "0.10", CacheHitRate: "0.50", GenThroughput: "12.3", SampleTime: taken},
			},
		},
		{
			name: "Sentinels", reason: "what is never a number is absent, whatever stands in the wire", role: v1alpha1.RoleUnified,
			sample: sample(PodSample{Name: "u-0-0", Taken: epoch, Ranks: []loads.Load{
				{Utilization: -1, TokenUsage: math.NaN(), GenThroughput: math.Inf(1), CacheHitRate: -0.5},
			}}),
			want: []v1alpha1.RankLoad{{Pod: "u-0-0", SampleTime: taken}},
		},
		{
			name: "Prefill", reason: "it has no utilization even where one is told, and its hand-over is a queue", role: v1alpha1.RolePrefill,
			sample: sample(PodSample{Name: "p-0-0", Taken: epoch, Ranks: []loads.Load{
				{NumWaitingReqs: 3, Utilization: 0.5, Disaggregation: &loads.Disaggregation{PrefillBootstrapQueueReqs: 1, PrefillInflightQueueReqs: 2}, Queues: &loads.Queues{Waiting: 2}},
			}}),
			want: []v1alpha1.RankLoad{{Pod: "p-0-0", WaitingRequests: 5, TokenUsage: "0.00", CacheHitRate: "0.00", GenThroughput: "0.0", SampleTime: taken}},
		},
		{
			name: "Decode", reason: "it computes no prompts, so it finds none in a cache", role: v1alpha1.RoleDecode,
			sample: sample(PodSample{Name: "d-0-0", Taken: epoch, Ranks: []loads.Load{{CacheHitRate: 0.5}}}),
			want:   []v1alpha1.RankLoad{{Pod: "d-0-0", Utilization: "0.00", TokenUsage: "0.00", GenThroughput: "0.0", SampleTime: taken}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, more := RankLoads(tc.sample, tc.role, epoch)
			if diff := cmp.Diff(tc.want, got); diff != "" || more != 0 {
				t.Errorf("%s: %d more, (-want +got):\n%s", tc.reason, more, diff)
			}
		})
	}
}

// TestRankLoadsAreBounded: of very many ranks the busiest are told, and how many there are besides.
func TestRankLoadsAreBounded(t *testing.T) {
	var pods []PodSample
	for i := range MaxRankLoads + 7 {
		pods = append(pods, PodSample{Name: fmt.Sprintf("u-%03d-0", i), Taken: epoch, Ranks: []loads.Load{{NumRunningReqs: i}}})
	}
	got, more := RankLoads(sample(pods...), v1alpha1.RoleUnified, epoch)
	if len(got) != MaxRankLoads || more != 7 || got[0].RunningRequests != MaxRankLoads+6 || got[MaxRankLoads-1].RunningRequests != 7 {
		t.Errorf("%d ranks and %d more, from %+v to %+v", len(got), more, got[0], got[len(got)-1])
	}
}

func TestSameRankLoads(t *testing.T) {
	at := func(seconds int, running int64) []v1alpha1.RankLoad {
		return []v1alpha1.RankLoad{{Pod: "u-0-0", RunningRequests: running, SampleTime: metav1.NewTime(epoch.Add(time.Duration(seconds) * time.Second))}}
	}
	for _, tc := range []struct {
		name string
		a, b []v1alpha1.RankLoad
		want bool
	}{
		{"None", nil, nil, true},
		{"OtherTime", at(0, 1), at(5, 1), true},
		{"OtherNumber", at(0, 1), at(0, 2), false},
		{"OneGone", at(0, 1), nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := SameRankLoads(tc.a, tc.b); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
