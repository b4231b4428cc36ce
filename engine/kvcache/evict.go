package kvcache

import "slices"

// Evict frees cached pages that nobody locks, with their window pages, in the order of the policy, from the ends of the
// cached sequences on: as many as asked for, or all. It gives how many.
func (t *Tree) Evict(pages int) (freed int) {
	for freed < pages && len(t.leaves.nodes) > 0 {
		n := t.leaves.nodes[0]
		k := min(len(n.pages), pages-freed)
		t.trim(n, k)
		freed += k
	}
	return freed
}

// trim frees the last k pages of a node that nobody locks or builds on.
func (t *Tree) trim(n *node, k int) {
	keep := len(n.pages) - k
	t.full.evict(n.pages[keep:])
	t.pages -= k
	if t.window != nil {
		gone := present(n.window[keep:])
		t.window.evict(gone)
		n.windows -= len(gone)
		t.slots -= len(gone)
		n.window = n.window[:keep]
	}
	if keep > 0 {
		n.pages, n.tokens = n.pages[:keep], n.tokens[:keep*t.pageSize]
		if keep < cap(n.pages)/2 { // a node must not keep the memory of one that was long
			n.pages, n.tokens, n.window = slices.Clone(n.pages), slices.Clone(n.tokens), slices.Clone(n.window)
		}
		t.settle(n)
		return
	}
	parent := n.parent
	delete(parent.children, string(t.firstPage(n.tokens)))
	n.parent = nil
	t.settle(n)
	t.settle(parent)
	if parent.parent == nil && len(parent.children) == 0 {
		delete(t.roots, parent.key)
	}
}

// EvictWindow frees window pages that nobody locks, the least recently used first and of a sequence the earliest first: as
// many as asked for, or all. What they are pages of stays cached, but can be matched only where the window is there. It
// gives how many.
func (t *Tree) EvictWindow(pages int) (freed int) {
	for freed < pages && len(t.windows.nodes) > 0 {
		n := t.windows.nodes[0]
		for i := 0; i < len(n.window) && freed < pages; i++ {
			if page := n.window[i]; page != none {
				t.window.evict([]int32{page})
				n.window[i] = none
				n.windows--
				t.slots--
				freed++
			}
		}
		t.settle(n)
	}
	return freed
}

// Reset frees everything. It panics when a handle locks something: what it keeps would be given to others.
func (t *Tree) Reset() {
	t.Evict(t.pages)
	if t.pages > 0 {
		panic("kvcache: the tree is reset while a handle locks a part of it")
	}
}
