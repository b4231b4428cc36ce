package observe

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

// MaxRankLoads is how many ranks of a pool a status tells of.
const MaxRankLoads = 64

// RankLoads gives the loads of a pool's ranks with a fresh sample at now, the busiest first, and how many more there are
// than MaxRankLoads. Busy is who has the most requests, then who uses the most KV memory; ties go by name.
func RankLoads(sample PoolSample, role v1alpha1.Role, now time.Time) (ranks []v1alpha1.RankLoad, more int32) {
	type entry struct {
		v1alpha1.RankLoad
		usage fixed
	}
	var all []entry
	for _, pod := range sample.Pods {
		if !pod.Fresh(now, sample.FreshFor) {
			continue
		}
		for _, r := range pod.Ranks {
			e := entry{RankLoad: v1alpha1.RankLoad{
				Pod: pod.Name, DPRank: int32(r.DPRank), Draining: pod.Draining, RunningRequests: int64(r.NumRunningReqs), WaitingRequests: inQueues(r),
				TokenUsage: ratio(r.TokenUsage, 2), GenThroughput: ratio(r.GenThroughput, 1), SampleTime: metav1.NewTime(pod.Taken),
			}}
			if role != v1alpha1.RolePrefill {
				e.Utilization = ratio(r.Utilization, 2)
			}
			if role != v1alpha1.RoleDecode {
				e.CacheHitRate = ratio(r.CacheHitRate, 2)
			}
			e.usage, _ = number(r.TokenUsage)
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(
			cmp.Compare(b.RunningRequests+b.WaitingRequests, a.RunningRequests+a.WaitingRequests),
			cmp.Compare(b.usage, a.usage),
			cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.DPRank, b.DPRank),
		)
	})
	shown := all[:min(len(all), MaxRankLoads)]
	for _, e := range shown {
		ranks = append(ranks, e.RankLoad)
	}
	return ranks, int32(len(all) - len(shown))
}

// SameRankLoads says whether two lists differ in nothing but the times of the samples.
func SameRankLoads(a, b []v1alpha1.RankLoad) bool {
	return slices.EqualFunc(a, b, func(a, b v1alpha1.RankLoad) bool {
		a.SampleTime, b.SampleTime = metav1.Time{}, metav1.Time{}
		return a == b
	})
}

// ratio writes a number with some decimals; nothing for what is never a number.
func ratio(x float64, decimals int) string {
	n, ok := number(x)
	if !ok {
		return ""
	}
	return n.text(decimals)
}

// inQueues counts the requests of a rank that wait in any queue. Those that are paused in place count as running.
func inQueues(r loads.Load) int64 {
	n := int64(max(r.NumWaitingReqs, queued(r)))
	if d := r.Disaggregation; d != nil {
		n += int64(d.PrefillInflightQueueReqs)
	}
	return n
}

// text gives "POD/DPRANK".
func (r Rank) text() string { return r.Pod + "/" + strconv.Itoa(r.Rank) }

// busiest finds the rank with the most requests; the first of several.
type busiest struct {
	requests int64
	at       Rank
}

func (b *busiest) add(r loads.Load, at Rank) {
	if n := int64(r.NumRunningReqs) + inQueues(r); n > b.requests {
		b.requests, b.at = n, at
	}
}

func (b *busiest) api() string {
	if b.requests == 0 {
		return ""
	}
	return b.at.text()
}

// speeds compare what a running request gets on each rank. A rank that has not reported a throughput yet is left out: its
// requests have only begun, or it stands still, which others tell.
type speeds struct {
	ranks    int
	tokens   fixed // per second, of all ranks
	requests int
	slowest  fixed // tokens per second and request
	at       Rank
}

func (p *speeds) add(r loads.Load, at Rank) {
	n, ok := number(r.GenThroughput)
	if !ok || n == 0 || r.NumRunningReqs == 0 {
		return
	}
	each := mean(n, r.NumRunningReqs)
	if p.ranks == 0 || each < p.slowest {
		p.slowest, p.at = each, at
	}
	p.ranks++
	p.tokens += n
	p.requests += r.NumRunningReqs
}

func (p *speeds) api() *v1alpha1.SlowRank {
	if p.ranks < 2 {
		return nil
	}
	slowest, all := p.slowest.text(1), mean(p.tokens, p.requests).text(1)
	if slowest == all {
		return nil // they are alike
	}
	return &v1alpha1.SlowRank{At: p.at.text(), TokensPerSecond: slowest, Mean: all}
}
