package grammar

import (
	"context"
	"slices"
)

// edge leads to a node on any byte of [lo, hi].
type edge struct {
	lo, hi byte
	to     int32
}

// call runs a rule and then goes on at ret, whose count is then count (0 unless ret counts).
type call struct{ rule, ret, count int32 }

// loop is what a counting node repeats: the rule, between min and max times; max < 0 is without an end.
// 0 <= min, 1 <= max or max < 0, min <= max or max < 0.
type loop struct{ rule, min, max int32 }

// next is the count after one more round. Without a maximum it stops at min: more makes no difference.
func (l *loop) next(count int32) int32 {
	if l.max < 0 {
		return min(count+1, max(l.min, 1))
	}
	return count + 1
}

// node is a place in a rule, once the steps that consume nothing are gone. Where loop is set a configuration at the
// node has a count of finished rounds: below loop.max another round may start, and only from loop.min on do edges,
// calls and final hold. Otherwise they always do.
type node struct {
	edges []edge
	calls []call
	final bool // the rule may end here
	loop  *loop
}

// idle reports whether the only thing that can happen at the node is the end of the rule.
func (n *node) idle() bool { return n.loop == nil && len(n.edges) == 0 && len(n.calls) == 0 }

// nfa is a push-down automaton over bytes. Every node can reach the end of its rule, no called rule admits the empty
// text, and no rule begins with a call that leads back to it: each call consumes a byte within a bounded number of steps.
type nfa struct {
	nodes []node
	start []int32 // [rules]; rule 0 is the whole text
	first [][256]bool

	counts  bool       // some node has a loop
	class   [256]uint8 // bytes that no edge tells apart have the same class
	classes int
	sample  []byte // [classes]: a byte of each
}

// bytes is the memory that the automaton takes.
func (f *nfa) bytes() int {
	const nodeBytes, edgeBytes, callBytes, loopBytes, firstBytes = 64, 8, 12, 16, 256
	total := len(f.nodes)*nodeBytes + len(f.first)*firstBytes + 4*len(f.start)
	for i := range f.nodes {
		total += cap(f.nodes[i].edges)*edgeBytes + cap(f.nodes[i].calls)*callBytes
		if f.nodes[i].loop != nil {
			total += loopBytes
		}
	}
	return total
}

// rawNode is a node with steps that consume nothing.
type rawNode struct {
	edges []edge
	calls []call
	empty []int32
	loop  *loop // the count is 0 for who comes through empty steps; its own empty steps leave the loop
}

// builder collects nodes and rules. Its methods fail (see bailout) when a limit is reached or the context is done.
type builder struct {
	ctx    context.Context
	limits Limits
	nodes  []rawNode
	start  []int32 // [rules]
	end    []int32 // [rules]

	classRules map[string]int32 // rules of large character classes
	jsonRules  map[string]int32 // rules of JSON's own notions
}

func newBuilder(ctx context.Context, limits Limits) *builder {
	b := &builder{ctx: ctx, limits: limits, classRules: map[string]int32{}, jsonRules: map[string]int32{}}
	b.rule()
	return b
}

// node adds a node.
func (b *builder) node() int32 {
	if len(b.nodes) >= b.limits.Nodes {
		fail(&LimitError{"nodes", b.limits.Nodes})
	}
	if len(b.nodes)&1023 == 0 && b.ctx.Err() != nil {
		fail(b.ctx.Err())
	}
	b.nodes = append(b.nodes, rawNode{})
	return int32(len(b.nodes) - 1)
}

// rule adds a rule and returns its number; start[rule] and end[rule] are to be connected.
func (b *builder) rule() int32 {
	start, end := b.node(), b.node()
	b.start, b.end = append(b.start, start), append(b.end, end)
	return int32(len(b.start) - 1)
}

func (b *builder) edge(from int32, lo, hi byte, to int32) {
	n := &b.nodes[from]
	n.edges = append(n.edges, edge{lo, hi, to})
}

func (b *builder) empty(from, to int32) {
	n := &b.nodes[from]
	n.empty = append(n.empty, to)
}

func (b *builder) call(from, rule, to int32) {
	n := &b.nodes[from]
	n.calls = append(n.calls, call{rule: rule, ret: to})
}

