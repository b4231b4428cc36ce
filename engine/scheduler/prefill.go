package scheduler

import "math"

// pickPrefill continues the prompts that are partly computed and admits waiting sequences within the budget, in the order of
// the queue. Admitted ones begin with what the prefix cache has of them and get pages for the rest of their tokens at once,
// so a prompt that has begun never waits for memory.
//
// With await nothing is to be launched until the results in flight are taken: a request waits that will preempt others
// then. What was admitted has its pages and is picked after that.
//
// beside is what the same step decodes.
func (s *Scheduler) pickPrefill(beside decodes) (_ batch, await bool) {
	chunk := s.cfg.ChunkTokens
	if chunk == 0 {
		chunk = math.MaxInt
	}
	b := budget{
		slots:       min(s.cfg.MaxRunning-len(s.in[stateRunning])-len(s.in[statePrefilling]), s.cfg.share(s.cfg.MaxRunning)),
		inputTokens: s.cfg.MaxPrefillTokens - beside.tokens,
		chunkTokens: chunk - beside.tokens,
		kvTokens:    s.kvTokens(),
		freeTokens:  s.roomTokens() - beside.pages*s.cfg.PageSize,
		windowPages: s.unclaimed(),
		alone:       len(s.in[stateRunning]) == 0 && len(s.in[statePrefilling]) == 0,
	}
	items := s.scratch.items[:0]
	for _, q := range s.in[statePrefilling] {
		if n := b.proceed(len(q.tokens) - q.launched); n > 0 {
			items = append(items, item{seq: q, n: n})
		}
	}
	var queue []*sequence
	if b.chunkTokens > 0 && (b.slots > 0 || s.cfg.Priorities.preempts()) { // else nobody would be admitted, and the queue may be long
		queue = s.queue()
	}
	for _, q := range queue {
		if q.masking != nil {
			continue // it was retracted before it was known what may follow
		}
		f := s.find(q)
		w := s.want(q, f)
		n, ok := b.take(w)
		if !ok {
			switch s.preempt(q, w, &b) {
			case preemptAwait:
				return batch{}, true
			case preemptDone: // and what they had computed is in the cache
				f = s.find(q)
				w = s.want(q, f)
				n, ok = b.take(w)
			case preemptNone:
			}
		}
		for !ok && len(items) == 0 && b.alone && len(s.flight.steps) == 0 && s.yieldSession() {
			b.freeTokens, b.windowPages = s.roomTokens(), s.unclaimed()
			f = s.find(q)
			w = s.want(q, f)
			n, ok = b.take(w)
		}
		if !ok {
			break
		}
		s.reuse(q, f)
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

// decodes is what next tokens of running sequences take of a step.
type decodes struct {
	tokens int
	pages  int // that their sequences do not have yet
}

// readyDecodes is what all next tokens that can be computed now would take.
func (s *Scheduler) readyDecodes() decodes {
	var d decodes
	for _, st := range []state{stateRunning, statePrefilling} {
		for _, q := range s.in[st] {
			if s.nextToken(q) == tokenReady {
				d.tokens++
				d.pages += s.pagesFor(q, q.launched+1)
			}
		}
	}
	return d
}

// pickMixed picks chunks and adds the next tokens of running sequences, which count against the chunk. ok is false when
// they leave no room for chunks; then prefill and decode take turns.
func (s *Scheduler) pickMixed() (_ batch, ok bool) {
	beside := s.readyDecodes()
	if beside.tokens >= s.cfg.ChunkTokens {
		return batch{}, false
	}
	b, await := s.pickPrefill(beside)
	if await {
		return batch{}, true
	}
	if b.kind == noBatch {
		return s.pickDecode(), true
	}
	mixed := append(s.scratch.mixed[:0], b.items...)
	d := s.pickDecode() // after a preemption there may be less than before
	mixed = append(mixed, d.items...)
	s.scratch.mixed = mixed
	if d.kind == noBatch {
		return batch{kind: prefillBatch, items: mixed}, true
	}
	return batch{kind: mixedBatch, items: mixed}, true
}
