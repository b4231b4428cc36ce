package scheduler

import (
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/request"
)

// queue gives the sequences that wait to be computed, in the order in which they are considered. Those that wait with
// their KV are not among them. The slice is valid until the next call.
func (s *Scheduler) queue() []*sequence {
	ws := s.scratch.waiters[:0]
	for _, l := range []list{s.in[stateRetracted], s.in[stateWaiting]} {
		for _, q := range l {
			if len(q.pages) == 0 {
				ws = append(ws, ranked{seq: q, waiter: waiter{
					arrival: q.arrival, urgency: q.urgency, retracted: q.retractions > 0, overtaken: q.overtaken,
				}})
			}
		}
	}
	policy := s.cfg.Policy.active(len(ws))
	sortWaiters(ws, FCFS)
	if policy == LPM && s.tree != nil && len(ws) > 1 {
		computing := s.in[statePrefilling] // not in the cache yet, but soon
		prompts := make([]prompt, 0, len(computing)+len(ws))
		for _, q := range computing {
			prompts = append(prompts, prompt{key: q.req.CacheKey, tokens: q.tokens})
		}
		for i := range ws {
			ws[i].cached = s.cached(ws[i].seq)
			prompts = append(prompts, prompt{key: ws[i].seq.req.CacheKey, tokens: ws[i].seq.tokens, cached: ws[i].cached})
		}
		for i, alike := range markAlike(prompts)[len(computing):] {
			ws[i].alike = alike
		}
		sortWaiters(ws, LPM)
	}
	seqs := s.scratch.queue[:0]
	for _, w := range ws {
		seqs = append(seqs, w.seq)
	}
	clear(ws)
	s.scratch.waiters, s.scratch.queue = ws, seqs
	return seqs
}

// sortWaiters orders what is mostly in order: lists are by urgency and arrival.
func sortWaiters(ws []ranked, p Policy) {
	order := queueOrder(p)
	compare := func(a, b ranked) int { return order(a.waiter, b.waiter) }
	if !slices.IsSortedFunc(ws, compare) {
		slices.SortFunc(ws, compare)
	}
}

// ranked is a waiting sequence with what its place in the queue depends on.
type ranked struct {
	waiter
	seq *sequence
}

// overtake counts that q was admitted: every sequence of its urgency that came before it and still waits was overtaken. One
// that was retracted overtook them when it was admitted for the first time; it comes back before all of them, however often.
func (s *Scheduler) overtake(q *sequence) {
	if s.cfg.Policy != LPM || q.retractions > 0 {
		return
	}
	for _, w := range s.in[stateWaiting] {
		if w.arrival < q.arrival && w.urgency == q.urgency && len(w.pages) == 0 {
			w.overtaken++
		}
	}
}

// enqueue makes room for a newcomer in the queue when it is full: the least urgent request is pushed out, or the newcomer
// is refused; "" when there is room. One whose grammar is compiled has its place already.
func (s *Scheduler) enqueue(q *sequence) (outcome request.Outcome, message string) {
	if s.cfg.MaxQueued == 0 || s.queued() < s.cfg.MaxQueued {
		return "", ""
	}
	if s.cfg.Priorities.Enabled {
		var seqs []*sequence
		var queue []queued
		for _, st := range []state{stateCompiling, stateBootstrapping, statePreallocating, stateWaiting} {
			for _, w := range s.in[st] {
				seqs = append(seqs, w)
				queue = append(queue, queued{urgency: w.urgency, arrival: w.arrival, begun: w.generated() > 0 || len(w.pages) > 0})
			}
		}
		if out := pushedOut(queue, q.urgency); out >= 0 {
			s.finish(seqs[out], aborted(request.OutcomePreempted, fmt.Sprintf("the queue is full (%d requests) and a request of "+
				"higher priority came: try again later", s.cfg.MaxQueued)))
			return "", ""
		}
	}
	return request.OutcomeRefused, fmt.Sprintf("the queue is full (%d requests): try again later", s.cfg.MaxQueued)
}
