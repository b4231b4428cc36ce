package kvcache

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
)

// Table is a sequence's pages by ordinal. Window, the pages of the sliding-window layers, is nil without such layers, else
// as long as Pages, with -1 where a page was freed.
type Table struct{ Pages, Window []int32 }

// Tree is a radix tree over whole pages of KV: it finds the pages of the longest beginning of a prompt that was computed
// before. Prefixes are shared between requests with the same key alone.
//
// Properties, which Check verifies:
//   - a path from the root spells tokens; no two children of a node begin with the same page;
//   - every page in the tree is there once; it is used when a handle locks its node or one below, else evictable;
//   - window pages are locked only in the window before the end of a locked prefix: [end*pageSize-window+1, end*pageSize);
//   - what is evicted, and what a match gives, is a function of the calls so far: no map order, no time.
//
// Not safe for concurrent use.
type Tree struct {
	pageSize int
	policy   Policy
	full     *Pool
	window   *Pool // nil without sliding-window layers
	tokens   int   // of the window

	roots map[string]*node
	pages int // in the tree, of the full pool
	slots int // in the tree, of the window pool
	tick  uint64

	leaves  queue // nodes without children and locks, in order of the policy
	windows queue // nodes with window pages that no handle locks, least recently used first, then nearest to the root

	buffer []byte // see firstPage
}

// TreeConfig says how a tree evicts and how far its window reaches.
type TreeConfig struct {
	Policy       Policy
	WindowTokens int // a token sees itself and WindowTokens-1 before it; > 0 exactly with a window pool
}

// NewTree makes an empty tree over the pools, which have the same page size. window is nil without sliding-window layers.
func NewTree(full, window *Pool, cfg TreeConfig) *Tree {
	if (window == nil) != (cfg.WindowTokens == 0) || window != nil && window.pageSize != full.pageSize {
		panic(fmt.Sprintf("kvcache: a tree with a window of %d tokens needs two pools of one page size, and without one just one", cfg.WindowTokens))
	}
	t := &Tree{pageSize: full.pageSize, policy: cfg.Policy, full: full, window: window, tokens: cfg.WindowTokens, roots: map[string]*node{}}
	t.leaves = queue{
		less:  func(a, b *node) bool { return t.policy.compare(a.age, b.age) < 0 },
		index: func(n *node) *int { return &n.inLeaves },
	}
	t.windows = queue{
		less: func(a, b *node) bool {
			return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.start, b.start)) < 0
		},
		index: func(n *node) *int { return &n.inWindows },
	}
	return t
}

// Prefix is a place in the tree, at the end of its pages [0, Pages). It is valid until the next call that may evict, unless
// it is locked before.
type Prefix struct{ at *node }

// Pages is the number of pages before the place.
func (p Prefix) Pages() int {
	if p.at == nil {
		return 0
	}
	return p.at.end()
}

// Peek gives the tokens that Match would find, and changes nothing.
func (t *Tree) Peek(key string, tokens []int32) (cached int) {
	root := t.roots[key]
	if root == nil {
		return 0
	}
	n, agree := t.descend(root, tokens)
	return t.windowed(n, n.start+agree) * t.pageSize
}

// Unlocked is the number of pages before the place that no handle locks: what Lock would take from the evictable.
func (t *Tree) Unlocked(p Prefix) (pages int) {
	for n := p.at; n != nil && n.parent != nil && n.locks == 0; n = n.parent {
		pages += len(n.pages)
	}
	return pages
}

// Match finds the longest beginning of tokens, in whole pages, that is cached; with a window, the longest one before whose
// end the window is cached too. The table is the tree's; the caller locks the prefix before anything may evict it.
func (t *Tree) Match(key string, tokens []int32) (Prefix, Table) {
	root := t.roots[key]
	if root == nil {
		return Prefix{}, Table{}
	}
	n, agree := t.descend(root, tokens)
	n = t.cut(n, t.windowed(n, n.start+agree))
	t.tick++
	for m := n; m.parent != nil; m = m.parent {
		t.touch(m, m.priority)
	}
	if n.parent == nil {
		return Prefix{}, Table{}
	}
	return Prefix{n}, t.table(n)
}

