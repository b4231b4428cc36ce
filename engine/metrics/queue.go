package metrics

import (
	"slices"

	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// queueCounts says where the length of each queue is in a snapshot.
var queueCounts = []struct {
	family *Family
	read   func(report.Snapshot) report.QueueCount
}{
	{numRunningReqs, func(s report.Snapshot) report.QueueCount { return s.NumRunningReqs }},
	{numQueueReqs, func(s report.Snapshot) report.QueueCount { return s.NumQueueReqs }},
	{prefillBootstrapQueue, func(s report.Snapshot) report.QueueCount { return s.NumPrefillBootstrapQueueReqs }},
	{prefillInflightQueue, func(s report.Snapshot) report.QueueCount { return s.NumPrefillInflightQueueReqs }},
	{decodePreallocQueue, func(s report.Snapshot) report.QueueCount { return s.NumDecodePreallocQueueReqs }},
	{decodeTransferQueue, func(s report.Snapshot) report.QueueCount { return s.NumDecodeTransferQueueReqs }},
	{decodeHostReceive, func(s report.Snapshot) report.QueueCount { return s.NumDecodeHostReceiveQueueReqs }},
}

const (
	// maxPriorities bounds the priorities that have a series of their own: clients choose the values.
	maxPriorities = 64
	// otherPriorities is the label of all further ones.
	otherPriorities = "other"
)

// queueGauge is the length of a queue: the total, and with priority scheduling one sample for each priority that was ever
// seen, 0 when it has drained. Invariant: as many values as series; after set the values sum to the total.
type queueGauge struct {
	family *Family
	read   func(report.Snapshot) report.QueueCount
	total  GaugeSeries

	create func(priority string) GaugeSeries // nil: totals alone
	seen   []report.Priority                 // of series, which may have one more, for the others
	series []GaugeSeries
	values []int
}

// newQueueGauge makes the total's series, whose labels hold an empty priority when priorities are counted.
func newQueueGauge(b Backend, f *Family, labels []Label, priorities bool, read func(report.Snapshot) report.QueueCount) queueGauge {
	q := queueGauge{family: f, read: read, total: b.Gauge(f, labels)}
	if !priorities {
		return q
	}
	q.create = func(priority string) GaugeSeries {
		own := slices.Clone(labels)
		for i := range own {
			if own[i].Name == priorityLabel {
				own[i].Value = priority
			}
		}
		return b.Gauge(f, own)
	}
	return q
}

// set writes the counts as of a wall time.
func (q *queueGauge) set(c report.QueueCount, wallNanos int64) {
	q.total.Set(float64(c.Total), wallNanos)
	if q.create == nil {
		return
	}
	clear(q.values)
	for _, p := range c.ByPriority {
		q.values[q.index(p.Priority)] += p.Count
	}
	for i, s := range q.series {
		s.Set(float64(q.values[i]), wallNanos)
	}
}

// index is where a priority is counted.
func (q *queueGauge) index(p report.Priority) int {
	if i := slices.Index(q.seen, p); i >= 0 {
		return i
	}
	if len(q.seen) < maxPriorities {
		q.seen = append(q.seen, p)
		q.add(p.String())
	} else if len(q.series) == maxPriorities {
		q.add(otherPriorities)
	}
	return len(q.series) - 1
}

func (q *queueGauge) add(priority string) {
	q.series = append(q.series, q.create(priority))
	q.values = append(q.values, 0)
}
