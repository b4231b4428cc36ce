package kvcache

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newTree(t testing.TB, capacity, pageSize, window, windowCapacity int, policy Policy) (*Tree, *Pool, *Pool) {
	t.Helper()
	full, err := New(capacity, pageSize)
	if err != nil {
		t.Fatal(err)
	}
	var second *Pool
	if window > 0 {
		if second, err = New(windowCapacity, pageSize); err != nil {
			t.Fatal(err)
		}
	}
	return NewTree(full, second, TreeConfig{Policy: policy, WindowTokens: window}), full, second
}

// put caches tokens and leaves them unlocked.
func put(t testing.TB, tree *Tree, tokens []int32, priority int) {
	t.Helper()
	n := len(tokens) / tree.pageSize
	tree.Evict(n - tree.full.Stats().Available/tree.pageSize)
	pages, ok := tree.full.Alloc(nil, n)
	if !ok {
		t.Fatalf("no %d pages: %+v", n, tree.full.Stats())
	}
	table := Table{Pages: pages}
	if tree.window != nil {
		if table.Window, ok = tree.window.Alloc(nil, n); !ok {
			t.Fatalf("no %d window pages: %+v", n, tree.window.Stats())
		}
	}
	_, got := tree.Insert("", tokens, table, priority)
	for i, page := range pages {
		if got.Pages[i] != page {
			tree.full.Free(pages[i : i+1])
		}
		if tree.window != nil && got.Window[i] != table.Window[i] {
			tree.window.Free(table.Window[i : i+1])
		}
	}
}

