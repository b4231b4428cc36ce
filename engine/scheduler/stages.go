package scheduler

import (
	"cmp"
	"slices"
)

// With pipeline stages as many steps are in flight as there are stages. A running sequence is in one of them at most,
// because its next token comes out of the last stage; a prompt may be in several, a chunk in each. So what runs is cut into
// micro-batches: every step takes a fair part of it, and each stage has one to compute while the others compute theirs.

// share is the part of n that one micro-batch takes, rounded up.
func (c Config) share(n int) int {
	if c.Stages <= 1 {
		return n
	}
	return (n + c.Stages - 1) / c.Stages
}

// microBatch leaves of the running sequences that can be computed now the share of one step: those whose last step is
// longest ago, so that none waits for ever.
func (s *Scheduler) microBatch(items []item) []item {
	n := s.cfg.share(len(s.in[stateRunning]))
	if len(items) <= n {
		return items
	}
	slices.SortStableFunc(items, func(a, b item) int { return cmp.Compare(a.seq.step, b.seq.step) })
	return items[:n]
}
