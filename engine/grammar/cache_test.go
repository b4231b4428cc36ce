package grammar

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

// kept gives the sources that the cache holds, most recently used first, after checking its sums.
func (c *Compiler) kept(t *testing.T) (sources []string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := 0
	for place := c.cache.recent.Front(); place != nil; place = place.Next() {
		e := place.Value.(*entry)
		if e.place != place {
			t.Errorf("%q has another place in the cache", e.spec.Source)
		}
		if n := recount(e); n != e.bytes {
			t.Errorf("%q: %d bytes are counted, its parts have %d", e.spec.Source, e.bytes, n)
		}
		sum += e.bytes
		sources = append(sources, e.spec.Source)
	}
	if sum != c.cache.bytes {
		t.Errorf("%d bytes are counted, the entries have %d", c.cache.bytes, sum)
	}
	if len(sources) > 1 && sum > c.cache.most {
		t.Errorf("%d bytes are kept, more than %d", sum, c.cache.most)
	}
	return sources
}

// recount is the naive twin of an entry's bytes: it adds up what is there.
func recount(e *entry) int {
	n := entryBytes + len(e.spec.Source)
	if e.grammar == nil {
		return n
	}
	a := e.grammar.automaton
	n += a.nfa.bytes() + 160*len(a.frames)
	once := map[*state]bool{}
	add := func(s *state) {
		if once[s] {
			return
		}
		once[s] = true
		if s.next != nil {
			n += 8 * a.nfa.classes
		}
		if s.kept != nil {
			n += 64 + 8*len(s.kept.bits)
		}
		if s.part != nil {
			n += 100 + 4*len(s.part.ids) + 8*len(s.part.bits) + 4*len(s.part.leave)
		}
	}
	for key, s := range a.states {
		n += 200 + 24*len(s.configurations) + len(key)
		add(s)
	}
	return n
}

// TestCacheOfBytes: all grammars together stay within their bytes, the one that was used last is kept, what one finds out
// counts, and one that was dropped while a request uses it goes on and is counted again.
func TestCacheOfBytes(t *testing.T) {
	const most = 64 << 10
	v := letters("ab", "abc", "bb")
	c := newTestCompiler(t, v, Config{CacheBytes: most, KeepBytes: most / 2})
	first := must(c.Compile(context.Background(), Spec{Regex, `a+`}))
	held := first.Matcher()
	if got := c.kept(t); !slices.Equal(got, []string{`a+`}) {
		t.Fatalf("%q is kept", got)
	}
	for i := range 200 {
		if _, err := c.Compile(context.Background(), Spec{Regex, fmt.Sprintf(`b{%d}`, i+1)}); err != nil {
			t.Fatal(err)
		}
		if got := c.kept(t); got[0] != fmt.Sprintf(`b{%d}`, i+1) {
			t.Fatalf("%q is the most recent", got[0])
		}
	}
	got := c.kept(t)
	if len(got) < 2 || len(got) >= 200 || slices.Contains(got, `a+`) {
		t.Fatalf("%d of 201 are kept, a+ among them: %v", len(got), slices.Contains(got, `a+`))
	}
	mask := make([]uint64, c.Words())
	if err := held.Accept('a'); err != nil {
		t.Fatal(err)
	}
	if err := held.Mask(mask); err != nil || mask['a'>>6]>>('a'&63)&1 != 1 {
		t.Errorf("a dropped grammar: %v", err)
	}
	if got := c.kept(t); got[0] != `a+` {
		t.Errorf("%q is the most recent, not the one that is used", got[0])
	}
	if again := must(c.Compile(context.Background(), Spec{Regex, `a+`})); again != first {
		t.Error("who asks for a grammar that is used gets another")
	}
	if _, err := c.Compile(context.Background(), Spec{Regex, `(`}); err == nil {
		t.Fatal("no error")
	}
	if got := c.kept(t); got[0] != `(` {
		t.Errorf("%q is the most recent, not the fault", got[0])
	}
}

// TestCacheUnderUse: many goroutines compile and walk in a cache that is too small; the sums hold, and every text is right.
func TestCacheUnderUse(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	v := letters("ab", "abc", "[[", "0,")
	c := newTestCompiler(t, v, Config{CacheBytes: 100_000, KeepBytes: 20_000})
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 40 {
				n := 1 + r.IntN(30)
				g, err := c.Compile(context.Background(), Spec{Regex, strings.Repeat(`(ab|abc)`, n)})
				if err != nil {
					t.Error(err)
					return
				}
				if text, ok := walk(t, r, &v, g); ok && strings.Count(string(text), "ab") != n {
					t.Errorf("%q is not %d times ab or abc", text, n)
				}
			}
		})
	}
	wait.Wait()
	if got := c.kept(t); len(got) == 0 {
		t.Error("nothing is kept")
	}
}
