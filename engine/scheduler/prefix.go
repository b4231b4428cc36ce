package scheduler

import "github.com/sluice-dev/sluice/engine/kvcache"

// What the prefix cache gives to a sequence and gets from it. A sequence's page table begins with pages of the tree, which
// its handle locks, and goes on with its own:
//
//	pages [ 0 ......... prefix.Pages() | ............ len(pages) )
//	        the tree's                   the sequence's own

// newTree makes the prefix cache, nil where there is none. A decode rank has none: what it receives is its own.
func newTree(cfg Config, pool, window *kvcache.Pool) *kvcache.Tree {
	if cfg.NoCache || cfg.Role == Decode {
		return nil
	}
	return kvcache.NewTree(pool, window, kvcache.TreeConfig{Policy: cfg.Eviction, WindowTokens: cfg.WindowTokens})
}

// found is what the cache has of a waiting sequence. It is valid until the next allocation.
type found struct {
	prefix kvcache.Prefix
	table  kvcache.Table
}

// matchable is the beginning of a sequence that may be taken from the cache.
func (s *Scheduler) matchable(q *sequence) []int32 { return q.tokens[:max(q.reusable(), 0)] }

// cached gives the tokens of a waiting sequence that the prefix cache has.
func (s *Scheduler) cached(q *sequence) int {
	if s.tree == nil {
		return 0
	}
	return s.tree.Peek(q.req.CacheKey, s.matchable(q))
}

// find looks a sequence up that is about to be admitted.
func (s *Scheduler) find(q *sequence) found {
	if s.tree == nil {
		return found{}
	}
	var f found
	f.prefix, f.table = s.tree.Match(q.req.CacheKey, s.matchable(q))
	return f
}

// want is what admitting the sequence takes: besides its own pages those of the cache that nobody locks yet, which are
// counted as free until then.
func (s *Scheduler) want(q *sequence, f found) want {
	own := s.pool.Pages(len(q.tokens)) - f.prefix.Pages()
	if s.tree != nil {
		own += s.tree.Unlocked(f.prefix)
	}
	return want{
		tokens: len(q.tokens) - f.prefix.Pages()*s.cfg.PageSize, poolTokens: own * s.cfg.PageSize, growth: s.growth(q),
		windowPages: s.claim(q) - s.heldWindow(q),
	}
}

// reuse begins a sequence, which has no pages, with what was found.
func (s *Scheduler) reuse(q *sequence, f found) {
	tokens := f.prefix.Pages() * s.cfg.PageSize
	again := q.retractions > 0
	s.admitted.add(0, tokens, again)
	s.beginPass(q, tokens)
	if again && s.cfg.Role == Prefill && q.req.LogMetrics {
		s.deps.Reporter.PrefillRetried()
	}
	if tokens > 0 {
		s.adopt(q, f, tokens)
	}
	if s.heldWindow(q) > 0 {
		s.tree.UnlockWindow(&q.session.held)
	}
}

// adopt makes what was found the first pages of a sequence.
func (s *Scheduler) adopt(q *sequence, f found, tokens int) {
	q.prefix = s.tree.Lock(f.prefix)
	q.pages = f.table.Pages
	q.computed, q.launched = tokens, tokens
	if s.windowed() {
		q.window = f.table.Window
		q.slid = s.firstSeen(tokens)
		forget(q.window[:q.slid])
	}
	s.digest.note(notedPages, uint64(q.arrival))
	s.digest.ids(q.pages)
}

// store gives the whole pages of what is computed to the cache, so that others find them. Pages that it has already from
// somebody else take the place of the sequence's own, which go back once nobody touches them.
func (s *Scheduler) store(q *sequence) {
	n := q.computed / s.cfg.PageSize
	if s.tree == nil || n <= q.prefix.Pages() {
		return
	}
	if s.windowed() && q.hand != nil && !s.settledHand(q.hand) {
		return // see window.go
	}
	own := q.pages[q.prefix.Pages():n]
	given := kvcache.Table{Pages: q.pages[:n]}
	if s.windowed() {
		given.Window = q.window[:n]
	}
	prefix, table := s.tree.Insert(q.req.CacheKey, q.tokens[:n*s.cfg.PageSize], given, s.priority(q))
	theirs := table.Pages[q.prefix.Pages():]
	handle := s.tree.Lock(prefix)
	windowTwice := s.storeWindow(q, table, n)
	s.tree.Unlock(&q.prefix)
	q.prefix = handle
	var twice []int32
	for i, page := range own {
		if page != theirs[i] {
			twice = append(twice, page)
		}
	}
	if len(twice) > 0 {
		q.pages = append(table.Pages, q.pages[n:]...)
		s.digest.note(notedPages, uint64(q.arrival))
		s.digest.ids(theirs)
	}
	if len(twice)+len(windowTwice) > 0 {
		s.giveBack(held{pages: twice, window: windowTwice, hand: q.hand, step: q.step})
	}
}

// storeWindow takes over the window table of the tree for the first n pages, as far as the sequence's next tokens see it, and
// gives the sequence's own pages that the tree did not want.
func (s *Scheduler) storeWindow(q *sequence, table kvcache.Table, n int) (twice []int32) {
	if !s.windowed() {
		return nil
	}
	for i := q.prefix.Pages(); i < n; i++ {
		if page := q.window[i]; page != noPage && page != table.Window[i] {
			twice = append(twice, page)
		}
	}
	q.slid = max(q.slid, s.firstSeen(n*s.cfg.PageSize))
	q.window = append(table.Window, q.window[n:]...)
	forget(q.window[:q.slid])
	return twice
}

// forget takes pages out of a window table.
func forget(window []int32) {
	for i := range window {
		window[i] = noPage
	}
}

// priority is what the eviction policy of that name goes by.
func (s *Scheduler) priority(q *sequence) int {
	if p := s.cfg.Priorities.resolve(q.req.Priority); p != nil {
		return *p
	}
	return 0
}
