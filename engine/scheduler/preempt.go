package scheduler

// preemption is what came of an attempt to preempt.
type preemption uint8

const (
	preemptNone  preemption = iota // nobody may be preempted, or it would not do
	preemptAwait                   // it would do, once the results in flight are taken
	preemptDone                    // places and pages are there
)

// preempt takes the places and the pages of running sequences that are less urgent than q by more than the threshold, so
// that q can be admitted. They are computed again later, as after a retraction, but they don't count as retracted for
// memory: that it sufficed for all of them was not the point.
func (s *Scheduler) preempt(q *sequence, w want, b *budget) preemption {
	if !s.cfg.Priorities.preempts() || !b.hasRoom(w) {
		return preemptNone
	}
	places := s.cfg.MaxRunning - s.running()
	if b.slots < 1 && places > 0 {
		return preemptNone // there are places, for other batches
	}
	running := make([]runner, len(s.in[stateRunning]))
	for i, r := range s.in[stateRunning] {
		running[i] = s.runner(r)
	}
	lack := shortage{
		places: 1 - places, tokens: max(w.poolTokens+w.growth-b.kvTokens, w.poolTokens-b.freeTokens), window: w.windowPages - b.windowPages,
	}
	var victims []*sequence
	for _, i := range preempted(running, q.urgency, s.cfg.Priorities.Threshold, lack) {
		victims = append(victims, s.in[stateRunning][i])
	}
	switch {
	case len(victims) == 0:
		return preemptNone
	case len(s.flight.steps) > 0:
		return preemptAwait
	}
	for _, v := range victims {
		free, growth := s.roomTokens(), s.growth(v)
		s.retract(v)
		freed := s.roomTokens() - free
		b.slots++
		b.freeTokens += freed
		b.kvTokens += freed + growth
		s.deps.Log.Info("preempted a running request", "rid", v.req.RID, "for", q.req.RID, "prompt_tokens", v.prompt, "answer_tokens", v.generated())
	}
	b.windowPages = s.unclaimed()
	return preemptDone
}

// runner is what preemption and retraction see of a running sequence.
func (s *Scheduler) runner(q *sequence) runner {
	return runner{
		urgency: q.urgency, arrival: q.arrival, prompt: q.prompt, generated: q.generated(), tokens: s.reclaimable(q) + s.growth(q),
		window: s.claim(q),
	}
}

// reclaimable is the pool tokens that become free or evictable when q gives its pages back: those of the cache that others
// keep too do not.
func (s *Scheduler) reclaimable(q *sequence) int {
	pages := len(q.pages) - q.prefix.Pages()
	if s.tree != nil {
		pages += s.tree.Alone(q.prefix)
	}
	return pages * s.cfg.PageSize
}
