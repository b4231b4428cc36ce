package scheduler

import (
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
)

// What a sequence gets and gives back. Nothing else calls the pool's Alloc, Free, Hold and Release.

// held are pages that a sequence has given back, which somebody may still touch.
type held struct {
	pages  []int32        // its own
	window []int32        // its own, of sliding-window layers
	prefix kvcache.Handle // pages of the cache
	hand   *handoff       // until it is settled; nil: there is none
	step   int64          // and until this step is over

	kept  bool           // a transfer keeps pages of a request that is counted, on a decode rank
	since ledger.Instant // then
}

// newPools makes the pools of the device and the prefix cache over them.
func (s *Scheduler) newPools() (err error) {
	if s.pool, err = kvcache.New(s.cfg.CapacityTokens, s.cfg.PageSize); err != nil {
		return err
	}
	if s.cfg.WindowTokens > 0 {
		if s.window, err = kvcache.New(s.cfg.WindowCapacityTokens, s.cfg.PageSize); err != nil {
			return fmt.Errorf("sliding-window layers: %w", err)
		}
	}
	s.tree = newTree(s.cfg, s.pool, s.window)
	s.limit = min(s.cfg.ContextLength, s.pool.Stats().Capacity)
	s.boundWindow()
	return nil
}

// usage is the share of the fullest pool that is not free or merely cached, and the tokens in the one that has the most.
func (s *Scheduler) usage() (share float64, tokens int) {
	share, tokens = usageOf(s.pool.Stats())
	if s.windowed() {
		windowShare, windowTokens := usageOf(s.window.Stats())
		share, tokens = max(share, windowShare), max(tokens, windowTokens)
	}
	return share, tokens
}

func usageOf(st kvcache.Stats) (share float64, tokens int) {
	return float64(st.Unavailable()) / float64(st.Capacity), st.Unavailable()
}

// roomTokens is what the next allocations can get.
func (s *Scheduler) roomTokens() int { return s.pool.Stats().Allocatable() }

// pagesFor is the number of pages that q lacks to hold its first n tokens.
func (s *Scheduler) pagesFor(q *sequence, n int) int { return max(s.pool.Pages(n)-len(q.pages), 0) }

// allocate gives q the pages that it lacks to hold its first n tokens. The caller has made sure that there are so many.
func (s *Scheduler) allocate(q *sequence, n int) {
	var ok bool
	before, lack := len(q.pages), s.pagesFor(q, n)
	if s.tree != nil {
		s.evict(lack-s.pool.Stats().Available/s.cfg.PageSize, s.tree.Evict)
	}
	if q.pages, ok = s.pool.Alloc(q.pages, lack); !ok {
		panic(fmt.Sprintf("scheduler: request %s has no pages for %d tokens after the memory check: it has %d, and %d tokens are free",
			q.req.RID, n, len(q.pages), s.pool.Stats().Available))
	}
	s.digest.note(notedPages, uint64(q.arrival))
	s.digest.ids(q.pages[before:])
}

// releasePages gives a sequence's pages back, or holds them until its transfer is settled and the steps that it is in are
// over. What is computed of it stays in the cache.
func (s *Scheduler) releasePages(q *sequence) {
	s.cutPass(q)
	if len(q.pages) == 0 {
		return
	}
	s.digest.note(notedRelease, uint64(q.arrival))
	s.store(q)
	hand := q.hand
	if q.sending != nil && q.sent == 0 {
		hand = nil // nothing was given to the transfer, and q may need the pages again before it is over
	}
	s.giveBack(held{pages: q.pages[q.prefix.Pages():], window: q.ownWindow(), prefix: q.prefix, hand: hand, step: q.step, kept: s.keeps(q)})
	q.pages, q.window, q.slid, q.prefix = nil, nil, 0, kvcache.Handle{}
}

// keeps reports whether a transfer keeps the pages of an ended request from being free, on a decode rank.
func (s *Scheduler) keeps(q *sequence) bool {
	return s.cfg.Role == Decode && q.req.LogMetrics && q.hand != nil && !s.settledHand(q.hand)
}

// giveBack frees pages and unlocks those of the cache, now or once nobody touches them any more.
func (s *Scheduler) giveBack(h held) {
	if !s.settled(h) {
		h.since = s.deps.Clock.Now()
		s.pool.Hold(h.pages)
		if s.windowed() {
			s.window.Hold(h.window)
		}
		s.held = append(s.held, h)
		return
	}
	s.pool.Free(h.pages)
	if s.windowed() {
		s.window.Free(h.window)
	}
	s.unlock(&h.prefix)
}

func (s *Scheduler) unlock(h *kvcache.Handle) {
	if s.tree != nil {
		s.tree.Unlock(h)
	}
}

// settled reports whether nobody touches held pages any more. With sliding-window layers steps in flight don't count, see
// window.go, but where peers write pages they do: a peer does not wait for the steps launched before.
func (s *Scheduler) settled(h held) bool {
	stepsOver := h.step <= s.flight.over || s.windowed() && s.cfg.Role != Decode
	return stepsOver && (h.hand == nil || s.settledHand(h.hand))
}

// settledHand reports whether no peer of any rank touches the pages of a transfer any more.
func (s *Scheduler) settledHand(h *handoff) bool {
	if s.deps.Peers == nil {
		h.look()
	}
	return h.settled
}

// settleHeld frees held pages that nobody touches any more.
func (s *Scheduler) settleHeld() {
	s.held = slices.DeleteFunc(s.held, func(h held) bool {
		if !s.settled(h) {
			return false
		}
		s.pool.Release(h.pages)
		if s.windowed() {
			s.window.Release(h.window)
		}
		s.unlock(&h.prefix)
		if h.kept {
			s.deps.Reporter.KVReleased(h.hand.release(), s.deps.Clock.Now().Sub(h.since))
		}
		return true
	})
}
