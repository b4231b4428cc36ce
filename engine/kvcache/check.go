package kvcache

import (
	"fmt"
	"slices"
)

// Size is the number of tokens in the tree, locked or not.
func (t *Tree) Size() int { return t.pages * t.pageSize }

// WindowSize is the number of tokens whose window pages are in the tree, locked or not.
func (t *Tree) WindowSize() int { return t.slots * t.pageSize }

// Protected is the number of tokens in the tree that handles lock: a part of what the pool counts as used.
func (t *Tree) Protected() int { return t.Size() - t.full.Stats().Evictable }

// Owned is what sequences have: their own pages by pool, and their handles.
type Owned struct {
	Pages, Window [][]int32
	Handles       []Handle
}

// Check verifies the properties of the tree and of its pools, given all that sequences have. It costs a pass over
// everything: for tests and builds with Invariants.
func (t *Tree) Check(o Owned) error {
	locks, windowLocks := map[*node]int{}, map[*node]int{}
	for _, h := range o.Handles {
		for n := h.at; n != nil && n.parent != nil; n = n.parent {
			locks[n]++
			if t.window != nil && n.start >= h.windowFrom {
				windowLocks[n]++
			}
		}
	}
	var locked, windowLocked, cached, windowCached []int32
	pages, leaves, windows := 0, 0, 0
	var visit func(n *node) error
	visit = func(n *node) error {
		for first, child := range n.children {
			if child.parent != n || child.start != n.end() || len(child.pages) == 0 || len(child.tokens) != len(child.pages)*t.pageSize {
				return fmt.Errorf("kvcache: node at page %d has %d pages and %d tokens below a node that ends at %d", child.start, len(child.pages), len(child.tokens), n.end())
			}
			if first != string(t.firstPage(child.tokens)) {
				return fmt.Errorf("kvcache: node at page %d is found under other tokens than it begins with", child.start)
			}
			if child.locks != locks[child] || child.windowLocks != windowLocks[child] {
				return fmt.Errorf("kvcache: node at page %d has %d locks and %d of its window, but handles make %d and %d",
					child.start, child.locks, child.windowLocks, locks[child], windowLocks[child])
			}
			if t.window != nil && len(child.window) != len(child.pages) || child.windows != count(child.window) {
				return fmt.Errorf("kvcache: node at page %d has %d pages, %d entries of window pages and counts %d", child.start, len(child.pages), len(child.window), child.windows)
			}
			leaf, windowed := len(child.children) == 0 && child.locks == 0, child.windows > 0 && child.windowLocks == 0
			if leaf != (child.inLeaves >= 0) || windowed != (child.inWindows >= 0) {
				return fmt.Errorf("kvcache: node at page %d: in the queues at %d and %d, want %t and %t", child.start, child.inLeaves, child.inWindows, leaf, windowed)
			}
			pages += len(child.pages)
			if leaf {
				leaves++
			}
			if windowed {
				windows++
			}
			to, windowTo := &cached, &windowCached
			if child.locks > 0 {
				to = &locked
			}
			if child.windowLocks > 0 {
				windowTo = &windowLocked
			}
			*to, *windowTo = append(*to, child.pages...), append(*windowTo, present(child.window)...)
			if err := visit(child); err != nil {
				return err
			}
		}
		return nil
	}
	for key, root := range t.roots {
		if len(root.children) == 0 || root.key != key {
			return fmt.Errorf("kvcache: the root of %q has %d children and is that of %q", key, len(root.children), root.key)
		}
		if err := visit(root); err != nil {
			return err
		}
	}
	if pages != t.pages || leaves != len(t.leaves.nodes) || windows != len(t.windows.nodes) {
		return fmt.Errorf("kvcache: tree has %d pages, %d leaves and %d window nodes, but counts %d, %d and %d",
			pages, leaves, windows, t.pages, len(t.leaves.nodes), len(t.windows.nodes))
	}
	if err := t.full.checkCached(cached); err != nil {
		return err
	}
	if err := t.full.Check(append(slices.Clone(o.Pages), locked)...); err != nil || t.window == nil {
		return err
	}
	if n := len(windowLocked) + len(windowCached); n != t.slots {
		return fmt.Errorf("kvcache: tree has %d window pages, but counts %d", n, t.slots)
	}
	if err := t.window.checkCached(windowCached); err != nil {
		return fmt.Errorf("window pool: %w", err)
	}
	if err := t.window.Check(append(slices.Clone(o.Window), windowLocked)...); err != nil {
		return fmt.Errorf("window pool: %w", err)
	}
	return nil
}

// checkCached verifies that the evictable pages are exactly those of the tree that nobody locks.
func (p *Pool) checkCached(pages []int32) error {
	seen := make(map[int32]bool, len(pages))
	for _, page := range pages {
		if seen[page] {
			return fmt.Errorf("kvcache: page %d is in the tree twice", page)
		}
		seen[page] = true
		if s := p.states[page]; s != evictable {
			return fmt.Errorf("kvcache: page %d is cached and unlocked, but it is %s", page, s)
		}
	}
	if len(pages) != p.count[evictable] {
		return fmt.Errorf("kvcache: %d pages are evictable, but the tree has %d unlocked", p.count[evictable], len(pages))
	}
	return nil
}
