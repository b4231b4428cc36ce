package grammar

import (
	"context"
	"fmt"
	"slices"
)

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
	m.grammar.mu.Lock()
	m.grammar.begin(0, nil)
	defer m.grammar.end()
	_, err := m.mask(dst)
	return err
}

// Accept appends a token. An error means that the token is not allowed, with ErrNotAllowed in it, or, as a *LimitError, that there
// are more ways to read the text than Limits allow; the matcher is where it was.
func (m *Matcher) Accept(token int32) error {
	m.grammar.mu.Lock()
	m.grammar.begin(0, nil)
	defer m.grammar.end()
	_, err := m.accept(token)
	return err
}

// Follow is Accept and then, unless the matcher is Done, Mask. When ctx ends first it gives ctx's error, and the matcher is where
// it was. An error is else that of Accept or Mask.
func (m *Matcher) Follow(ctx context.Context, token int32, dst []uint64) error {
	m.grammar.mu.Lock()
	m.grammar.begin(0, ctx.Done())
	defer m.grammar.end()
	ok, err := m.follow(token, dst)
	if !ok {
		return fmt.Errorf("follow token %d: %w", token, ctx.Err())
	}
	return err
}

// quickWork is the steps that Try takes at most, each some ten nanoseconds: a few tenths of a millisecond. What was asked for
// before takes none.
const quickWork = 8 << 10

// Try is Accept and then, unless the matcher is Done, Mask, provided that both are done quickly. Else, and while another
// goroutine uses the grammar, ok is false and the matcher is where it was. An error is that of Accept or Mask.
func (m *Matcher) Try(token int32, dst []uint64) (ok bool, err error) {
	if !m.grammar.mu.TryLock() {
		return false, nil
	}
	m.grammar.begin(quickWork, nil)
	defer m.grammar.end()
	return m.follow(token, dst)
}

// follow is Follow with the grammar locked; ok is false when the call gives up, and then the matcher is where it was.
func (m *Matcher) follow(token int32, dst []uint64) (ok bool, err error) {
	before := *m
	if ok, err = m.accept(token); ok && err == nil && !m.Done() {
		ok, err = m.mask(dst)
	}
	if !ok {
		*m = before
	}
	return ok, err
}

// mask is Mask with the grammar locked; ok is false when the call gives up.
func (m *Matcher) mask(dst []uint64) (ok bool, err error) {
	a := m.grammar.automaton
	if m.ended {
		clear(dst)
		set(dst, a.trie.end)
		return true, nil
	}
	m.enter()
	k := a.mask(m.state)
	switch {
	case k == nil:
		return false, nil
	case k.err != nil:
		return true, fmt.Errorf("mask the next token: %w", k.err)
	}
	clear(dst[copy(dst, k.bits):])
	return true, nil
}

// accept is Accept with the grammar locked; ok is false when the call gives up.
func (m *Matcher) accept(token int32) (ok bool, err error) {
	g := m.grammar
	if m.ended {
		return true, fmt.Errorf("accept token %d: %w: the text has ended", token, ErrNotAllowed)
	}
	if slices.Contains(g.automaton.trie.end, token) {
		if !m.state.canEnd {
			return true, fmt.Errorf("accept token %d: %w: the text can't end here", token, ErrNotAllowed)
		}
		m.ended = true
		return true, nil
	}
	if token < 0 || int(token) >= len(g.tokens) || len(g.tokens[token]) == 0 {
		return true, fmt.Errorf("accept token %d: %w: it is not in the vocabulary of texts", token, ErrNotAllowed)
	}
	m.enter()
	a, s := g.automaton, m.state
	for _, x := range g.tokens[token] {
		s = a.step(s, x)
		switch {
		case a.over():
			return false, nil
		case s == a.wide:
			return true, fmt.Errorf("accept token %d: %w", token, &LimitError{"ways to read one text", a.limits.Configurations})
		case s.dead():
			return true, fmt.Errorf("accept token %d, %q: %w", token, g.tokens[token], ErrNotAllowed)
		}
	}
	m.state = s
	return true, nil
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
