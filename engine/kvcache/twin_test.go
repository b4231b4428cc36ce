package kvcache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// entry is a cached page in the naive twin of the tree, which knows no nodes: every page stands alone, found by all the
// tokens before its end.
type entry struct {
	pages        int // up to its end
	page, window int32
	age          age
	locks        int
	windowLocks  int
}

// naive is the tree as one would first write it: full scans over a map.
type naive struct {
	pageSize, windowTokens int
	policy                 Policy
	entries                map[string]*entry
	tick                   uint64
}

func (w *naive) name(key string, tokens []int32) string { return fmt.Sprint(key, ":", tokens) }

// path gives the entries of the longest cached beginning.
func (w *naive) path(key string, tokens []int32) (list []*entry) {
	for n := w.pageSize; n <= len(tokens); n += w.pageSize {
		e := w.entries[w.name(key, tokens[:n])]
		if e == nil {
			break
		}
		list = append(list, e)
	}
	return list
}

func (w *naive) windowFrom(end int) int { return max(end*w.pageSize-w.windowTokens+1, 0) / w.pageSize }

func (w *naive) usable(list []*entry) []*entry {
	for ; w.windowTokens > 0; list = list[:len(list)-1] {
		whole := true
		for _, e := range list[w.windowFrom(len(list)):] {
			whole = whole && e.window != none
		}
		if whole {
			break
		}
	}
	return list
}

func (w *naive) table(list []*entry) Table {
	var t Table
	for _, e := range list {
		t.Pages = append(t.Pages, e.page)
		if w.windowTokens > 0 {
			t.Window = append(t.Window, e.window)
		}
	}
	return t
}

func (w *naive) touch(list []*entry) {
	w.tick++
	for _, e := range list {
		e.age.used = w.tick
		e.age.hits++
	}
}

func (w *naive) match(key string, tokens []int32) []*entry {
	if !w.has(key) {
		return nil
	}
	list := w.usable(w.path(key, tokens))
	w.touch(list)
	return list
}

func (w *naive) has(key string) bool {
	for name := range w.entries {
		if strings.HasPrefix(name, key+":") {
			return true
		}
	}
	return false
}

func (w *naive) insert(key string, tokens []int32, t Table, priority int) []*entry {
	list := w.path(key, tokens)
	w.touch(list)
	for i, e := range list {
		e.age.priority = max(e.age.priority, priority)
		if w.windowTokens > 0 && e.window == none {
			e.window = t.Window[i]
		}
	}
	for i := len(list); i < len(t.Pages); i++ {
		e := &entry{pages: i + 1, page: t.Pages[i], window: none, age: age{used: w.tick, created: w.tick, hits: 1, priority: priority}}
		if w.windowTokens > 0 {
			e.window = t.Window[i]
		}
		w.entries[w.name(key, tokens[:(i+1)*w.pageSize])] = e
		list = append(list, e)
	}
	return list
}

func (w *naive) lock(list []*entry, by int) {
	for i, e := range list {
		e.locks += by
		if w.windowTokens > 0 && i >= w.windowFrom(len(list)) {
			e.windowLocks += by
		}
	}
}

// evict removes one page; "" when there is none to remove.
func (w *naive) evict() (page int32, ok bool) {
	var first string
	for name, e := range w.entries {
		extended := false
		for other := range w.entries {
			extended = extended || strings.HasPrefix(other, strings.TrimSuffix(name, "]")+" ")
		}
		if extended || e.locks > 0 {
			continue
		}
		if first == "" || w.policy.compare(e.age, w.entries[first].age) < 0 {
			first = name
		}
	}
	if first == "" {
		return 0, false
	}
	page = w.entries[first].page
	delete(w.entries, first)
	return page, true
}

func (w *naive) evictWindow() bool {
	var first *entry
	for _, e := range w.entries {
		if e.window == none || e.windowLocks > 0 {
			continue
		}
		if first == nil || e.age.used < first.age.used || e.age.used == first.age.used && e.pages < first.pages {
			first = e
		}
	}
	if first == nil {
		return false
	}
	first.window = none
	return true
}

// holder is a live sequence of the test: what it locks in both trees, and its own pages.
type holder struct {
	handle  Handle
	entries []*entry
	moved   bool // its window was given up
}

// operations runs random calls on the tree and its twin. Bytes decide, so that a fuzzer can too.
type operations struct {
	t       testing.TB
	tree    *Tree
	full    *Pool
	window  *Pool
	twin    *naive
	holders []*holder
	next    func(n int) int // below n
}

