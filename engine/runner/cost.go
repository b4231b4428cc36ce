package runner

import (
	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// costs is what decides over the cost of a step by the model's shapes: the part of it that this rank has.
//
//	operations  2 for each element of a linear weight and token, and in attention 4 for each token that a token looks at,
//	            head and element of a head
//	read        each weight once a step, of the embedding the tokens' rows, and the keys and values of what is looked at once
//	            a row
//	written     the keys and values of the tokens
//
// Activations are not counted: they can stay near the arithmetic.
type costs struct {
	layers   int
	windowed []bool // by layer; nil: none
	window   int    // tokens

	layer, head int64 // elements of linear weights: of a layer, and of the head
	embedding   int   // elements of a token's row, 0 where there is no embedding
	queries     int   // heads * head size
	keyValues   int   // elements of a token's keys and values in a layer
}

// elementBytes is the size of every number on the device.
const elementBytes = 4

func newCosts(m *model.Llama, info Info) costs {
	c, shard := m.Config(), m.Shard()
	k := costs{
		layers: info.NumLayers, windowed: info.Windowed, window: info.WindowTokens,
		layer: shard.LayerElements(c), head: shard.HeadElements(c),
		queries: shard.Heads() * c.HeadDim, keyValues: 2 * info.KVHeads * c.HeadDim,
	}
	if shard.EmbeddingRows() {
		k.embedding = c.HiddenSize
	}
	return k
}

// Cost estimates what a step costs this rank.
func (r *Runner) Cost(rows []scheduler.Row) report.Cost { return r.costs.of(rows) }

func (k costs) of(rows []scheduler.Row) (c report.Cost) {
	if len(rows) == 0 {
		return c
	}
	tokens, wanted := 0, 0
	var looked, kept [2]int64 // at by the tokens, and by the rows; in full and in windowed layers
	for _, row := range rows {
		n := max(len(row.Tokens), 1) // a future token is not there yet
		from, to := promptLogits(row)
		tokens, wanted = tokens+n, wanted+to-from
		if row.Sample {
			wanted++
		}
		end := row.Start + n
		looked[0] += sums(row.Start+1, end)
		kept[0] += int64(end)
		if k.window > 0 {
			whole := min(max(k.window, row.Start), end) // up to it a token looks at all before it
			looked[1] += sums(row.Start+1, whole) + int64(end-whole)*int64(k.window)
			kept[1] += int64(min(end, k.window+n-1))
		}
	}
	weights := int64(0)
	for layer := range k.layers {
		kind := 0
		if k.windowed != nil && k.windowed[layer] {
			kind = 1
		}
		weights += k.layer
		c.Flops += 2*float64(k.layer)*float64(tokens) + 4*float64(k.queries)*float64(looked[kind])
		c.ReadBytes += elementBytes * float64(k.keyValues) * float64(kept[kind])
		c.WriteBytes += elementBytes * float64(k.keyValues) * float64(tokens)
	}
	if wanted > 0 {
		weights += k.head
		c.Flops += 2 * float64(k.head) * float64(wanted)
	}
	c.ReadBytes += elementBytes * (float64(weights) + float64(tokens)*float64(k.embedding))
	return c
}

// sums adds the whole numbers from..to; 0 when there are none.
func sums(from, to int) int64 {
	if to < from {
		return 0
	}
	return int64(from+to) * int64(to-from+1) / 2
}
