package grammar

import "fmt"

// Matcher is the place of one text in a grammar. One goroutine uses it at a time; several matchers of one grammar may be
// used at once.
//
//	a token that Mask allows is accepted, and no other is
//	Done implies CanEnd
type Matcher struct {
	grammar    *Grammar
	state      *state
	generation uint64
	ended      bool // the end token came
}

// Clone gives a second matcher at the same place.
func (m *Matcher) Clone() *Matcher {
	copied := *m
	return &copied
}

// Mask writes the set of tokens that may come next: token i is bit i%64 of dst[i/64]. dst has at least as many words as
// Grammar.Words; what is beyond is cleared. The set is never empty: where it would be, and where it takes more work than
// Limits allow, the error says so and dst is undefined. Both come of a source that is too ambiguous, or of a vocabulary
// without all bytes.
func (m *Matcher) Mask(dst []uint64) error {
	g := m.grammar
	if m.ended {
		clear(dst)
		set(dst, g.automaton.trie.end)
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m.enter()
	k := g.automaton.mask(m.state)
	if k.err != nil {
		return fmt.Errorf("mask the next token: %w", k.err)
	}
	clear(dst[copy(dst, k.bits):])
	return nil
}

// Accept appends a token. An error means that the token is not allowed, or that there are more ways to read the text than
// Limits allow; the matcher is where it was.
func (m *Matcher) Accept(token int32) error {
	g := m.grammar
	if m.ended {
		return fmt.Errorf("accept token %d: the text has ended", token)
	}
	for _, end := range g.automaton.trie.end {
		if token == end {
			if !m.state.canEnd {
				return fmt.Errorf("accept token %d: the text can't end here", token)
			}
			m.ended = true
			return nil
		}
	}
	if token < 0 || int(token) >= len(g.tokens) || len(g.tokens[token]) == 0 {
		return fmt.Errorf("accept token %d: it is not in the vocabulary of texts", token)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m.enter()
	a, s := g.automaton, m.state
	for _, x := range g.tokens[token] {
		s = a.step(s, x)
		if s == a.wide {
			return fmt.Errorf("accept token %d: %w", token, &LimitError{"ways to read one text", a.limits.Configurations})
		}
		if s.dead() {
			return fmt.Errorf("accept token %d, %q: the grammar does not allow it here", token, g.tokens[token])
		}
	}
	m.state = s
	return nil
}

// CanEnd reports whether the text may end here.
func (m *Matcher) CanEnd() bool { return m.ended || m.state.canEnd }

// Done reports whether nothing but the end can follow.
func (m *Matcher) Done() bool { return m.ended || m.state.canEnd && len(m.state.configurations) == 0 }

// enter makes the matcher's state one of the automaton's generation, and begins a new one when too much is kept. The
// grammar is locked.
func (m *Matcher) enter() {
	a := m.grammar.automaton
	if a.full() {
		a.reset()
	}
	if m.generation != a.generation {
		m.state, m.generation = a.adopt(m.state), a.generation
	}
}
