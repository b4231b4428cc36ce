package scheduler

import "math"

// pickPrefill continues the prompts that are partly computed and admits waiting sequences within the budget, in the order of
// the queue. Admitted ones get pages for all their tokens at once, so a prompt that has begun never waits for
// memory.
//
// With await nothing is to be launched until the results in flight are taken: a request waits that will preempt others
// then. What was admitted has its pages and is picked after that.
func (s *Scheduler) pickPrefill() (_ batch, await bool) {
	chunk := s.cfg.ChunkTokens
	if chunk == 0 {
		chunk = math.MaxInt
	}
	b := budget{
		slots:       s.cfg.MaxRunning - len(s.in[stateRunning]) - len(s.in[statePrefilling]),
		inputTokens: s.cfg.MaxPrefillTokens,
		chunkTokens: chunk,
		kvTokens:    s.kvTokens(),
		freeTokens:  s.roomTokens(),
		alone:       len(s.in[stateRunning]) == 0 && len(s.in[statePrefilling]) == 0,
	}
	items := s.scratch.items[:0]
	for _, q := range s.in[statePrefilling] {
		if n := b.proceed(len(q.tokens) - q.launched); n > 0 {
			items = append(items, item{seq: q, n: n})
		}
	}
	for _, q := range s.queue() {
		w := want{tokens: len(q.tokens), poolTokens: s.pagesFor(q, len(q.tokens)) * s.cfg.PageSize, growth: s.growth(q)}
		n, ok := b.take(w)
		if !ok {
			switch s.preempt(q, w, &b) {
			case preemptAwait:
				return batch{}, true
			case preemptDone:
				n, ok = b.take(w)
			case preemptNone:
			}
		}
		if !ok {
			break
		}
		s.allocate(q, len(q.tokens))
		s.becomePrefilling(q)
		s.overtake(q)
		items = append(items, item{seq: q, n: n})
	}
	s.scratch.items = items
	if len(items) == 0 {
		return batch{}, false
	}
	return batch{kind: prefillBatch, items: items}, false
}