func newOperations(t testing.TB, next func(n int) int) *operations {
	pageSize, windowTokens := []int{1, 2, 4, 16}[next(4)], 0
	pages := 20 + next(40)
	full, err := New(pages*pageSize, pageSize)
	if err != nil {
		t.Fatal(err)
	}
	var window *Pool
	if next(2) == 1 {
		windowTokens = 1 + next(4*pageSize)
		if window, err = New((10+next(30))*pageSize, pageSize); err != nil {
			t.Fatal(err)
		}
	}
	policy := Policy(next(len(policyNames)))
	return &operations{
		t: t, full: full, window: window, next: next,
		tree: NewTree(full, window, TreeConfig{Policy: policy, WindowTokens: windowTokens}),
		twin: &naive{pageSize: pageSize, windowTokens: windowTokens, policy: policy, entries: map[string]*entry{}},
	}
}

// sequence makes tokens from a tiny alphabet, so that beginnings repeat.
func (o *operations) sequence() (key string, tokens []int32) {
	key = []string{"", "", "tenant"}[o.next(3)]
	n := o.next(9 * o.twin.pageSize)
	for range n {
		id := int32(0)
		if o.next(2*o.twin.pageSize) == 0 {
			id = int32(1 + o.next(2))
		}
		tokens = append(tokens, id)
	}
	return key, tokens
}

func (o *operations) step() {
	switch o.next(8) {
	case 0, 1:
		o.compute()
	case 2:
		o.peek()
	case 3:
		if len(o.holders) > 0 {
			i := o.next(len(o.holders))
			h := o.holders[i]
			o.holders = slices.Delete(o.holders, i, i+1)
			alone, before := o.tree.Alone(h.handle), o.full.Stats()
			o.tree.Unlock(&h.handle)
			if after := o.full.Stats(); after.Used != before.Used-alone*o.tree.pageSize {
				o.t.Fatalf("a handle alone keeps %d pages; unlocked it changes %+v to %+v", alone, before, after)
			}
			o.unlock(h)
		}
	case 4:
		if len(o.holders) > 0 {
			h := o.holders[o.next(len(o.holders))]
			o.tree.UnlockWindow(&h.handle)
			o.unlockWindow(h)
		}
	case 5:
		o.evict(o.next(8))
	case 6:
		o.evictWindow(o.next(5))
	case 7:
		if len(o.holders) == 0 && o.next(10) == 0 {
			o.tree.Reset()
			clear(o.twin.entries)
		}
	}
	o.check()
}

func (o *operations) unlock(h *holder) {
	o.unlockWindow(h)
	for _, e := range h.entries {
		e.locks--
	}
}

func (o *operations) unlockWindow(h *holder) {
	if h.moved || o.twin.windowTokens == 0 {
		return
	}
	h.moved = true
	for _, e := range h.entries[o.twin.windowFrom(len(h.entries)):] {
		e.windowLocks--
	}
}

func (o *operations) peek() {
	key, tokens := o.sequence()
	if got, want := o.tree.Peek(key, tokens), len(o.twin.usable(o.twin.path(key, tokens)))*o.twin.pageSize; got != want {
		o.t.Fatalf("Peek gives %d tokens, the twin %d", got, want)
	}
}

// compute is a request's life up to its end: match, lock, own pages for the rest, insert, lock instead.
func (o *operations) compute() {
	key, tokens := o.sequence()
	tokens = tokens[:len(tokens)/o.twin.pageSize*o.twin.pageSize]
	prefix, table := o.tree.Match(key, tokens)
	list := o.twin.match(key, tokens)
	if diff := cmp.Diff(o.twin.table(list), table); diff != "" || prefix.Pages() != len(list) {
		o.t.Fatalf("Match gives %d pages (-twin +tree):\n%s", prefix.Pages(), diff)
	}
	first := &holder{handle: o.tree.Lock(prefix), entries: list}
	o.twin.lock(list, 1)
	o.check1(first)
	need := len(tokens)/o.twin.pageSize - len(list)
	if short := need - o.full.Stats().Available/o.twin.pageSize; short > 0 {
		o.evict(short)
	}
	var ok bool
	if table.Pages, ok = o.full.Alloc(table.Pages, need); !ok {
		o.holders = append(o.holders, first)
		return
	}
	if o.window != nil {
		if short := need - o.window.Stats().Available/o.twin.pageSize; short > 0 {
			o.evictWindow(short)
		}
		if table.Window, ok = o.window.Alloc(table.Window, need); !ok {
			o.full.Free(table.Pages[len(list):])
			o.holders = append(o.holders, first)
			return
		}
		// Pages that are not locked are not the sequence's, and it has moved on from some of its own.
		from := o.twin.windowFrom(len(list))
		for i := range table.Window {
			switch {
			case i < min(from, len(list)):
				table.Window[i] = none
			case i >= len(list) && o.next(4) == 0:
				o.window.Free(table.Window[i : i+1])
				table.Window[i] = none
			}
		}
	}
	given := Table{Pages: slices.Clone(table.Pages), Window: slices.Clone(table.Window)}
	priority := o.next(4)
	prefix, got := o.tree.Insert(key, tokens, given, priority)
	list = o.twin.insert(key, tokens, given, priority)
	want := o.twin.table(list)
	if len(list) == 0 {
		want = Table{}
	}
	if diff := cmp.Diff(want, got); diff != "" || prefix.Pages() != len(list) {
		o.t.Fatalf("Insert gives %d pages (-twin +tree):\n%s", prefix.Pages(), diff)
	}
	for i, page := range given.Pages {
		if page != got.Pages[i] {
			o.full.Free([]int32{page})
		}
		if o.window != nil && given.Window[i] != none && given.Window[i] != got.Window[i] {
			o.window.Free(given.Window[i : i+1])
		}
	}
	second := &holder{handle: o.tree.Lock(prefix), entries: list}
	o.twin.lock(list, 1)
	o.tree.Unlock(&first.handle)
	o.unlock(first)
	if o.next(3) == 0 {
		o.holders = append(o.holders, second)
		return
	}
	o.tree.Unlock(&second.handle)
	o.unlock(second)
}

