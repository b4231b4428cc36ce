package scheduler

import "math"

// pickPrefill continues the prompts that are partly computed and admits waiting sequences within the budget, in the order of
// the queue. Admitted ones get pages for all their tokens at once, so a prompt that has begun never waits for
// memory.
func (s *Scheduler) pickPrefill() batch {
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
		if !ok && s.preempt(q, w, &b) {
			n, ok = b.take(w)
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
		return batch{}
	}
	return batch{kind: prefillBatch, items: items}
}
