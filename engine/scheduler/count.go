package scheduler

import (
	"cmp"
	"slices"

	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// count gives the number of sequences in some states, by priority where priorities decide.
func (s *Scheduler) count(states ...state) report.QueueCount {
	var c report.QueueCount
	for _, st := range states {
		for _, q := range s.in[st] {
			s.countOne(&c, q)
		}
	}
	return c
}

// countItems does the same for the sequences of a batch.
func (s *Scheduler) countItems(items []item) report.QueueCount {
	var c report.QueueCount
	for _, i := range items {
		s.countOne(&c, i.seq)
	}
	return c
}

// priorityOf gives the priority that decides over a sequence, unset where priorities decide nothing.
func (s *Scheduler) priorityOf(q *sequence) report.Priority {
	if s.cfg.Priorities.Enabled {
		if v := s.cfg.Priorities.resolve(q.req.Priority); v != nil {
			return report.Priority{Set: true, Value: *v}
		}
	}
	return report.Priority{}
}

func (s *Scheduler) countOne(c *report.QueueCount, q *sequence) {
	c.Total++
	if !s.cfg.Priorities.Enabled {
		return
	}
	p := s.priorityOf(q)
	at, found := slices.BinarySearchFunc(c.ByPriority, p, func(x report.PriorityCount, p report.Priority) int {
		return cmp.Or(falseFirst(x.Priority.Set, p.Set), cmp.Compare(x.Priority.Value, p.Value))
	})
	if !found {
		c.ByPriority = slices.Insert(c.ByPriority, at, report.PriorityCount{Priority: p})
	}
	c.ByPriority[at].Count++
}
