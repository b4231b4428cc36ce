package tokenizer

import (
	"container/heap"
	"sync"
)

// bpe merges the bytes of one word. Properties: of all adjacent pairs that have a merge, the one of lowest rank is merged
// first, of equal ranks the leftmost; a word of n bytes takes O(n log n).
type bpe struct {
	byteID [256]int32
	merges map[pair]merge
	// whole holds the entries that are taken as they are when a word equals one (ignore_merges); nil without.
	whole map[string]int32

	cache wordCache
}

type pair struct{ left, right int32 }

type merge struct {
	rank int32 // position in model.merges
	id   int32
}

// appendWord appends the ids of a word to ids.
func (b *bpe) appendWord(ids []int32, word string) []int32 {
	if id, ok := b.whole[word]; ok {
		return append(ids, id)
	}
	if len(word) == 1 {
		return append(ids, b.byteID[word[0]])
	}
	if cached, ok := b.cache.get(word); ok {
		return append(ids, cached...)
	}
	from := len(ids)
	ids = b.merge(ids, word)
	b.cache.put(word, ids[from:])
	return ids
}

// symbol is a part of the word in a doubly linked list; a merged-away symbol has id -1.
type symbol struct{ id, prev, next int32 }

// candidate is a pair that could be merged when it was queued: symbols at and at.next had these ids.
type candidate struct {
	merge
	at   int32
	pair pair
}

type candidates []candidate

func (c candidates) Len() int      { return len(c) }
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c candidates) Less(i, j int) bool {
	if c[i].rank != c[j].rank {
		return c[i].rank < c[j].rank
	}
	return c[i].at < c[j].at
}
func (c *candidates) Push(x any) { *c = append(*c, x.(candidate)) }
func (c *candidates) Pop() any {
	old := *c
	x := old[len(old)-1]
	*c = old[:len(old)-1]
	return x
}

func (b *bpe) merge(ids []int32, word string) []int32 {
	symbols := make([]symbol, len(word))
	for i := range len(word) {
		symbols[i] = symbol{id: b.byteID[word[i]], prev: int32(i - 1), next: int32(i + 1)}
	}
	symbols[len(word)-1].next = -1

	var queue candidates
	consider := func(at int32) (c candidate, ok bool) {
		if at < 0 || symbols[at].next < 0 {
			return candidate{}, false
		}
		p := pair{symbols[at].id, symbols[symbols[at].next].id}
		m, ok := b.merges[p]
		return candidate{merge: m, at: at, pair: p}, ok
	}
	for i := range symbols {
		if c, ok := consider(int32(i)); ok {
			queue = append(queue, c)
		}
	}
	heap.Init(&queue)
	for len(queue) > 0 {
		c := heap.Pop(&queue).(candidate)
		left := &symbols[c.at]
		if left.id != c.pair.left || left.next < 0 || symbols[left.next].id != c.pair.right {
			continue // one of the two was merged with another neighbour since
		}
		right := &symbols[left.next]
		left.id, left.next, right.id = c.id, right.next, -1
		if left.next >= 0 {
			symbols[left.next].prev = c.at
		}
		for _, at := range [2]int32{left.prev, c.at} {
			if n, ok := consider(at); ok {
				heap.Push(&queue, n)
			}
		}
	}
	for i := int32(0); i >= 0; i = symbols[i].next {
		ids = append(ids, symbols[i].id)
	}
	return ids
}

// wordCache remembers the ids of words. It holds at most maxCachedWords short words and is emptied when full.
type wordCache struct {
	mu    sync.RWMutex
	words map[string][]int32
}

const (
	maxCachedWords     = 1 << 16
	maxCachedWordBytes = 64
)

func (c *wordCache) get(word string) (ids []int32, ok bool) {
	if len(word) > maxCachedWordBytes {
		return nil, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	ids, ok = c.words[word]
	return ids, ok
}

func (c *wordCache) put(word string, ids []int32) {
	if len(word) > maxCachedWordBytes {
		return
	}
	// The word may be a part of a long prompt, which the cache must not keep alive.
	key, value := string([]byte(word)), append([]int32(nil), ids...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.words == nil || len(c.words) >= maxCachedWords {
		c.words = make(map[string][]int32)
	}
	c.words[key] = value
}
