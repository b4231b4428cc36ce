package kvcache

import "slices"

// node is an edge of the tree with what hangs below it: whole pages of tokens that are always accessed together.
//
// Invariants, with n = len(pages):
//
//	root: parent = nil, n = 0;  else n >= 1, len(tokens) = n*pageSize, start = parent.start + len(parent.pages)
//	len(window) = n with a window pool, else 0;  windows = the entries of window that are not none
//	windowLocks <= locks;  locks >= the sum of the children's locks
//	pages are used when locks > 0, else evictable; window pages likewise by windowLocks
type node struct {
	parent   *node
	children map[string]*node // by the tokens of their first page
	key      string           // of the request's namespace; root alone

	tokens []int32
	pages  []int32
	window []int32 // of the window pool; none where there is no page
	start  int     // pages before this node's

	windows     int
	locks       int // handles at this node or below
	windowLocks int // of these, those whose window holds this node

	age
	inLeaves, inWindows int // index in the queue, -1 when it isn't there
}

// none stands for a window page that is not there.
const none = -1

func (n *node) end() int { return n.start + len(n.pages) }

// agree counts the whole pages with which tokens begin like the node.
func (n *node) agree(tokens []int32, pageSize int) int {
	limit := min(len(n.tokens), len(tokens)/pageSize*pageSize)
	i := 0
	for i < limit && n.tokens[i] == tokens[i] {
		i++
	}
	return i / pageSize
}

// split cuts the node behind its first k pages, 0 < k < len(pages), and gives the new node with these. The node itself
// keeps the rest, so that handles at it stay where they are. Both get memory of their own: a short node that stays for long
// would keep that of a long one that is gone.
func (t *Tree) split(n *node, k int) *node {
	upper := &node{
		parent: n.parent, children: map[string]*node{}, tokens: slices.Clone(n.tokens[:k*t.pageSize]), pages: slices.Clone(n.pages[:k]),
		start: n.start, locks: n.locks, windowLocks: n.windowLocks, age: n.age, inLeaves: -1, inWindows: -1,
	}
	n.parent.children[string(t.firstPage(upper.tokens))] = upper
	n.tokens, n.pages, n.start, n.parent = slices.Clone(n.tokens[k*t.pageSize:]), slices.Clone(n.pages[k:]), n.start+k, upper
	if t.window != nil {
		upper.window, n.window = slices.Clone(n.window[:k]), slices.Clone(n.window[k:])
		upper.windows = count(upper.window)
		n.windows -= upper.windows
	}
	upper.children[string(t.firstPage(n.tokens))] = n
	t.settle(n)
	t.settle(upper)
	return upper
}

// count gives the entries that are a page.
func count(window []int32) int {
	n := 0
	for _, page := range window {
		if page != none {
			n++
		}
	}
	return n
}

// present gives the entries that are a page.
func present(window []int32) []int32 {
	return slices.DeleteFunc(slices.Clone(window), func(page int32) bool { return page == none })
}

// firstPage encodes the first page of tokens as a map's key, in a buffer that the next call reuses.
func (t *Tree) firstPage(tokens []int32) []byte {
	b := t.buffer[:0]
	for _, id := range tokens[:t.pageSize] {
		b = append(b, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	t.buffer = b
	return b
}

// queue is a heap of nodes, the first to evict in front.
type queue struct {
	nodes []*node
	less  func(a, b *node) bool
	index func(n *node) *int // of the node in this queue
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (q *queue) Len() int           { return len(q.nodes) }
func (q *queue) Less(i, j int) bool { return q.less(q.nodes[i], q.nodes[j]) }
func (q *queue) Swap(i, j int) {
	q.nodes[i], q.nodes[j] = q.nodes[j], q.nodes[i]
	*q.index(q.nodes[i]), *q.index(q.nodes[j]) = i, j
}

func (q *queue) Push(x any) {
	n := x.(*node)
	*q.index(n) = len(q.nodes)
	q.nodes = append(q.nodes, n)
}

func (q *queue) Pop() any {
	last := len(q.nodes) - 1
	n := q.nodes[last]
	q.nodes[last] = nil
	q.nodes = q.nodes[:last]
	*q.index(n) = -1
	return n
}
