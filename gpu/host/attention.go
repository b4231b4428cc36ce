package host

import (
	"math"
	"sync"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host/ram"
)

const (
	// keyBlock is how many positions are taken into a softmax at once. Blocks start at multiples of it, so where a
	// page, a chunk or a batch begins has no influence on the sums.
	keyBlock = 64
	// queryTile is how many tokens of a sequence go over a block of keys while it is in the cache.
	queryTile = 16
)

// tile is a run of tokens [from, to) of one sequence, at most queryTile.
type tile struct{ from, to int }

// scratch is one piece of attention under way: the running softmax of each query of a tile, where query i*group+h is
// head h of the group of token i. Scores are of one block of keys.
type scratch struct {
	queries []float32 // [queryTile*group, headDim], scaled
	sums    []float32 // [queryTile*group, headDim]: sum of exp(score - top) * value
	top     []float32 // [queryTile*group]: largest score so far
	weight  []float32 // [queryTile*group]: sum of exp(score - top)
	scores  [keyBlock]float32
	runs    []run // of the block
}

// run is the keys and values of a block that are in one page: positions [from, to) of the block.
type run struct {
	from, to     int
	keys, values []float32 // [to-from, kvHeads, headDim], from the head on
}

// scratches lends scratch memory to the goroutines of the pool.
type scratches struct {
	mu    sync.Mutex
	free  []*scratch
	tiles []tile
}

func (s *scratches) take(queries, headDim int) *scratch {
	s.mu.Lock()
	var c *scratch
	if last := len(s.free) - 1; last >= 0 {
		c, s.free = s.free[last], s.free[:last]
	}
	s.mu.Unlock()
	if c == nil {
		c = new(scratch)
	}
	if len(c.top) < queries || len(c.sums) < queries*headDim {
		c.queries, c.sums = make([]float32, queries*headDim), make([]float32, queries*headDim)
		c.top, c.weight = make([]float32, queries), make([]float32, queries)
	}
	return c
}

func (s *scratches) give(c *scratch) {
	s.mu.Lock()
	s.free = append(s.free, c)
	s.mu.Unlock()
}

// Attention shares out (tile, key-value head) pairs. Within one, each query keeps its own running softmax over the
// blocks of keys, and no sum goes across queries.
func (o *ops) Attention(dst, q, kv gpu.Tensor, at gpu.Paged, scale float32, window int) {
	positions, sequences := ram.I32(at.Positions), ram.I32(at.Sequences)
	if window == 0 {
		window = math.MaxInt
	}
	tiles := o.scratch.tiles[:0]
	longest := 0
	for i := 0; i < q.Rows; {
		j := i
		for j < q.Rows && j-i < queryTile && sequences[j] == sequences[i] {
			longest = max(longest, min(int(positions[j])+1, window))
			j++
		}
		tiles = append(tiles, tile{i, j})
		i = j
	}
	o.scratch.tiles = tiles
	group := q.Cols / at.HeadDim / at.KVHeads
	flops := 4 * at.HeadDim * group * longest * q.Rows / len(tiles)
	o.pool.run(len(tiles)*at.KVHeads, grain(flops), func(from, to int) {
		c := o.scratch.take(queryTile*group, at.HeadDim)
		for item := from; item < to; item++ {
			o.attend(c, dst, q, kv, at, scale, window, tiles[item/at.KVHeads], item%at.KVHeads)
		}
		o.scratch.give(c)
	})
}

// attend computes the heads of one key-value head for one tile.
func (o *ops) attend(c *scratch, dst, q, kv gpu.Tensor, at gpu.Paged, scale float32, window int, t tile, kvHead int) {
	positions := ram.I32(at.Positions)
	sequence := int(ram.I32(at.Sequences)[t.from])
	table := ram.I32(at.Tables.RowRange(sequence, sequence+1))
	group := q.Cols / at.HeadDim / at.KVHeads
	width := group * at.HeadDim // of the group's heads, which are next to each other in q and dst
	slot := at.KVHeads * at.HeadDim

	first, last := math.MaxInt, 0 // positions that a token of the tile looks at
	for i := t.from; i < t.to; i++ {
		first, last = min(first, max(0, int(positions[i])-(window-1))), max(last, int(positions[i]))
		for d, v := range ram.Row(q, i)[kvHead*width : (kvHead+1)*width] {
			c.queries[(i-t.from)*width+d] = v * scale
		}
	}
	queries := (t.to - t.from) * group
	clear(c.sums[:queries*at.HeadDim])
	clear(c.weight[:queries])
	for i := range queries {
		c.top[i] = float32(math.Inf(-1))
	}

	for block := first - first%keyBlock; block <= last; block += keyBlock {
		c.findRuns(kv, at, table, kvHead, block, max(0, first-block), min(keyBlock, last+1-block))
		for i := range queries {
			position := int(positions[t.from+i/group])
			from, to := max(0, position-(window-1)-block), min(keyBlock, position+1-block)
			if from < to {
				c.absorb(&o.k, i, from, to, at.HeadDim, slot)
			}
		}
	}

	for i := t.from; i < t.to; i++ {
		out := ram.Row(dst, i)[kvHead*width : (kvHead+1)*width]
		for d := range out {
			query := (i-t.from)*group + d/at.HeadDim
			out[d] = c.sums[(i-t.from)*width+d] / c.weight[query]
		}
	}
}

// findRuns finds the pages of positions [from, end) of the block, and looks at no other entry of the table.
func (c *scratch) findRuns(kv gpu.Tensor, at gpu.Paged, table []int32, kvHead, block, from, end int) {
	slot := at.KVHeads * at.HeadDim
	c.runs = c.runs[:0]
	for from < end {
		first := (block + from) % at.PageSize // in the page
		to := min(end, from+at.PageSize-first)
		page := ram.Row(kv, int(table[(block+from)/at.PageSize]))
		c.runs = append(c.runs, run{
			from: from, to: to,
			keys:   page[first*slot+kvHead*at.HeadDim:],
			values: page[(at.PageSize+first)*slot+kvHead*at.HeadDim:],
		})
		from = to
	}
}

// absorb takes keys [from, to) of the block into the running softmax of a query.
func (c *scratch) absorb(k *kernels, query, from, to, headDim, slot int) {
	q, sums := c.queries[query*headDim:(query+1)*headDim], c.sums[query*headDim:(query+1)*headDim]
	scores := c.scores[:]
	for _, r := range c.runs {
		if lo, hi := max(from, r.from), min(to, r.to); lo < hi {
			k.dots(scores[lo:hi], q, r.keys[(lo-r.from)*slot:], slot)
		}
	}
	if m := largest(scores[from:to]); m > c.top[query] {
		shrink := exp(c.top[query] - m)
		c.weight[query] *= shrink
		for d := range sums {
			sums[d] *= shrink
		}
		c.top[query] = m
	}
	c.weight[query] += k.expSum(scores[from:to], c.top[query])
	for _, r := range c.runs {
		if lo, hi := max(from, r.from), min(to, r.to); lo < hi {
			k.mix(sums, scores[lo:hi], r.values[(lo-r.from)*slot:], slot)
		}
	}
}