// Insert gives the pages of tokens, len(tokens) = len(table.Pages)*pageSize, all used, to the tree. Where the tree has a
// page for the same tokens already it keeps its own. The result is the tree's table for these tokens: pages of the argument
// that are not in it at the same ordinal stay the caller's, all others are the tree's from now on. The caller takes over
// the result and locks the prefix before anything may evict it. priority is that of the request. Entries of table.Window are
// the caller's own pages, those that a handle of the caller locks, or -1.
func (t *Tree) Insert(key string, tokens []int32, table Table, priority int) (Prefix, Table) {
	if len(tokens) != len(table.Pages)*t.pageSize || (t.window != nil && len(table.Window) != len(table.Pages)) {
		panic(fmt.Sprintf("kvcache: %d tokens with %d pages and %d window pages of %d tokens", len(tokens), len(table.Pages), len(table.Window), t.pageSize))
	}
	if len(tokens) == 0 {
		return Prefix{}, Table{}
	}
	root := t.roots[key]
	if root == nil {
		root = &node{children: map[string]*node{}, key: key, inLeaves: -1, inWindows: -1}
		t.roots[key] = root
	}
	n, agree := t.descend(root, tokens)
	n = t.cut(n, n.start+agree)
	t.tick++
	for m := n; m.parent != nil; m = m.parent {
		t.touch(m, max(m.priority, priority))
		t.revive(m, table)
	}
	if have := n.end(); have < len(table.Pages) {
		n = t.add(n, tokens[have*t.pageSize:], table, priority)
	}
	return Prefix{n}, t.table(n)
}

// add hangs a new node below n with the pages of the table behind n's end.
func (t *Tree) add(n *node, tokens []int32, table Table, priority int) *node {
	from := n.end()
	child := &node{
		parent: n, children: map[string]*node{}, tokens: slices.Clone(tokens), pages: slices.Clone(table.Pages[from:]), start: from,
		age: age{used: t.tick, created: t.tick, hits: 1, priority: priority}, inLeaves: -1, inWindows: -1,
	}
	t.full.cache(child.pages)
	t.pages += len(child.pages)
	if t.window != nil {
		child.window = slices.Clone(table.Window[from:])
		child.windows = count(child.window)
		t.slots += child.windows
		t.window.cache(present(child.window))
	}
	n.children[string(t.firstPage(tokens))] = child
	t.settle(n)
	t.settle(child)
	return child
}

// revive takes the window pages that the node has not and the table has.
func (t *Tree) revive(n *node, table Table) {
	if n.windows == len(n.window) {
		return
	}
	for i, page := range n.window {
		if offered := table.Window[n.start+i]; page == none && offered != none {
			n.window[i] = offered
			n.windows++
			t.slots++
			if n.windowLocks == 0 {
				t.window.cache([]int32{offered})
			}
		}
	}
	t.settle(n)
}

// descend follows tokens as far as whole pages agree. It gives the last node, and how many of its pages agree: at least one,
// or the root and none.
func (t *Tree) descend(root *node, tokens []int32) (n *node, agree int) {
	n = root
	for agree == len(n.pages) && len(tokens) >= t.pageSize {
		child := n.children[string(t.firstPage(tokens))]
		if child == nil {
			break
		}
		n, agree = child, child.agree(tokens, t.pageSize)
		tokens = tokens[agree*t.pageSize:]
	}
	return n, agree
}

// windowed gives the most pages, end at most, on the path to n before whose end the window is cached.
func (t *Tree) windowed(n *node, end int) int {
	if t.window == nil {
		return end
	}
	for candidate, run := end, 0; ; { // run: pages [at, candidate) have window pages
		at := candidate - run
		if at <= t.windowFrom(candidate) {
			return candidate
		}
		for at <= n.start {
			n = n.parent
		}
		if n.window[at-1-n.start] == none {
			candidate, run = at-1, 0
			continue
		}
		run++
	}
}

// windowFrom is the first page of the window before a token behind end pages.
func (t *Tree) windowFrom(end int) int { return max(end*t.pageSize-t.tokens+1, 0) / t.pageSize }

// cut gives the node on the path to n that ends at the page end, splitting one where there is none.
func (t *Tree) cut(n *node, end int) *node {
	for n.start >= end && n.parent != nil {
		n = n.parent
	}
	if n.end() > end {
		return t.split(n, end-n.start)
	}
	return n
}

// touch notes an access.
func (t *Tree) touch(n *node, priority int) {
	n.used, n.priority = t.tick, priority
	n.hits++
	t.settle(n)
}

// table collects the pages on the path to n.
func (t *Tree) table(n *node) Table {
	table := Table{Pages: make([]int32, n.end())}
	if t.window != nil {
		table.Window = make([]int32, n.end())
	}
	for ; n.parent != nil; n = n.parent {
		copy(table.Pages[n.start:], n.pages)
		copy(table.Window[min(n.start, len(table.Window)):], n.window)
	}
	return table
}

// settle puts the node into the queues that it belongs to, at its place, and takes it out of the others.
func (t *Tree) settle(n *node) {
	place(&t.leaves, n, n.parent != nil && len(n.children) == 0 && n.locks == 0)
	place(&t.windows, n, n.windows > 0 && n.windowLocks == 0)
}

func place(q *queue, n *node, belongs bool) {
	switch at := *q.index(n); {
	case belongs && at >= 0:
		heap.Fix(q, at)
	case belongs:
		heap.Push(q, n)
	case at >= 0:
		heap.Remove(q, at)
	}
}