// text adds a chain of single bytes.
func (b *builder) text(from int32, s string, to int32) {
	if s == "" {
		b.empty(from, to)
		return
	}
	for i := range len(s) {
		next := to
		if i < len(s)-1 {
			next = b.node()
		}
		b.edge(from, s[i], s[i], next)
		from = next
	}
}

// texts adds an alternative of texts, sharing beginnings, so that as many can be open at once as differ in one byte only.
func (b *builder) texts(from int32, all []string, to int32) {
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	b.sortedTexts(from, slices.Compact(sorted), 0, to)
}

func (b *builder) sortedTexts(from int32, all []string, depth int, to int32) {
	for len(all) > 0 {
		if len(all[0]) == depth {
			b.empty(from, to)
			all = all[1:]
			continue
		}
		n := 1
		for n < len(all) && all[n][depth] == all[0][depth] {
			n++
		}
		if n == 1 {
			b.text(from, all[0][depth:], to)
		} else {
			next := b.node()
			b.edge(from, all[0][depth], all[0][depth], next)
			b.sortedTexts(next, all[:n], depth+1, to)
		}
		all = all[n:]
	}
}

// repeat adds a counted loop over a rule, which must not admit the empty text. max < 0 is without an end.
func (b *builder) repeat(from, rule int32, least, most int32, to int32) {
	if most == 0 {
		b.empty(from, to)
		return
	}
	counter := b.node()
	b.nodes[counter].loop = &loop{rule, least, most}
	b.empty(from, counter)
	b.empty(counter, to)
}

// finish trims and closes. An automaton without any text is an *InvalidError.
func (b *builder) finish() *nfa {
	live, productive := b.live()
	if !productive[0] {
		fail(&InvalidError{"nothing can satisfy it", "the whole"})
	}
	number := make([]int32, len(b.nodes)) // 1 + the node's number in the result
	var queue []int32
	visit := func(n int32) int32 {
		if number[n] == 0 {
			queue = append(queue, n)
			number[n] = int32(len(queue))
		}
		return number[n] - 1
	}
	out := &nfa{start: make([]int32, len(b.start))}
	for rule, start := range b.start {
		out.start[rule] = -1
		if productive[rule] {
			out.start[rule] = visit(start)
		}
	}
	c := &closer{b: b, live: live, productive: productive, seen: make([]int32, len(b.nodes)), ends: map[int32]bool{}}
	for _, end := range b.end {
		c.ends[end] = true
	}
	for i := 0; i < len(queue); i++ {
		n := c.close(queue[i], int32(i+1))
		for j := range n.edges {
			n.edges[j].to = visit(n.edges[j].to)
		}
		for j := range n.calls {
			n.calls[j].ret = visit(n.calls[j].ret)
		}
		out.counts = out.counts || n.loop != nil
		out.nodes = append(out.nodes, n)
	}
	out.setFirst()
	out.setClasses()
	return out
}

// live tells which nodes can reach the end of their rule and which rules can end.
func (b *builder) live() (live, productive []bool) {
	live, productive = make([]bool, len(b.nodes)), make([]bool, len(b.start))
	type use struct{ node, needs int32 } // node lives when needs (a node, -1: none) lives and the rule ends
	before := make([][]int32, len(b.nodes))
	users := make([][]use, len(b.start))
	ruleOf := map[int32]int32{}
	for rule, start := range b.start {
		ruleOf[start] = int32(rule)
	}
	for i := range b.nodes {
		n, at := &b.nodes[i], int32(i)
		for _, e := range n.edges {
			before[e.to] = append(before[e.to], at)
		}
		for _, to := range n.empty {
			// A loop that must go round needs its rule; the others may be left out.
			if n.loop != nil && n.loop.min > 0 {
				users[n.loop.rule] = append(users[n.loop.rule], use{at, to})
				before[to] = append(before[to], at)
				continue
			}
			before[to] = append(before[to], at)
		}
		for _, c := range n.calls {
			users[c.rule] = append(users[c.rule], use{at, c.ret})
			before[c.ret] = append(before[c.ret], at)
		}
	}
	// lives reports whether a node lives by what is known so far.
	lives := func(at int32) bool {
		n := &b.nodes[at]
		for _, e := range n.edges {
			if live[e.to] {
				return true
			}
		}
		for _, c := range n.calls {
			if live[c.ret] && productive[c.rule] {
				return true
			}
		}
		for _, to := range n.empty {
			if live[to] && (n.loop == nil || n.loop.min == 0 || productive[n.loop.rule]) {
				return true
			}
		}
		return false
	}
	var queue []int32
	mark := func(at int32) {
		if live[at] {
			return
		}
		live[at] = true
		queue = append(queue, at)
		if rule, ok := ruleOf[at]; ok {
			productive[rule] = true
			for _, u := range users[rule] {
				if live[u.needs] && !live[u.node] {
					queue = append(queue, ^u.node)
				}
			}
		}
	}
	for _, end := range b.end {
		mark(end)
	}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if at < 0 { // looked at again since a rule became productive
			if lives(^at) {
				mark(^at)
			}
			continue
		}
		for _, p := range before[at] {
			if !live[p] && lives(p) {
				mark(p)
			}
		}
	}
	return live, productive
}

