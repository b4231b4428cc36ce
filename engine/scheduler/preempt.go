package scheduler

// preempt takes the places and the pages of running sequences that are less urgent than q by more than the threshold, so
// that q can be admitted; false when that would not do, and then nothing changes. They are computed again later, as after
// a retraction, but memory was not what ran out, so they don't count as retracted for memory.
func (s *Scheduler) preempt(q *sequence, w want, b *budget) (done bool) {
	if p := s.cfg.Priorities; !p.Enabled || p.NoPreemption {
		return false
	}
	running := make([]runner, len(s.in[stateRunning]))
	for i, r := range s.in[stateRunning] {
		running[i] = s.runner(r)
	}
	lack := shortage{places: 1 - b.slots, tokens: max(w.poolTokens+w.growth-b.kvTokens, w.poolTokens-b.freeTokens)}
	if lack.met() {
		return false // what lacks is room in this step, not in the batch
	}
	var victims []*sequence
	for _, i := range preempted(running, q.urgency, s.cfg.Priorities.Threshold, lack) {
		victims = append(victims, s.in[stateRunning][i])
	}
	for _, v := range victims {
		free, growth := s.pool.Stats().Allocatable(), s.growth(v)
		s.retract(v)
		freed := s.pool.Stats().Allocatable() - free
		b.slots++
		b.freeTokens += freed
		b.kvTokens += freed + growth
		s.deps.Log.Info("preempted a running request", "rid", v.req.RID, "for", q.req.RID, "prompt_tokens", v.prompt, "answer_tokens", v.generated())
	}
	return len(victims) > 0
}

// runner is what preemption and retraction see of a running sequence.
func (s *Scheduler) runner(q *sequence) runner {
	return runner{
		urgency: q.urgency, arrival: q.arrival, prompt: q.prompt, generated: q.generated(), tokens: len(q.pages)*s.cfg.PageSize + s.growth(q),
	}
}
