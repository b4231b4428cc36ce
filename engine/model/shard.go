package model

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/parallel"
)

// Group is the ranks that hold slices of the same layers; *parallel.Group says what each operation does.
type Group interface {
	AllReduce(x []float32) error
	Gather(parts [][]float32, root int) error
}

// Pipe is the way to the neighbouring stages; see *parallel.Pipe.
type Pipe interface {
	Send(x []float32) error
	Recv(x []float32) error
}

// Ranks says which part of the model this rank holds and how it works together with the others. The zero value is a rank
// that holds all of it.
type Ranks struct {
	Place parallel.Place
	TP    Group // nil when Place.TPSize is 1
	Pipe  Pipe  // nil when Place.PPSize is 1
}

func (r Ranks) place() parallel.Place {
	if r.Place == (parallel.Place{}) {
		return parallel.Alone()
	}
	return r.Place
}

// span is [from, to).
type span struct{ from, to int }

func (s span) len() int { return s.to - s.from }

// times gives the span of elements of a span of groups of n.
func (s span) times(n int) span { return span{s.from * n, s.to * n} }

// Shard is the part of a model that one rank holds. Of a weight whose outputs are split the rank holds some outputs, of
// the one behind it the same inputs; their product is a part of a sum over the ranks.
//
//	             split over the tensor-parallel ranks
//	q            heads
//	k, v         key-value heads; each on several ranks when there are fewer of them than ranks
//	o            inputs, by heads
//	gate, up     intermediate
//	down         inputs, by intermediate
//	embedding    vocabulary: a rank gives zeros for other ranks' tokens
//	head         vocabulary
type Shard struct {
	layers  span // of the model
	heads   span
	kvHeads span
	inter   span
	vocab   span

	first, last bool // whether the stage has the embedding, and the head
}

// shard cuts a model. An error names the field that doesn't fit and the flag.
func (c Config) shard(p parallel.Place) (Shard, error) {
	tp := p.TPSize
	divisible := func(field string, n int) error {
		if n%tp != 0 {
			return fmt.Errorf("%s is %d: want a multiple of the tensor-parallel size, %d; change --tp-size", field, n, tp)
		}
		return nil
	}
	if err := divisible("num_attention_heads", c.NumHeads); err != nil {
		return Shard{}, err
	}
	if err := divisible("intermediate_size", c.IntermediateSize); err != nil {
		return Shard{}, err
	}
	if c.NumKVHeads%tp != 0 && tp%c.NumKVHeads != 0 {
		return Shard{}, fmt.Errorf("num_key_value_heads is %d: want a multiple or a divisor of the tensor-parallel size, %d; change --tp-size", c.NumKVHeads, tp)
	}
	if c.VocabSize < tp {
		return Shard{}, fmt.Errorf("vocab_size is %d: want at least the tensor-parallel size, %d; lower --tp-size", c.VocabSize, tp)
	}
	if c.NumLayers < p.PPSize {
		return Shard{}, fmt.Errorf("num_hidden_layers is %d: want at least the pipeline-parallel size, %d; lower --pp-size", c.NumLayers, p.PPSize)
	}
	part := func(n int) span { return span{n * p.TPRank / tp, n * (p.TPRank + 1) / tp} }
	s := Shard{heads: part(c.NumHeads), inter: part(c.IntermediateSize), vocab: part(c.VocabSize), first: p.First(), last: p.Last()}
	s.layers.from, s.layers.to = p.Layers(c.NumLayers)
	s.kvHeads = part(c.NumKVHeads)
	if c.NumKVHeads < tp {
		s.kvHeads.from = p.TPRank * c.NumKVHeads / tp
		s.kvHeads.to = s.kvHeads.from + 1
	}
	return s, nil
}

// Layers gives the model's layers [from, to) that the rank computes.
func (s Shard) Layers() (from, to int) { return s.layers.from, s.layers.to }

// KVHeads gives the model's key-value heads [from, to) whose keys and values the rank holds.
func (s Shard) KVHeads() (from, to int) { return s.kvHeads.from, s.kvHeads.to }

// Heads is the number of query heads that the rank computes.
func (s Shard) Heads() int { return s.heads.len() }

// LayerElements is the number of elements of the linear weights of one of the rank's layers.
func (s Shard) LayerElements(c Config) int64 {
	q, kv := int64(s.heads.len()*c.HeadDim), int64(s.kvHeads.len()*c.HeadDim)
	return int64(c.HiddenSize) * (2*q + 2*kv + 3*int64(s.inter.len()))
}

// HeadElements is the number of elements of the rank's part of the head; 0 elsewhere than on the last stage.
func (s Shard) HeadElements(c Config) int64 {
	if !s.last {
		return 0
	}
	return int64(c.HiddenSize) * int64(s.vocab.len())
}

// EmbeddingRows reports whether the rank looks up the embeddings of a step's tokens: on the first stage.
func (s Shard) EmbeddingRows() bool { return s.first }
