package scheduler

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
)

// progress is how many steps are over, for others to wait for. A step costs it a store and a load.
type progress struct {
	over atomic.Int64 // steps, from 1 on
	next atomic.Int64 // the least number that somebody waits for, or less; math.MaxInt64: nobody does

	mu      sync.Mutex
	ended   bool
	changed chan struct{} // closed when next was reached, and then another one
}

func newProgress() *progress {
	p := &progress{changed: make(chan struct{})}
	p.next.Store(math.MaxInt64)
	return p
}

// reach notes that all steps up to n are over.
func (p *progress) reach(n int64) {
	p.over.Store(n)
	if n >= p.next.Load() {
		p.wake(false)
	}
}

// end notes that there will be no more steps.
func (p *progress) end() { p.wake(true) }

func (p *progress) wake(ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = p.ended || ended
	p.next.Store(math.MaxInt64)
	close(p.changed)
	p.changed = make(chan struct{})
}

// AwaitStep waits until step n of this rank is over and gives the number of the newest that is; n = 0 gives it at once. Steps are
// numbered from 1, alike on all ranks of a world.
func (s *Scheduler) AwaitStep(ctx context.Context, n int64) (newest int64, err error) {
	p := s.progress
	for {
		p.mu.Lock()
		p.next.Store(min(p.next.Load(), n)) // before it is looked at
		changed, ended := p.changed, p.ended
		p.mu.Unlock()
		if newest = p.over.Load(); newest >= n {
			return newest, nil
		}
		if ended {
			return newest, ErrEnded
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return newest, ctx.Err()
		}
	}
}
