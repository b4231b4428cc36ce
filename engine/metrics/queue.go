package metrics

import (
	"slices"

	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// queueCounts says where the length of each queue is in a snapshot.
var queueCounts = []struct {
	family *Family
	read   func(*report.Snapshot) report.QueueCount
}{
	{numRunningReqs, func(s *report.Snapshot) report.QueueCount { return s.NumRunningReqs }},
	{numQueueReqs, func(s *report.Snapshot) report.QueueCount { return s.NumQueueReqs }},
	{prefillBootstrapQueue, func(s *report.Snapshot) report.QueueCount { return s.NumPrefillBootstrapQueueReqs }},
	{prefillInflightQueue, func(s *report.Snapshot) report.QueueCount { return s.NumPrefillInflightQueueReqs }},
	{decodePreallocQueue, func(s *report.Snapshot) report.QueueCount { return s.NumDecodePreallocQueueReqs }},
	{decodeTransferQueue, func(s *report.Snapshot) report.QueueCount { return s.NumDecodeTransferQueueReqs }},
	{decodeHostReceive, func(s *report.Snapshot) report.QueueCount { return s.NumDecodeHostReceiveQueueReqs }},
}

// queueGauge is the length of a queue: the total, and with priority scheduling one sample for each priority that was ever
// seen, 0 when it has drained. Invariant: as many values as series; after set the values sum to the total.
type queueGauge struct {
	family *Family
	read   func(*report.Snapshot) report.QueueCount
	total  GaugeSeries
	single priorities[GaugeSeries]
	values []int // by series of single
}

// newQueueGauge makes the total's series, whose labels hold an empty priority when priorities are counted.
func newQueueGauge(b Backend, f *Family, labels []Label, byPriority bool, most *budget, read func(*report.Snapshot) report.QueueCount) queueGauge {
	q := queueGauge{family: f, read: read, total: b.Gauge(f, labels)}
	if byPriority {
		most.watch(f)
		q.single = priorities[GaugeSeries]{budget: most, family: f, create: func(priority string) GaugeSeries {
			return b.Gauge(f, relabelled(labels, priorityLabel, priority))
		}}
	}
	return q
}

// set writes the counts as of a wall time.
func (q *queueGauge) set(c report.QueueCount, wallNanos int64) {
	q.total.Set(float64(c.Total), wallNanos)
	if q.single.create == nil {
		return
	}
	clear(q.values)
	for _, p := range c.ByPriority {
		at := q.single.index(p.Priority)
		for len(q.values) <= at {
			q.values = append(q.values, 0)
		}
		q.values[at] += p.Count
	}
	for i, s := range q.single.series {
		s.Set(float64(q.values[i]), wallNanos)
	}
}

// priorities are the series of single priorities, made when one is seen first. Invariant: as many series as priorities
// seen, or one more, for all others.
type priorities[S any] struct {
	create func(priority string) S // nil: there are none
	budget *budget
	family *Family
	seen   []report.Priority
	series []S
}

// get gives the series of a priority.
func (p *priorities[S]) get(of report.Priority) S { return p.series[p.index(of)] }

// index is where the series of a priority is.
func (p *priorities[S]) index(of report.Priority) int {
	if i := slices.Index(p.seen, of); i >= 0 {
		return i
	}
	if len(p.seen) < p.budget.most {
		p.seen = append(p.seen, of)
		p.series = append(p.series, p.create(of.String()))
		return len(p.series) - 1
	}
	p.budget.refuse(p.family)
	if len(p.series) == p.budget.most {
		p.series = append(p.series, p.create(OtherLabel))
	}
	return len(p.series) - 1
}
