package kvcache

// Handle keeps a prefix from being evicted. The zero Handle keeps nothing. It belongs to one owner, who unlocks it once.
type Handle struct {
	at *node
	// windowFrom is the first page whose window page is kept; the end of the prefix when none is.
	windowFrom int
}

// Pages is the number of pages that the handle keeps.
func (h Handle) Pages() int { return Prefix{h.at}.Pages() }

// Prefix is the place whose pages the handle keeps.
func (h Handle) Prefix() Prefix { return Prefix{h.at} }

// WindowPages is how many of them it keeps window pages of, where there are such.
func (h Handle) WindowPages() int { return h.Pages() - h.windowFrom }

// Lock keeps the pages of a prefix, and the window pages of the window before its end.
func (t *Tree) Lock(p Prefix) Handle {
	if p.at == nil {
		return Handle{}
	}
	h := Handle{at: p.at, windowFrom: p.at.end()}
	if t.window != nil {
		h.windowFrom = t.windowFrom(p.at.end())
		t.cut(p.at, h.windowFrom) // so that the window's pages are whole nodes
	}
	for n := p.at; n.parent != nil; n = n.parent {
		if n.locks++; n.locks == 1 {
			t.full.lock(n.pages)
		}
		if n.start >= h.windowFrom {
			if n.windowLocks++; n.windowLocks == 1 {
				t.window.lock(present(n.window))
			}
		}
		t.settle(n)
	}
	return h
}

// Unlock gives up what the handle keeps and empties it.
func (t *Tree) Unlock(h *Handle) {
	t.UnlockWindow(h)
	for n := h.at; n != nil && n.parent != nil; n = n.parent {
		if n.locks--; n.locks == 0 {
			t.full.cache(n.pages)
		}
		t.settle(n)
	}
	*h = Handle{}
}

// Alone is the number of pages that these handles keep and no others: what unlocking them all makes evictable.
func (t *Tree) Alone(handles ...Handle) (pages int) {
	if len(handles) == 1 { // locks only grow towards the root
		for n := handles[0].at; n != nil && n.parent != nil && n.locks == 1; n = n.parent {
			pages += len(n.pages)
		}
		return pages
	}
	locks := map[*node]int{}
	for _, h := range handles {
		for n := h.at; n != nil && n.parent != nil; n = n.parent {
			if locks[n]++; locks[n] == n.locks {
				pages += len(n.pages)
			}
		}
	}
	return pages
}

// UnlockWindow gives up the window pages alone: the sequence has moved on so far that its window begins behind the prefix.
func (t *Tree) UnlockWindow(h *Handle) {
	if h.at == nil || t.window == nil {
		return
	}
	for n := h.at; n.parent != nil && n.start >= h.windowFrom; n = n.parent {
		if n.windowLocks--; n.windowLocks == 0 {
			t.window.cache(present(n.window))
		}
		t.settle(n)
	}
	h.windowFrom = h.at.end()
}
