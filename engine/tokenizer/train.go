package tokenizer

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
)

// trainWord is a distinct word of the training text, as it is merged so far.
type trainWord struct {
	ids   []int32
	count int
}

// pairCount is a pair and how often it occurred when it was queued.
type pairCount struct {
	pair  pair
	count int
}

// pairQueue has the most frequent pair first, of equals the one whose bytes come first.
type pairQueue struct {
	items  []pairCount
	pieces *[]string
}

func (q *pairQueue) Len() int      { return len(q.items) }
func (q *pairQueue) Swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }
func (q *pairQueue) Less(i, j int) bool {
	a, b := q.items[i], q.items[j]
	if a.count != b.count {
		return a.count > b.count
	}
	p := *q.pieces
	return cmp.Or(cmp.Compare(p[a.pair.left], p[b.pair.left]), cmp.Compare(p[a.pair.right], p[b.pair.right])) < 0
}
func (q *pairQueue) Push(x any) { q.items = append(q.items, x.(pairCount)) }
func (q *pairQueue) Pop() any {
	x := q.items[len(q.items)-1]
	q.items = q.items[:len(q.items)-1]
	return x
}

// train learns merges from words with their counts until there are size pieces or no pair occurs twice. The first 256
// pieces are the bytes; piece 256+i is the join of merges[i].
func train(words map[string]int, size int) (pieces []string, merges []pair) {
	pieces = make([]string, 256, size)
	exists := make(map[string]bool, size)
	for b := range 256 {
		pieces[b] = string([]byte{byte(b)})
		exists[pieces[b]] = true
	}
	var (
		text  []trainWord
		count = map[pair]int{}
		where = map[pair]map[int]bool{} // words that had the pair at some time
		queue = &pairQueue{pieces: &pieces}
	)
	touch := func(w int, p pair, n int) {
		count[p] += n
		if n > 0 {
			if where[p] == nil {
				where[p] = map[int]bool{}
			}
			where[p][w] = true
		}
	}
	for w, word := range sortedKeys(words) {
		ids := make([]int32, len(word))
		for i := range len(word) {
			ids[i] = int32(word[i])
		}
		text = append(text, trainWord{ids: ids, count: words[word]})
		for i := range len(ids) - 1 {
			touch(w, pair{ids[i], ids[i+1]}, words[word])
		}
	}
	for p, n := range count {
		queue.items = append(queue.items, pairCount{p, n})
	}
	heap.Init(queue)
	for len(pieces) < size && queue.Len() > 0 {
		top := heap.Pop(queue).(pairCount)
		if n := count[top.pair]; n != top.count {
			if n > 1 {
				heap.Push(queue, pairCount{top.pair, n})
			}
			continue
		}
		if top.count < 2 {
			break
		}
		join := pieces[top.pair.left] + pieces[top.pair.right]
		if exists[join] {
			continue // two ways to the same bytes would be two ids for one piece
		}
		exists[join] = true
		id := int32(len(pieces))
		pieces = append(pieces, join)
		merges = append(merges, top.pair)
		fresh := map[pair]bool{}
		for _, w := range sortedInts(where[top.pair]) {
			word := &text[w]
			next := replacePair(word.ids, top.pair, id)
			if len(next) == len(word.ids) {
				continue
			}
			for i := range len(word.ids) - 1 {
				touch(w, pair{word.ids[i], word.ids[i+1]}, -word.count)
			}
			for i := range len(next) - 1 {
				p := pair{next[i], next[i+1]}
				touch(w, p, word.count)
				if p.left == id || p.right == id {
					fresh[p] = true
				}
			}
			word.ids = next
		}
		delete(count, top.pair)
		for p := range fresh {
			heap.Push(queue, pairCount{p, count[p]})
		}
	}
	return pieces, merges
}

// replacePair gives the ids with each occurrence of the pair, from the left, replaced.
func replacePair(ids []int32, p pair, id int32) []int32 {
	out := make([]int32, 0, len(ids))
	for i := 0; i < len(ids); i++ {
		if i+1 < len(ids) && ids[i] == p.left && ids[i+1] == p.right {
			out = append(out, id)
			i++
			continue
		}
		out = append(out, ids[i])
	}
	return out
}

// pad adds merges of random short pieces of letters until there are size pieces, so that every id has text.
func pad(pieces []string, merges []pair, size int, rng *rand.Rand) ([]string, []pair) {
	const longest = 12 // bytes of a made-up piece
	exists := make(map[string]bool, size)
	var parts []int32
	isPart := func(s string) bool {
		for i := range len(s) {
			if c := s[i]; c < 'a' || c > 'z' {
				return false
			}
		}
		return len(s) < longest
	}
	for id, p := range pieces {
		exists[p] = true
		if isPart(p) {
			parts = append(parts, int32(id))
		}
	}
	for len(pieces) < size {
		p := pair{parts[rng.IntN(len(parts))], parts[rng.IntN(len(parts))]}
		join := pieces[p.left] + pieces[p.right]
		if len(join) > longest || exists[join] {
			continue
		}
		exists[join] = true
		id := int32(len(pieces))
		pieces, merges = append(pieces, join), append(merges, p)
		if isPart(join) {
			parts = append(parts, id)
		}
	}
	return pieces, merges
}

func sortedKeys(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func sortedInts(m map[int]bool) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
