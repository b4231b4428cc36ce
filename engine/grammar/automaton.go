package grammar

import (
	"encoding/binary"
	"slices"
	"strings"
)

// frame is what a configuration goes on with when its rule ends. Frames are a linked list whose last has no parent and
// stands for what is outside: for the end of the text, or in mask.go for what nobody looks at there. Two frames of one
// generation are the same exactly when they are equal.
type frame struct {
	ret, count int32 // -1: outside
	parent     *frame
	id         uint64 // unique in the generation
}

// configuration is one way in which the text can be read so far: it is at a node of a rule, with count finished rounds
// where the node counts.
type configuration struct {
	node, count int32
	under       *frame
}

// state is all ways in which the text can be read so far. It does not change but for what is kept about it.
type state struct {
	configurations []configuration // sorted by node, count and frame id; those that can only end are left out
	canEnd         bool            // the text may end here
	next           []*state        // [classes]: nil where not known yet

	kept *mask  // of the vocabulary, when known
	part *local // when the state is the beginning of a local walk, and known
}

// dead reports whether no text leads on from here, nor ends here.
func (s *state) dead() bool { return len(s.configurations) == 0 && !s.canEnd }

// automaton runs an nfa as sets of configurations, found when they are first asked for. One goroutine at a time.
type automaton struct {
	nfa  *nfa
	trie *trie

	limits Limits
	keep   int // bytes to keep at most

	// spent is the steps of the call under way. It gives up once it is out of allowance, see begin.
	spent, allowance int
	unwanted         <-chan struct{} // looked at each time when spent has reached look
	look             int
	gone             bool // unwanted was closed

	generation uint64 // of states and frames; it ends when too much is kept
	bytes      int    // kept, an estimate
	states     map[string]*state
	frames     map[frame]*frame // by ret, count and parent, with id 0
	outside    *frame
	none       *state // no configurations
	wide       *state // too many configurations; dead
	start      *state

	visited map[configuration]bool // scratch: what was landed on
	begun   map[configuration]bool // scratch: what was gone on from
	found   []configuration        // scratch
	key     []byte                 // scratch
}

func newAutomaton(n *nfa, t *trie, limits Limits, keep int) *automaton {
	a := &automaton{nfa: n, trie: t, limits: limits, keep: keep, visited: map[configuration]bool{}, begun: map[configuration]bool{}}
	a.reset()
	return a
}

// reset begins a generation.
func (a *automaton) reset() {
	a.generation++
	a.bytes = 0
	// Who still holds a state must not keep the rest alive through it.
	for _, s := range a.states {
		s.next, s.kept, s.part = nil, nil, nil
	}
	a.states, a.frames = map[string]*state{}, map[frame]*frame{}
	a.outside = &frame{ret: -1}
	a.none, a.wide = &state{}, &state{}
	clear(a.visited)
	a.found = a.found[:0]
	canEnd := a.land(configuration{a.nfa.start[0], 0, a.outside})
	a.start = a.state(canEnd)
}

// full reports whether a generation is to end.
func (a *automaton) full() bool { return a.bytes > a.keep }

// stepsPerNew is how many steps that are known take the time of one that is not, by configuration.
const stepsPerNew = 16

// stepsPerLook is how many steps a call takes until it looks whether it is still wanted: some tenths of a millisecond.
const stepsPerLook = 8 << 10

// begin begins a call. With allowance > 0 it gives up once it has spent more steps, with a channel soon after that is closed.
func (a *automaton) begin(allowance int, unwanted <-chan struct{}) {
	a.spent, a.allowance = 0, allowance
	a.unwanted, a.look, a.gone = unwanted, 0, false
}

// spend counts steps; it reports whether the call under way gives up.
func (a *automaton) spend(steps int) (over bool) {
	a.spent += steps
	if a.unwanted != nil && a.spent >= a.look {
		a.look = a.spent + stepsPerLook
		select {
		case <-a.unwanted:
			a.gone = true
		default:
		}
	}
	return a.over()
}

// over reports whether the call under way gives up.
func (a *automaton) over() bool { return a.gone || a.allowance > 0 && a.spent > a.allowance }

// adopt gives the state of this generation that is equal to one of another.
func (a *automaton) adopt(s *state) *state {
	moved := map[*frame]*frame{}
	move := func(f *frame) *frame {
		// The list may be long: down by a loop, up again by another.
		var path []*frame
		for ; f.parent != nil && moved[f] == nil; f = f.parent {
			path = append(path, f)
		}
		to := moved[f]
		if to == nil {
			to = a.outside
		}
		for _, f := range slices.Backward(path) {
			to = a.frame(f.ret, f.count, to)
			moved[f] = to
		}
		return to
	}
	a.found = a.found[:0]
	for _, c := range s.configurations {
		a.found = append(a.found, configuration{c.node, c.count, move(c.under)})
	}
	return a.state(s.canEnd)
}

