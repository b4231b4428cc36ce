package model

import (
	"fmt"
	"math"

	"github.com/sluice-dev/sluice/gpu"
)

// Llama is a rank's share of a decoder with grouped-query attention, rotary positions and SwiGLU. Forward runs from one
// goroutine at a time.
type Llama struct {
	config  Config
	ranks   Ranks
	shard   Shard
	device  gpu.Device
	ops     gpu.Ops
	weights *weights
	invFreq gpu.Tensor // [1, headDim/2]
	work    workspace
	host    hostspace

	headRows int // most rows of logits at once, >= 1, the same on all ranks; a function of the vocabulary
}

// headFloats bounds the logits that are in memory at once: 32 MiB of them, whatever is wanted. At a vocabulary of 128k
// tokens these are 64 rows, enough to use each weight of the head many times.
const headFloats = 8 << 20

// Load reads a rank's share of the model in folder dir and puts it onto the device.
func Load(dir string, device gpu.Device, ranks Ranks) (*Llama, error) {
	config, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	ranks.Place = ranks.place()
	shard, err := config.shard(ranks.Place)
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w", dir, err)
	}
	w, err := loadWeights(dir, config, shard, device)
	if err != nil {
		return nil, err
	}
	freq := inverseFrequencies(config)
	buffer, err := device.Alloc(gpu.F32, len(freq))
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w", dir, err)
	}
	m := &Llama{
		config: config, ranks: ranks, shard: shard, device: device, ops: device.Ops(), weights: w,
		invFreq: gpu.View(buffer, 1, len(freq)), headRows: max(1, headFloats/config.VocabSize),
	}
	if err := device.Write(m.invFreq, gpu.Bytes(freq)); err != nil {
		return nil, fmt.Errorf("load model %s: %w", dir, err)
	}
	return m, nil
}

// Config is the whole model's configuration. Its slices must not be changed.
func (m *Llama) Config() Config { return m.config }

// Shard is the part of the model that this rank holds.
func (m *Llama) Shard() Shard { return m.shard }

// WeightBytes is the device memory that the rank's weights take.
func (m *Llama) WeightBytes() int64 { return m.weights.bytes }

// Step is the input of one forward pass over n tokens of one or more sequences.
type Step struct {
	Tokens []int32      // [n]
	At     gpu.Paged    // positions [1, n], sequences [1, n], tables; KVHeads as in Shard and HeadDim as in Config
	KV     []gpu.Tensor // per layer of the shard [pages, 2*pageSize*kvHeads*headDim]

	// Windows are the tables of windowed layers, whose pages are others: I32, as At.Tables. Not looked at without such layers.
	Windows gpu.Tensor

	// Wanted are the tokens, as indexes below n, whose logits are computed: I32 [1, wanted]. Without a buffer there are none.
	Wanted gpu.Tensor

	// Logits gets the logits after the wanted tokens, in their order, as slices [rows, vocab] of some of them at a time. A
	// slice is valid until it returns; its error ends the pass. It is called on the first rank of the last stage alone, and
	// must be there when something is wanted.
	Logits func(slice gpu.Tensor) error

	// LayerDone, when not nil, is called in order of the shard's layers, numbered from 0, once the layer's keys and values
	// are in KV.
	LayerDone func(layer int)
}

// Forward computes the tokens' keys and values, and hands the logits after the wanted ones to s.Logits. All ranks call
// Forward with the same step.
func (m *Llama) Forward(s Step) error {
	n := len(s.Tokens)
	wanted := 0
	if s.Wanted.Buf != nil {
		wanted = s.Wanted.Cols
	}
	if err := m.work.grow(m.device, m.config, m.shard, n, min(wanted, m.headRows)); err != nil {
		return fmt.Errorf("forward of %d tokens: %w", n, err)
	}
	w := m.work.views(n)
	if err := m.enter(w, s.Tokens); err != nil {
		return fmt.Errorf("forward of %d tokens: %w", n, err)
	}
	m.ops.RopeTable(w.rope, s.At.Positions, m.invFreq)
	for i := range m.weights.layers {
		if err := m.layer(w, s, i); err != nil {
			return fmt.Errorf("forward of layer %d: %w", m.shard.layers.from+i, err)
		}
	}
	if err := m.leave(w, s, wanted); err != nil {
		return fmt.Errorf("forward of %d tokens: %w", n, err)
	}
	return nil
}