func TestEvictionOrder(t *testing.T) {
	a, b, c := []int32{1, 1, 1, 1}, []int32{2, 2, 2, 2}, []int32{3, 3, 3, 3}
	tests := []struct {
		policy Policy
		reason string
		want   []int // of a, b, c in the order in which they go
	}{
		{LRU, "b was used again, then a", []int{2, 1, 0}},
		{LFU, "a was used three times, b twice", []int{2, 1, 0}},
		{FIFO, "a came first", []int{0, 1, 2}},
		{MRU, "a was used last", []int{0, 1, 2}},
		{FILO, "c came last", []int{2, 1, 0}},
		{Priority, "b has the lowest, c the highest", []int{1, 0, 2}},
		{SLRU, "c was never used again, b before a", []int{2, 1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.policy.String(), func(t *testing.T) {
			tree, _, _ := newTree(t, 64, 2, 0, 0, tt.policy)
			all := [][]int32{a, b, c}
			for i, priority := range []int{5, 1, 9} {
				put(t, tree, all[i], priority)
			}
			for _, again := range [][]int32{b, a, a} {
				tree.Match("", again)
			}
			var got []int
			for range all {
				tree.Evict(2)
				for i, tokens := range all {
					if tree.Peek("", tokens) == 0 && !contains(got, i) {
						got = append(got, i)
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if policy, err := ParsePolicy(tt.policy.String()); err != nil || policy != tt.policy {
				t.Errorf("ParsePolicy(%q) = %v, %v", tt.policy.String(), policy, err)
			}
		})
	}
	if _, err := ParsePolicy("rarest"); err == nil {
		t.Error("ParsePolicy takes a policy that does not exist")
	}
}

func contains(list []int, v int) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

// TestEvictionSparesPrefixes: the end of a conversation goes before its beginning, which others share, and locked pages
// never go.
func TestEvictionSparesPrefixes(t *testing.T) {
	tree, full, _ := newTree(t, 64, 2, 0, 0, LRU)
	put(t, tree, []int32{1, 2, 3, 4, 5, 6}, 0)
	put(t, tree, []int32{1, 2, 3, 4, 7, 8}, 0)
	prefix, table := tree.Match("", []int32{1, 2, 3, 4, 9, 9})
	if diff := cmp.Diff(Table{Pages: []int32{0, 1}}, table); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	h := tree.Lock(prefix)
	if err := tree.Check(Owned{Handles: []Handle{h}}); err != nil {
		t.Error(err)
	}
	if freed := tree.Evict(100); freed != 2 {
		t.Errorf("freed %d pages, want the two ends", freed)
	}
	if diff := cmp.Diff(Stats{Capacity: 64, Available: 60, Used: 4}, full.Stats()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	tree.Unlock(&h)
	tree.Reset()
	if diff := cmp.Diff(Stats{Capacity: 64, Available: 64}, full.Stats()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWindow: a prefix is found where the window before its end is cached, and no further.
func TestWindow(t *testing.T) {
	tokens := []int32{1, 2, 3, 4, 5, 6, 7, 8}
	tests := []struct {
		name, reason string
		window       int
		gone         int // window pages evicted, of 4
		want         int // tokens found
	}{
		{"whole", "all is there", 3, 0, 8},
		{"early ones gone", "a token behind 8 sees 6 and 7, which the last page holds", 3, 3, 8},
		{"a wide window", "a token behind 8 sees from 2 on, where the second page begins", 7, 1, 8},
		{"a hole", "the second page is missing behind 8, and the first behind 2", 7, 2, 0},
		{"all gone", "nothing to build on", 1000, 4, 0},
		{"a window of one", "a token sees itself", 1, 4, 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree, _, window := newTree(t, 64, 2, tt.window, 64, LRU)
			put(t, tree, tokens, 0)
			if freed := tree.EvictWindow(tt.gone); freed != tt.gone {
				t.Fatalf("freed %d window pages", freed)
			}
			if got := tree.Peek("", tokens); got != tt.want {
				t.Errorf("%s: found %d tokens, want %d", tt.reason, got, tt.want)
			}
			put(t, tree, tokens, 0)
			if got := tree.Peek("", tokens); got != 8 || window.Stats().Evictable != 8 {
				t.Errorf("computed again: found %d tokens, window pool %+v", got, window.Stats())
			}
			if err := tree.Check(Owned{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestResetWhileLocked(t *testing.T) {
	tree, _, _ := newTree(t, 64, 2, 0, 0, LRU)
	put(t, tree, []int32{1, 2}, 0)
	prefix, _ := tree.Match("", []int32{1, 2})
	tree.Lock(prefix)
	defer func() {
		if recover() == nil {
			t.Error("Reset gave away a locked page")
		}
	}()
	tree.Reset()
}

func BenchmarkTree(b *testing.B) {
	for _, pageSize := range []int{1, 16} {
		const prompt, prompts = 2048, 256
		tokens := func(i int) []int32 {
			list := make([]int32, prompt)
			for j := range list {
				list[j] = int32(j)
				if j >= prompt/2 { // the first half is shared
					list[j] = int32(j * (i + 1))
				}
			}
			return list
		}
		b.Run(fmt.Sprintf("match/page=%d", pageSize), func(b *testing.B) {
			tree, _, _ := newTree(b, prompt*prompts, pageSize, 0, 0, LRU)
			for i := range prompts {
				put(b, tree, tokens(i), 0)
			}
			t := tokens(7)
			b.ReportAllocs()
			for b.Loop() {
				prefix, _ := tree.Match("", t)
				h := tree.Lock(prefix)
				tree.Unlock(&h)
			}
		})
		b.Run(fmt.Sprintf("insert and evict/page=%d", pageSize), func(b *testing.B) {
			tree, _, _ := newTree(b, prompt*8, pageSize, 0, 0, LRU)
			all := make([][]int32, prompts)
			for i := range all {
				all[i] = tokens(i)
			}
			i := 0
			for b.Loop() {
				put(b, tree, all[i%prompts], 0)
				i++
			}
		})
	}
}

// TestNodesKeepNoOtherMemory: what is left of a long node that was split and evicted takes the memory of what it is.
func TestNodesKeepNoOtherMemory(t *testing.T) {
	tree, _, _ := newTree(t, 1024, 1, 0, 0, LRU)
	long := make([]int32, 1000)
	for i := range long {
		long[i] = int32(i)
	}
	put(t, tree, long, 0)
	tree.Match("", long[:3])
	tree.Evict(990)
	upper := tree.roots[""].children[string(tree.firstPage(long))]
	lower := upper.children[string(tree.firstPage(long[3:]))]
	for _, n := range []*node{upper, lower} {
		if len(n.tokens) > 7 || cap(n.tokens) > 4*len(n.tokens) || cap(n.pages) > 4*len(n.pages) {
			t.Errorf("a node of %d tokens keeps memory for %d and for %d pages", len(n.tokens), cap(n.tokens), cap(n.pages))
		}
	}
}
