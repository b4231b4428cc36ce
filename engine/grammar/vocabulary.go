package grammar

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// Vocabulary is what tokens mean, as data.
type Vocabulary struct {
	// Tokens are the bytes of each id; a token without bytes (special ones, ids that don't exist) never comes in a text.
	Tokens [][]byte
	// End are the ids that end a text. Their bytes, if they have any, are not text.
	End []int32
	// Size is the width of masks in tokens, at least len(Tokens); 0 means len(Tokens). Ids from len(Tokens) on never come.
	Size int
}

func (v *Vocabulary) validate() error {
	switch {
	case v.Size != 0 && v.Size < len(v.Tokens):
		return fmt.Errorf("vocabulary: size is %d, fewer than its %d tokens", v.Size, len(v.Tokens))
	case len(v.End) == 0:
		return errors.New("vocabulary: has no end token, so that no text could end")
	}
	for _, id := range v.End {
		if id < 0 || int(id) >= max(v.Size, len(v.Tokens)) {
			return fmt.Errorf("vocabulary: end token %d is not in it", id)
		}
	}
	return nil
}

// trie is a vocabulary by common beginnings. Its nodes are in preorder without the root, so that a subtree is a range:
// node i and what is below it are [i, skip[i]). Tokens are in the order of their bytes, so those too are a range.
type trie struct {
	bytes  []byte  // [nodes]: the byte that leads to the node
	depth  []int32 // [nodes]: bytes from the root, >= 1
	parent []int32 // [nodes]: -1 below the root
	skip   []int32 // [nodes]
	from   []int32 // [nodes+1]: order[from[i]:from[i+1]] are the tokens that end at node i
	order  []int32 // [tokens with bytes]

	longest int // bytes of the longest token
	size    int // tokens in a mask
	words   int // uint64s in a mask
	end     []int32
}

func newTrie(v *Vocabulary) *trie {
	t := &trie{size: max(v.Size, len(v.Tokens)), end: slices.Clone(v.End)}
	t.words = (t.size + 63) / 64
	for id, b := range v.Tokens {
		if len(b) > 0 && !slices.Contains(v.End, int32(id)) {
			t.order = append(t.order, int32(id))
		}
	}
	slices.SortStableFunc(t.order, func(a, b int32) int { return bytes.Compare(v.Tokens[a], v.Tokens[b]) })
	var last []byte
	var path []int32 // nodes of last, by depth
	closeTo := func(depth int) {
		for _, node := range path[depth:] {
			t.skip[node] = int32(len(t.bytes))
		}
		path = path[:depth]
	}
	for i, id := range t.order {
		b := v.Tokens[id]
		t.longest = max(t.longest, len(b))
		common := 0
		for common < min(len(b), len(last)) && b[common] == last[common] {
			common++
		}
		closeTo(common)
		for d := common; d < len(b); d++ {
			node := int32(len(t.bytes))
			parent := int32(-1)
			if d > 0 {
				parent = path[d-1]
			}
			t.bytes, t.depth, t.parent = append(t.bytes, b[d]), append(t.depth, int32(d+1)), append(t.parent, parent)
			t.skip, t.from = append(t.skip, 0), append(t.from, int32(i))
			path = append(path, node)
		}
		last = b
	}
	closeTo(0)
	t.from = append(t.from, int32(len(t.order)))
	return t
}
