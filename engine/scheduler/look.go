package scheduler

import (
	"context"
	"slices"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// look is a question that changes nothing: how far requests have come. The leader answers it by itself, between two steps; it
// costs nothing while nobody asks.
type look struct {
	rids  []string
	reply chan<- map[string]*ledger.Record // has room for the answer; closed when there is none
}

// Timelines gives the timelines of requests that live, as they are between two steps: the stage that each is in, and what went
// over for it so far. Those that no step has taken yet, and those that have ended, are left out. The answer may take as long as a
// step does.
func (s *Scheduler) Timelines(ctx context.Context, rids []string) (map[string]*ledger.Record, error) {
	reply := make(chan map[string]*ledger.Record, 1)
	if !s.inbox.look(look{rids: rids, reply: reply}) {
		return nil, ErrEnded
	}
	select {
	case found := <-reply:
		if found == nil {
			return nil, ErrEnded
		}
		return found, nil
	case <-ctx.Done():
		s.inbox.unlook(reply)
		return nil, ctx.Err()
	}
}

// look hands a question over; false when the scheduler has ended and nobody will answer it.
func (b *inbox) look(l look) bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	b.looks = append(b.looks, l)
	b.mu.Unlock()
	b.signal()
	return true
}

// unlook takes a question back that nobody waits for any more, unless it was answered. While no step ends, as many wait as callers do.
func (b *inbox) unlook(reply chan<- map[string]*ledger.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks = slices.DeleteFunc(b.looks, func(l look) bool { return l.reply == reply })
}

// takeLooks gives the questions that wait.
func (b *inbox) takeLooks() []look {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.looks
	b.looks = nil
	return l
}

// answerLooks answers the questions that wait.
func (s *Scheduler) answerLooks() {
	for _, l := range s.inbox.takeLooks() {
		found := map[string]*ledger.Record{}
		for _, rid := range l.rids {
			if q := s.live[rid]; q != nil {
				r := q.timeline.Record()
				r.Transfer = s.transferred(q)
				found[rid] = r
			}
		}
		l.reply <- found
	}
}
