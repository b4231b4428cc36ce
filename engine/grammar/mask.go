package grammar

import "slices"

// mask is a set of tokens, and whether it could be computed.
type mask struct {
	bits []uint64 // [words]
	err  error
}

// local is what tokens do from a configuration while its rule lasts, which depends neither on the frames below nor on
// what else the state has.
type local struct {
	ids  []int32  // allowed tokens when they are few, else nil
	bits []uint64 // [words]: allowed tokens when they are many, else nil

	// leave are nodes of the trie whose tokens end the rule at least once and then go on with what is not allowed in it.
	leave []int32
	work  int
	err   error
}

// local gives what tokens do from a configuration; nil when that takes too long for a call that must be quick.
func (a *automaton) local(c configuration) *local {
	s := a.beginning(c)
	if s.part == nil {
		part := a.walkLocal(s)
		if part == nil {
			return nil
		}
		s.part = part
		a.bytes += 100 + 4*len(s.part.ids) + 8*len(s.part.bits) + 4*len(s.part.leave)
	}
	return s.part
}

// beginning gives the state in which a local walk from c begins: c above the frames of the loops that it is in, with
// counts replaced by such as make no difference within a token.
func (a *automaton) beginning(c configuration) *state {
	var loops []*frame
	for f := c.under; f.parent != nil && a.nfa.nodes[f.ret].loop != nil && len(loops) < 8; f = f.parent {
		loops = append(loops, f)
	}
	under := a.outside
	for _, f := range slices.Backward(loops) {
		under = a.frame(f.ret, a.alike(f.ret, f.count), under)
	}
	a.found = append(a.found[:0], configuration{c.node, a.alike(c.node, c.count), under})
	return a.state(false)
}

// alike gives a count from which tokens do the same at a node. A round takes at least a byte, so a bound that is further
// away than the longest token is not seen.
func (a *automaton) alike(at, count int32) int32 {
	l, far := a.nfa.nodes[at].loop, int32(a.trie.longest)+1
	switch {
	case l == nil:
		return 0
	case count < l.min && l.min-count > far:
		return 0
	case count >= l.min && l.max >= 0 && l.max-count > far:
		return l.min
	}
	return count
}

// walkLocal walks the vocabulary from a state whose frames end where the rule does, so that canEnd means its end. Nil as in
// local.
func (a *automaton) walkLocal(from *state) *local {
	t, out := a.trie, &local{}
	states, left := make([]*state, t.longest+1), make([]bool, t.longest+1)
	states[0] = from
	for i := 0; i < len(t.bytes); {
		d := t.depth[i]
		s := a.step(states[d-1], t.bytes[i])
		out.work += 1 + len(s.configurations)
		if a.spend(1 + len(s.configurations)) {
			return nil
		}
		if out.work > a.limits.MaskWork {
			return &local{work: out.work, err: &LimitError{"steps for a mask", a.limits.MaskWork}}
		}
		if s.dead() {
			if left[d-1] {
				out.leave = append(out.leave, int32(i))
			}
			i = int(t.skip[i])
			continue
		}
		states[d], left[d] = s, left[d-1] || s.canEnd
		out.ids = append(out.ids, t.order[t.from[i]:t.from[i+1]]...)
		i++
	}
	if len(out.ids)*4 > t.words*8 {
		out.bits = make([]uint64, t.words)
		set(out.bits, out.ids)
		out.ids = nil
	}
	out.ids = slices.Clip(out.ids)
	return out
}

func set(bits []uint64, ids []int32) {
	for _, id := range ids {
		bits[id>>6] |= 1 << (id & 63)
	}
}

// mask gives the tokens that may come in a state; nil as in local. Tokens are allowed when the state after them is not dead.
func (a *automaton) mask(s *state) *mask {
	if s.kept != nil {
		return s.kept
	}
	out := &mask{bits: make([]uint64, a.trie.words)}
	work := 0
	var leave []int32
	for _, c := range s.configurations {
		l := a.local(c)
		if l == nil || a.spend(1+a.trie.words/wordsPerStep) {
			return nil
		}
		work += l.work
		if l.err != nil {
			out.err = l.err
			break
		}
		if l.bits != nil {
			for i, word := range l.bits {
				out.bits[i] |= word
			}
		}
		set(out.bits, l.ids)
		leave = append(leave, l.leave...)
	}
	slices.Sort(leave)
	work += a.walkLeaving(s, slices.Compact(leave), out.bits)
	if a.over() {
		return nil
	}
	if s.canEnd {
		set(out.bits, a.trie.end)
	}
	if out.err == nil && work > a.limits.MaskWork {
		out.err = &LimitError{"steps for a mask", a.limits.MaskWork}
	}
	if out.err == nil && empty(out.bits) {
		out.err = &InvalidError{"no token of the vocabulary can follow", "the whole"}
	}
	s.kept = out
	a.bytes += 64 + 8*len(out.bits)
	return out
}

// wordsPerStep is how many words of a mask are joined in about the time of a step.
const wordsPerStep = 64

func empty(bits []uint64) bool {
	for _, word := range bits {
		if word != 0 {
			return false
		}
	}
	return true
}

// walkLeaving adds the allowed tokens of some subtrees of the trie, which are sorted, and gives the work.
func (a *automaton) walkLeaving(from *state, subtrees []int32, bits []uint64) (work int) {
	t := a.trie
	states := make([]*state, t.longest+1)
	states[0] = from
	path := make([]int32, t.longest+1) // the nodes that states belong to
	for i := range path {
		path[i] = -1
	}
	for _, root := range subtrees {
		// Down to the root of the subtree, as far as the last one did not go there.
		depth := t.depth[root]
		var down []int32
		for node := t.parent[root]; node >= 0 && path[t.depth[node]] != node; node = t.parent[node] {
			down = append(down, node)
		}
		for _, node := range slices.Backward(down) {
			d := t.depth[node]
			states[d], path[d] = a.step(states[d-1], t.bytes[node]), node
			work++
		}
		for i := int(root); i < int(t.skip[root]); {
			d := t.depth[i]
			s := a.step(states[d-1], t.bytes[i])
			work += 1 + len(s.configurations)
			if a.spend(1+len(s.configurations)) || work > a.limits.MaskWork {
				return work
			}
			if s.dead() {
				i = int(t.skip[i])
				continue
			}
			states[d], path[d] = s, int32(i)
			set(bits, t.order[t.from[i]:t.from[i+1]])
			i++
		}
		// Below the root the states are those of its last tokens, not of a path to the next.
		for d := depth; int(d) < len(path); d++ {
			path[d] = -1
		}
	}
	return work
}