// enter fills the residual with the tokens' embeddings, or with what the stage before sends.
func (m *Llama) enter(w views, tokens []int32) error {
	if !m.shard.first {
		return m.recv(w.residual)
	}
	ids := tokens
	split := m.shard.vocab.len() < m.config.VocabSize
	if split {
		ids = m.host.ids(tokens, m.shard.vocab)
	}
	if err := m.device.Write(w.ids, gpu.Bytes(ids)); err != nil {
		return err
	}
	m.ops.Gather(w.residual, m.weights.embedding, w.ids)
	if split {
		return m.sum(w.residual)
	}
	return nil
}

// layer adds what the shard's layer i has to say to the residual.
func (m *Llama) layer(w views, s Step, i int) error {
	l, ops, eps := &m.weights.layers[i], m.ops, m.config.RMSNormEps
	ops.RMSNorm(w.normed, w.residual, l.attentionNorm, eps)
	ops.MatMul(w.qkv, w.normed, l.qkv)
	queries, keys := m.shard.heads.len()*m.config.HeadDim, m.shard.kvHeads.len()*m.config.HeadDim
	// Queries and keys are next to each other and rotate alike.
	ops.Rope(w.qkv.ColumnRange(0, queries+keys), w.rope, m.config.HeadDim)
	q, k, v := w.qkv.ColumnRange(0, queries), w.qkv.ColumnRange(queries, queries+keys), w.qkv.ColumnRange(queries+keys, queries+2*keys)
	at, window := s.At, m.config.Window(m.shard.layers.from+i)
	if window > 0 {
		at.Tables = s.Windows
	}
	ops.StoreKV(s.KV[i], k, v, at)
	ops.Attention(w.mixed, q, s.KV[i], at, float32(1/math.Sqrt(float64(m.config.HeadDim))), window)
	ops.MatMul(w.update, w.mixed, l.output)
	if err := m.sum(w.update); err != nil {
		return err
	}
	ops.Add(w.residual, w.update)
	if s.LayerDone != nil {
		if err := m.device.Sync(); err != nil {
			return err
		}
		s.LayerDone(i)
	}

	ops.RMSNorm(w.normed, w.residual, l.mlpNorm, eps)
	ops.MatMul(w.gateUp, w.normed, l.gateUp)
	inter := m.shard.inter.len()
	ops.SiluMul(w.hidden, w.gateUp.ColumnRange(0, inter), w.gateUp.ColumnRange(inter, 2*inter))
	ops.MatMul(w.update, w.hidden, l.down)
	if err := m.sum(w.update); err != nil {
		return err
	}
	ops.Add(w.residual, w.update)
	return nil
}

// leave sends the residual to the stage behind, or gives the logits after the wanted tokens, slice by slice.
func (m *Llama) leave(w views, s Step, wanted int) error {
	if !m.shard.last {
		return m.send(w.residual)
	}
	for from := 0; from < wanted; from += m.headRows {
		to := min(wanted, from+m.headRows)
		logits, err := m.logits(m.work.head(to-from), w.residual, s.Wanted.ColumnRange(from, to))
		if err != nil {
			return fmt.Errorf("logits [%d, %d) of %d: %w", from, to, wanted, err)
		}
		if m.ranks.Place.TPRank != 0 {
			continue
		}
		if err := s.Logits(logits); err != nil {
			return err
		}
	}
	if wanted == 0 {
		return m.device.Sync()
	}
	return nil
}

// logits gives those after the wanted tokens, at most headRows; on other tensor-parallel ranks than the first nothing.
func (m *Llama) logits(h head, residual, wanted gpu.Tensor) (gpu.Tensor, error) {
	m.ops.Gather(h.last, residual, wanted)
	m.ops.RMSNorm(h.last, h.last, m.weights.finalNorm, m.config.RMSNormEps)
	m.ops.MatMul(h.part, h.last, m.weights.head)
	if m.shard.vocab.len() == m.config.VocabSize {
		return h.logits, m.device.Sync()
	}
	return h.logits, m.collect(h.logits, h.part)
}
