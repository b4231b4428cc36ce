package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/request"
)

// A sequence's newest token goes into its grammar, which says what may follow, before its next step is launched. That is
// nearly always quick and done on the loop; what is not is done by a goroutine, while the sequence sits out the steps of
// others. The sequence goes on, or ends, by a message of the leader, so that all ranks do it in the same step, however long
// each of them takes:
//
//	accept ─► advance ─► masking ─► (message) ─► takeMask ─► the next step, or finish

// maxMasks is how many masks that take long are made at the same time, each on a processor of its own.
const maxMasks = 2

// masking is what is found out about a sequence's newest token.
type masking struct {
	length *request.Finish    // how the answer ends if the grammar does not end it
	cancel context.CancelFunc // of the goroutine that finds it out; nil where the loop did

	done  chan struct{} // closed when the rest is set
	ended bool          // nothing but the end may follow
	left  bool          // the token is none that the grammar allows: a fault of the engine
	err   error         // there is no mask
	nanos int64         // that it took
}

// settle notes how it ended.
func (k *masking) settle(m Matcher, err error) {
	k.err, k.left = err, errors.Is(err, ErrNotAllowed)
	k.ended = err == nil && m.Done()
	close(k.done)
}

// advance takes q's newest token into its grammar. length is how the answer ends with this token unless the grammar ends it,
// nil when it doesn't. q computes nothing until takeMask. The mask is nobody else's now: no step in flight has q.
func (s *Scheduler) advance(q *sequence, length *request.Finish) {
	k := &masking{length: length, done: make(chan struct{})}
	q.masking = k
	s.masking = append(s.masking, q)
	matcher, mask, token := q.matcher, q.mask, q.tokens[len(q.tokens)-1]
	began := s.deps.Clock.Now()
	if ok, err := matcher.Try(token, mask); ok {
		k.nanos = s.deps.Clock.Now().Sub(began)
		k.settle(matcher, err)
		s.inbox.signal()
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.flight.ctx))
	k.cancel = cancel
	s.compilations.running.Go(func() {
		defer s.inbox.signal()
		select {
		case s.compilations.masks <- struct{}{}:
			defer func() { <-s.compilations.masks }()
		case <-ctx.Done():
			k.settle(matcher, ctx.Err())
			return
		}
		began := s.deps.Clock.Now()
		err := matcher.Follow(ctx, token, mask)
		k.nanos = s.deps.Clock.Now().Sub(began)
		k.settle(matcher, err)
	})
}

// judgeMasks gives what the leader knows about masks, in the order in which they were begun.
func (s *Scheduler) judgeMasks() []message {
	var found []message
	for _, q := range s.masking {
		select {
		case <-q.masking.done:
			found = append(found, q.masking.message(q.arrival))
		default:
		}
	}
	return found
}

// unmask forgets what is found out about q's newest token. Who is still at it stops soon.
func (s *Scheduler) unmask(q *sequence) {
	if q.masking != nil {
		if cancel := q.masking.cancel; cancel != nil {
			cancel()
		}
		s.masking = slices.DeleteFunc(s.masking, func(x *sequence) bool { return x == q })
		q.masking = nil
	}
}

// message is what there is to tell of q's mask.
func (k *masking) message(arrival int64) maskMsg {
	m := maskMsg{arrival: arrival, ended: k.ended, left: k.left}
	if k.err != nil {
		m.fault = k.err.Error()
	}
	return m
}

// takeMask ends a sequence or lets it go on, as the leader says. This rank's own mask may be behind the leader's.
func (s *Scheduler) takeMask(m maskMsg) error {
	at := slices.IndexFunc(s.masking, func(q *sequence) bool { return q.arrival == m.arrival })
	if at < 0 {
		return nil // it ended in the meantime
	}
	q := s.masking[at]
	k := q.masking
	<-k.done
	if own := k.message(q.arrival); own != m {
		return fmt.Errorf("the grammar of request %s: the leader found %+v, this rank %+v", q.req.RID, m, own)
	}
	s.unmask(q)
	q.masks.add(k.nanos)
	switch {
	case m.left:
		s.finish(q, aborted(request.OutcomeInternal, m.fault))
	case m.ended:
		s.finish(q, request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop})
	case k.length != nil:
		s.finish(q, *k.length)
	case m.fault != "":
		s.finish(q, aborted(request.OutcomeInvalid, m.fault))
	}
	return nil
}
