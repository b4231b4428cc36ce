package scheduler

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/kvcache"
)

// The KV of sliding-window layers has a pool of its own. A sequence has pages of it for the tokens that its next ones still
// see, and gives the others back while it goes on:
//
//	pages    [ 0 ........................................ len(pages) )
//	window   [ -1 -1 -1 -1 -1 | pages in the window ..... | -1 -1 -1 )   what comes is allocated when a step computes it
//
// That the pool suffices is seen to at admission: the sum of what admitted sequences can ever have at once, their claims,
// and of the pages that are held fits the pool, so an allocation never fails, and nothing is retracted for it. So that what a
// sequence gives back is no more than it claimed, pages don't wait for steps in flight: steps are computed in order, and
// whoever gets a page writes it in a later one. Only a transfer makes them wait, and until it is settled nothing of its
// sequence goes into the cache, where equal pages would be merged and the sequence have two of each. On a decode rank the
// pages of an ended sequence wait for the steps too, because those who get them are peers; it claims nothing any more.

// windowed reports whether the model has sliding-window layers.
func (s *Scheduler) windowed() bool { return s.window != nil }

// firstSeen is the first page that the token at a position sees.
func (s *Scheduler) firstSeen(position int) int {
	return max(position-s.cfg.WindowTokens+1, 0) / s.cfg.PageSize
}

// windowPages is the capacity of the window pool.
func (s *Scheduler) windowPages() int { return s.window.Stats().Capacity / s.cfg.PageSize }

// boundWindow makes chunks so short that one sequence's claim fits the pool, or sequences where no chunk is short enough.
func (s *Scheduler) boundWindow() {
	if !s.windowed() {
		return
	}
	room := (s.windowPages() - s.seenPages() - windowSlack) * s.cfg.PageSize / s.cfg.depth()
	if room < s.cfg.PageSize {
		s.limit = min(s.limit, s.window.Stats().Capacity)
		return
	}
	if s.cfg.ChunkTokens == 0 || s.cfg.ChunkTokens > room {
		s.cfg.ChunkTokens = room
	}
}

// windowSlack is the pages that a claim adds for where windows and steps begin and end within a page.
const windowSlack = 4

// seenPages is how many whole pages a sequence may keep for its window: its own, and those of the beginning that it found
// in the cache until its window is behind them.
func (s *Scheduler) seenPages() int {
	tokens := s.cfg.WindowTokens
	if s.tree != nil {
		tokens *= 2
	}
	return s.window.Pages(tokens)
}

// claim bounds the window pages that q has at any time from now on.
func (s *Scheduler) claim(q *sequence) int {
	if !s.windowed() {
		return 0
	}
	received := q.state == statePreallocating || q.state == stateTransferring
	has := len(q.tokens)
	if received {
		has++ // its first token comes with the KV
	}
	// A sequence may wait with its whole answer, until its grammar has said whether it is complete: a claim may not grow.
	total := s.window.Pages(max(q.prompt+min(max(q.req.Sampling.MaxNewTokens, 1), s.limit-q.prompt), has))
	if s.cfg.Role == Prefill {
		total = s.window.Pages(q.prompt) // its first token is computed elsewhere
	}
	ahead := len(q.tokens) - q.computed // tokens that steps have in flight, or will have
	switch {
	case received: // nothing is computed of its prompt
		ahead = 0
	case s.cfg.ChunkTokens > 0:
		ahead = min(ahead, s.cfg.depth()*s.cfg.ChunkTokens)
	}
	return min(total, s.seenPages()+s.window.Pages(max(ahead, s.cfg.depth()))+windowSlack)
}

// unclaimed is the window pages that may still be claimed.
func (s *Scheduler) unclaimed() int {
	if !s.windowed() {
		return 0
	}
	n := s.windowPages()
	for _, l := range s.in {
		for _, q := range l {
			if len(q.pages) > 0 {
				n -= s.claim(q)
			}
		}
	}
	for _, h := range s.held {
		n -= len(h.window) + h.prefix.WindowPages()
	}
	for _, x := range s.sessions {
		n -= x.held.WindowPages()
	}
	return n
}

// cover gives q window pages for tokens [from, to), which a step is about to compute or a peer to send.
func (s *Scheduler) cover(q *sequence, from, to int) {
	if !s.windowed() {
		return
	}
	for len(q.window) < len(q.pages) {
		q.window = append(q.window, noPage)
	}
	first, end := from/s.cfg.PageSize, s.window.Pages(to)
	lack := 0
	for _, page := range q.window[first:end] {
		if page == noPage {
			lack++
		}
	}
	if lack == 0 {
		return
	}
	if s.tree != nil {
		s.evict(lack-s.window.Stats().Available/s.cfg.PageSize, s.tree.EvictWindow)
	}
	fresh, ok := s.window.Alloc(nil, lack)
	if !ok {
		panic(fmt.Sprintf("scheduler: request %s has no window pages for tokens %d to %d although it claimed %d: it needs %d, and the pool is %+v",
			q.req.RID, from, to, s.claim(q), lack, s.window.Stats()))
	}
	s.digest.ids(fresh)
	for i := first; i < end; i++ {
		if q.window[i] == noPage {
			q.window[i], fresh = fresh[0], fresh[1:]
		}
	}
}

// noPage is an entry of a window table that has no page.
const noPage = -1

// slide gives back the window pages that no token from those being computed on sees. Only whole pages of computed tokens
// move the window, so that what is cached at their end can be found.
func (s *Scheduler) slide(q *sequence) {
	if !s.windowed() || len(q.pages) == 0 {
		return
	}
	first := min(s.firstSeen(q.computed/s.cfg.PageSize*s.cfg.PageSize), len(q.window))
	if first <= q.slid {
		return
	}
	var gone []int32
	for i := q.slid; i < first; i++ {
		if page := q.window[i]; page != noPage && i >= q.prefix.Pages() {
			gone = append(gone, page)
		}
		q.window[i] = noPage
	}
	q.slid = first
	if first >= q.prefix.Pages() {
		s.unlockWindow(&q.prefix)
	}
	s.window.Free(gone) // steps in flight begin behind what they see
}

func (s *Scheduler) unlockWindow(h *kvcache.Handle) {
	if s.tree != nil {
		s.tree.UnlockWindow(h)
	}
}

// ownWindowPages is how many those are that ownWindow gives. It looks at no more than the window: what is behind it was given back,
// and what no step computes yet, nor a peer sends, has no page.
func (q *sequence) ownWindowPages(pageSize int) (n int) {
	covered := max(q.launched, q.computed)
	if q.receiving != nil {
		covered = max(covered, q.prompt)
	}
	end := min((covered+pageSize-1)/pageSize, len(q.window))
	for i := max(q.prefix.Pages(), q.slid); i < end; i++ {
		if q.window[i] != noPage {
			n++
		}
	}
	return n
}

// ownWindow is the window pages that are the sequence's and not the cache's.
func (q *sequence) ownWindow() []int32 {
	var own []int32
	for i := min(q.prefix.Pages(), len(q.window)); i < len(q.window); i++ {
		if q.window[i] != noPage {
			own = append(own, q.window[i])
		}
	}
	return own
}