func (o *operations) evict(n int) {
	freed := o.tree.Evict(n)
	for i := range n {
		if _, ok := o.twin.evict(); !ok {
			n = i
			break
		}
	}
	if freed != n {
		o.t.Fatalf("Evict frees %d pages, the twin %d", freed, n)
	}
}

func (o *operations) evictWindow(n int) {
	freed := o.tree.EvictWindow(n)
	for i := range n {
		if !o.twin.evictWindow() {
			n = i
			break
		}
	}
	if freed != n {
		o.t.Fatalf("EvictWindow frees %d pages, the twin %d", freed, n)
	}
}

// check wants the properties, and the cache of the twin.
func (o *operations) check() { o.check1(nil) }

func (o *operations) check1(more *holder) {
	var owned Owned
	for _, h := range o.holders {
		owned.Handles = append(owned.Handles, h.handle)
	}
	if more != nil {
		owned.Handles = append(owned.Handles, more.handle)
	}
	if err := o.tree.Check(owned); err != nil {
		o.t.Fatal(err)
	}
	if all := o.tree.Alone(owned.Handles...) * o.tree.pageSize; all != o.tree.Protected() {
		o.t.Fatalf("all handles keep %d tokens, but %d are protected", all, o.tree.Protected())
	}
	if n := len(owned.Handles) / 2; n > 0 {
		o.alone(n)
	}
	locked := 0
	for _, e := range o.twin.entries {
		if e.locks > 0 {
			locked++
		}
	}
	type sizes struct{ Size, Protected int }
	if diff := cmp.Diff(sizes{len(o.twin.entries) * o.twin.pageSize, locked * o.twin.pageSize}, sizes{o.tree.Size(), o.tree.Protected()}); diff != "" {
		o.t.Fatalf("(-twin +tree):\n%s", diff)
	}
}

// alone wants of the first n holders what they keep together.
func (o *operations) alone(n int) {
	if n > len(o.holders) {
		return
	}
	locks := map[*entry]int{}
	var handles []Handle
	for _, h := range o.holders[:n] {
		handles = append(handles, h.handle)
		for _, e := range h.entries {
			locks[e]++
		}
	}
	want := 0
	for e, l := range locks {
		if l == e.locks {
			want++
		}
	}
	if got := o.tree.Alone(handles...); got != want {
		o.t.Fatalf("%d of %d handles alone keep %d pages, the twin says %d", n, len(o.holders), got, want)
	}
}

func TestTreeAgainstTwin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for round := range 300 {
		t.Run(fmt.Sprintf("seed %d", seed+uint64(round)), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed+uint64(round), 0))
			o := newOperations(t, rng.IntN)
			for range 120 {
				o.step()
			}
		})
	}
}

func FuzzTree(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Add([]byte{1, 9, 1, 3, 0, 0, 5, 0, 1, 0, 200, 3, 0, 5, 5, 6, 6, 0, 0, 0, 1, 255, 254})
	f.Fuzz(func(t *testing.T, data []byte) {
		o := newOperations(t, func(n int) int {
			if len(data) == 0 {
				return 0
			}
			v := int(data[0]) % n
			data = data[1:]
			return v
		})
		for len(data) > 0 {
			o.step()
		}
	})
}