// closer replaces empty steps by what is behind them.
type closer struct {
	b          *builder
	live       []bool
	productive []bool
	ends       map[int32]bool
	seen       []int32 // [nodes]: the mark of the last closure that saw the node
	work       int
}

// close gives the node at as it is without empty steps. Targets are still numbers of raw nodes.
func (c *closer) close(at, mark int32) node {
	var out node
	stack := []int32{at}
	if l := c.b.nodes[at].loop; l != nil {
		// What the node can do depends on its count. Its rule lives, or nothing would call it.
		copied := *l
		out.loop = &copied
		stack = append(stack[:0], c.b.nodes[at].empty...)
	}
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if c.seen[i] == mark || !c.live[i] {
			continue
		}
		c.seen[i] = mark
		n := &c.b.nodes[i]
		c.spend(1 + len(n.edges) + len(n.calls) + len(n.empty))
		out.final = out.final || c.ends[i]
		for _, e := range n.edges {
			if c.live[e.to] {
				out.edges = append(out.edges, e)
			}
		}
		for _, k := range n.calls {
			if c.live[k.ret] && c.productive[k.rule] {
				out.calls = append(out.calls, k)
			}
		}
		if l := n.loop; l != nil {
			if c.productive[l.rule] {
				out.calls = append(out.calls, call{l.rule, i, l.next(0)})
			}
			if l.min > 0 {
				continue
			}
		}
		stack = append(stack, n.empty...)
	}
	return out
}

func (c *closer) spend(work int) {
	c.work += work
	if c.work > c.b.limits.Work {
		fail(&LimitError{"steps to build", c.b.limits.Work})
	}
	if c.work&0xffff < work && c.b.ctx.Err() != nil {
		fail(c.b.ctx.Err())
	}
}

// setFirst computes the bytes that each rule may begin with, and fails when a rule may begin with itself.
func (f *nfa) setFirst() {
	const (
		fresh = iota
		open
		done
	)
	f.first = make([][256]bool, len(f.start))
	state := make([]int, len(f.start))
	var visit func(rule int32)
	visit = func(rule int32) {
		switch state[rule] {
		case done:
			return
		case open:
			fail(&InvalidError{"a reference leads back to itself without anything in between", "the whole"})
		}
		state[rule] = open
		if f.start[rule] < 0 {
			state[rule] = done
			return
		}
		n := &f.nodes[f.start[rule]]
		for _, e := range n.edges {
			for x := int(e.lo); x <= int(e.hi); x++ {
				f.first[rule][x] = true
			}
		}
		for _, c := range n.calls {
			visit(c.rule)
			for x, ok := range f.first[c.rule] {
				f.first[rule][x] = f.first[rule][x] || ok
			}
		}
		state[rule] = done
	}
	for rule := range f.start {
		visit(int32(rule))
	}
}

// setClasses finds the bytes that no edge tells apart.
func (f *nfa) setClasses() {
	var cut [257]bool
	for i := range f.nodes {
		for _, e := range f.nodes[i].edges {
			cut[e.lo], cut[int(e.hi)+1] = true, true
		}
	}
	class := -1
	for x := range 256 {
		if x == 0 || cut[x] {
			class++
			f.sample = append(f.sample, byte(x))
		}
		f.class[x] = uint8(class)
	}
	f.classes = class + 1
}
