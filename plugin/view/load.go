package view

import (
	"math"
	"strconv"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

// Answer is what the leader of a replica said to /v1/loads, or why it did not.
type Answer struct {
	Loads []loads.Load
	Note  string // "" when Loads holds

	// Forbidden: the user may not ask it.
	Forbidden bool
}

// newLoad gives the load of one data-parallel group. A sentinel is no number.
func newLoad(l loads.Load) *Load {
	v := &Load{
		Running: int64(l.NumRunningReqs), Waiting: int64(l.NumWaitingReqs), UsedTokens: int64(l.NumUsedTokens),
		TokenCapacity: int64(l.MaxTotalNumTokens), TokenUsage: number(l.TokenUsage), Utilization: number(l.Utilization),
		Throughput: number(l.GenThroughput), CacheHitRate: number(l.CacheHitRate), Ranks: 1, Expected: 1,
	}
	if q := l.Queues; q != nil {
		v.Queues.Waiting, v.Queues.Grammar, v.Queues.Paused, v.Queues.Retracted = int64(q.Waiting), int64(q.Grammar), int64(q.Paused), int64(q.Retracted)
	}
	if d := l.Disaggregation; d != nil {
		v.Queues.PrefillBootstrap, v.Queues.PrefillInflight = int64(d.PrefillBootstrapQueueReqs), int64(d.PrefillInflightQueueReqs)
		v.Queues.DecodePrealloc, v.Queues.DecodeTransfer = int64(d.DecodePreallocQueueReqs), int64(d.DecodeTransferQueueReqs)
		v.Queues.Retracted = max(v.Queues.Retracted, int64(d.DecodeRetractedQueueReqs))
	}
	return v
}

// statusLoad gives the load that the operator wrote into the status of a pool.
func statusLoad(l *v1alpha1.PoolLoad) Load {
	v := Load{
		Running: l.RunningRequests, TokenUsage: spread(l.TokenUsage), Utilization: spread(l.Utilization), CacheHitRate: spread(l.CacheHitRate),
		Queues: Queues{
			Waiting: l.WaitingRequests, Grammar: l.GrammarRequests, Paused: l.PausedRequests, Retracted: max(l.RetractedRequests, count(l.DecodeRetractedQueue)),
			PrefillBootstrap: count(l.PrefillBootstrapQueue), PrefillInflight: count(l.PrefillInflightQueue),
			DecodePrealloc: count(l.DecodePreallocQueue), DecodeTransfer: count(l.DecodeTransferQueue),
		},
		Ranks: int(l.Ranks), Expected: int(l.ExpectedRanks),
	}
	for _, q := range v.Queues.list() {
		v.Waiting += q.n
	}
	if rate, err := strconv.ParseFloat(l.GenThroughput, 64); err == nil {
		v.Throughput = number(rate)
	}
	return v
}

// spread gives the mean of a value over ranks; nil where they have none.
func spread(s *v1alpha1.Spread) *float64 {
	if s == nil {
		return nil
	}
	mean, err := strconv.ParseFloat(s.Mean, 64)
	if err != nil {
		return nil
	}
	return number(mean)
}

func count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// number gives nil for what says that there is no number: negative values, infinities and NaN.
func number(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
		return nil
	}
	return &x
}

// sum adds the loads of ranks; expected is how many there ought to be.
func sum(parts []*Load, expected int) Load {
	total := Load{Expected: expected}
	var usage, utilization, hits mean
	for _, l := range parts {
		if l == nil {
			continue
		}
		total.Ranks += l.Ranks
		total.Running += l.Running
		total.Waiting += l.Waiting
		total.UsedTokens += l.UsedTokens
		total.TokenCapacity += l.TokenCapacity
		usage.add(l.TokenUsage)
		utilization.add(l.Utilization)
		hits.add(l.CacheHitRate)
		if l.Throughput != nil {
			if total.Throughput == nil {
				total.Throughput = new(0.0)
			}
			*total.Throughput += *l.Throughput
		}
		q := &total.Queues
		q.Waiting += l.Queues.Waiting
		q.Grammar += l.Queues.Grammar
		q.Paused += l.Queues.Paused
		q.Retracted += l.Queues.Retracted
		q.PrefillBootstrap += l.Queues.PrefillBootstrap
		q.PrefillInflight += l.Queues.PrefillInflight
		q.DecodePrealloc += l.Queues.DecodePrealloc
		q.DecodeTransfer += l.Queues.DecodeTransfer
	}
	total.TokenUsage, total.Utilization, total.CacheHitRate = usage.value(), utilization.value(), hits.value()
	return total
}

// mean is a mean over values of which some are absent.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(x *float64) {
	if x != nil {
		m.sum += *x
		m.n++
	}
}

// value is rounded to four decimals, as the engine's are; nil when nothing was added.
func (m *mean) value() *float64 {
	if m.n == 0 {
		return nil
	}
	return new(math.Round(m.sum/float64(m.n)*1e4) / 1e4)
}