// frame gives the frame of what to go on with.
func (a *automaton) frame(ret, count int32, parent *frame) *frame {
	key := frame{ret: ret, count: count, parent: parent}
	f, ok := a.frames[key]
	if !ok {
		f = &frame{ret, count, parent, uint64(len(a.frames) + 1)}
		a.frames[key] = f
		a.bytes += 160
	}
	return f
}

// push gives the frame for a call from under, which is under itself when nothing is left to do after it.
func (a *automaton) push(c call, under *frame) *frame {
	if a.nfa.nodes[c.ret].idle() {
		return under
	}
	return a.frame(c.ret, c.count, under)
}

// open reports whether the edges and calls of a configuration's node hold, and its end.
func (c *configuration) open(n *node) bool { return n.loop == nil || c.count >= n.loop.min }

// land adds a configuration to what was found, and all that it is at once by ending rules. It reports whether the text
// can end.
func (a *automaton) land(c configuration) (canEnd bool) {
	for !a.visited[c] {
		a.visited[c] = true
		n := &a.nfa.nodes[c.node]
		if !n.idle() {
			a.found = append(a.found, c)
		}
		if !n.final || !c.open(n) {
			return false
		}
		if c.under.parent == nil {
			return true
		}
		c = configuration{c.under.ret, c.under.count, c.under.parent}
	}
	return false
}

// state gives the state of what was found.
func (a *automaton) state(canEnd bool) *state {
	if len(a.found) == 0 && !canEnd {
		return a.none
	}
	if a.nfa.counts && len(a.found) > 1 {
		a.found = dropCovered(a.nfa, a.found)
	}
	slices.SortFunc(a.found, func(x, y configuration) int {
		switch {
		case x.node != y.node:
			return int(x.node - y.node)
		case x.count != y.count:
			return int(x.count - y.count)
		case x.under.id < y.under.id:
			return -1
		case x.under.id > y.under.id:
			return 1
		}
		return 0
	})
	a.key = append(a.key[:0], 0)
	if canEnd {
		a.key[0] = 1
	}
	for _, c := range a.found {
		a.key = binary.AppendUvarint(a.key, uint64(c.node))
		a.key = binary.AppendUvarint(a.key, uint64(c.count))
		a.key = binary.AppendUvarint(a.key, c.under.id)
	}
	s, ok := a.states[string(a.key)]
	if !ok {
		s = &state{configurations: slices.Clone(a.found), canEnd: canEnd}
		a.states[strings.Clone(string(a.key))] = s
		a.bytes += 200 + 24*len(s.configurations) + len(a.key)
	}
	return s
}

// step gives the state after one more byte.
func (a *automaton) step(s *state, x byte) *state {
	class := a.nfa.class[x]
	if s.next == nil {
		if s.dead() {
			return a.none
		}
		s.next = make([]*state, a.nfa.classes)
		a.bytes += 8 * a.nfa.classes
	}
	if next := s.next[class]; next != nil {
		return next
	}
	a.spend(stepsPerNew * (1 + len(s.configurations)))
	next := a.successor(s, a.nfa.sample[class])
	s.next[class] = next
	return next
}

func (a *automaton) successor(s *state, x byte) *state {
	clear(a.visited)
	a.found = a.found[:0]
	canEnd := false
	clear(a.begun)
	var walk func(c configuration)
	enter := func(rule int32, under *frame) {
		if a.nfa.first[rule][x] {
			walk(configuration{a.nfa.start[rule], 0, under})
		}
	}
	walk = func(c configuration) {
		if a.begun[c] || a.tooWide() {
			return
		}
		a.begun[c] = true
		n := &a.nfa.nodes[c.node]
		if c.open(n) {
			for _, e := range n.edges {
				if e.lo <= x && x <= e.hi && a.land(configuration{e.to, 0, c.under}) {
					canEnd = true
				}
			}
			for _, k := range n.calls {
				if a.nfa.first[k.rule][x] {
					enter(k.rule, a.push(k, c.under))
				}
			}
		}
		if l := n.loop; l != nil && (l.max < 0 || c.count < l.max) && a.nfa.first[l.rule][x] {
			enter(l.rule, a.push(call{l.rule, c.node, l.next(c.count)}, c.under))
		}
	}
	for _, c := range s.configurations {
		walk(c)
	}
	if a.tooWide() {
		return a.wide
	}
	return a.state(canEnd)
}

// tooWide reports whether a successor has, or needs, more configurations than there may be.
func (a *automaton) tooWide() bool {
	return max(len(a.found), len(a.begun)) > a.limits.Configurations
}
