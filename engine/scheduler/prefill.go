package scheduler

import "math"

// pickPrefill continues the prompts that are partly computed and admits waiting sequences, first come first served,
// within the budget. Admitted ones get pages for all their tokens at once, so a prompt that has begun never waits for
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
	for {
		q := s.nextToPrefill()
		if q == nil {
			break
		}
		pages := s.pagesFor(q, len(q.tokens))
		n, ok := b.take(want{tokens: len(q.tokens), poolTokens: pages * s.cfg.PageSize, growth: s.growth(q)})
		if !ok {
			break
		}
		s.allocate(q, len(q.tokens))
		s.becomePrefilling(q)
		items = append(items, item{seq: q, n: n})
	}
	s.scratch.items = items
	if len(items) == 0 {
		return batch{}
	}
	return batch{kind: prefillBatch, items: items}
}

// nextToPrefill is the sequence that is admitted next, nil when there is none: retracted ones come before those that
// never ran. Those that wait with their KV are not for prefill.
func (s *Scheduler) nextToPrefill() *sequence {
	if l := s.in[stateRetracted]; len(l) > 0 {
		return l[0]
	}
	for _, q := range s.in[stateWaiting] {
		if q.computed == 0 {
			return q
		}
	}
	return nil
}
