package model

import (
	"fmt"
	"math"

	"github.com/sluice-dev/sluice/gpu"
)

// Llama is a decoder with grouped-query attention, rotary positions and SwiGLU. Forward runs from one goroutine at a time.
type Llama struct {
	config  Config
	device  gpu.Device
	ops     gpu.Ops
	weights *weights
	invFreq gpu.Tensor // [1, headDim/2]
	work    workspace
}

// Load reads the model folder dir and puts the weights onto the device.
func Load(dir string, device gpu.Device) (*Llama, error) {
	config, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	w, err := loadWeights(dir, config, device)
	if err != nil {
		return nil, err
	}
	freq := inverseFrequencies(config)
	buffer, err := device.Alloc(gpu.F32, len(freq))
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w", dir, err)
	}
	m := &Llama{config: config, device: device, ops: device.Ops(), weights: w, invFreq: gpu.View(buffer, 1, len(freq))}
	if err := device.Write(m.invFreq, gpu.Bytes(freq)); err != nil {
		return nil, fmt.Errorf("load model %s: %w", dir, err)
	}
	return m, nil
}

// Config is the model's configuration. Its slices must not be changed.
func (m *Llama) Config() Config { return m.config }

// WeightBytes is the device memory that the weights take.
func (m *Llama) WeightBytes() int64 { return m.weights.bytes }

// Step is the input of one forward pass over n tokens of one or more sequences. All tensors are I32.
type Step struct {
	Tokens gpu.Tensor   // [1, n]
	At     gpu.Paged    // positions [1, n], sequences [1, n], tables; KVHeads and HeadDim as in Config
	KV     []gpu.Tensor // per layer [pages, 2*pageSize*kvHeads*headDim]

	// Wanted are the tokens, as indexes below n, whose logits are computed: [1, wanted]. Without a buffer there are none.
	Wanted gpu.Tensor

	// LayerDone, when not nil, is called in order of the layers once the layer's keys and values are in KV.
	LayerDone func(layer int)
}

// Forward computes the tokens' keys and values and gives the logits [wanted, vocab] after the wanted ones. The tensor
// is overwritten by the next Forward; it is empty when nothing is wanted.
func (m *Llama) Forward(s Step) (gpu.Tensor, error) {
	n := s.Tokens.Cols
	wanted := 0
	if s.Wanted.Buf != nil {
		wanted = s.Wanted.Cols
	}
	if err := m.work.grow(m.device, m.config, n, wanted); err != nil {
		return gpu.Tensor{}, fmt.Errorf("forward of %d tokens: %w", n, err)
	}
	w := m.work.views(n, wanted)
	ops := m.ops
	ops.Gather(w.residual, m.weights.embedding, s.Tokens)
	ops.RopeTable(w.rope, s.At.Positions, m.invFreq)
	for i := range m.weights.layers {
		l := &m.weights.layers[i]
		m.attention(l, w, s, i)
		if s.LayerDone != nil {
			if err := m.device.Sync(); err != nil {
				return gpu.Tensor{}, fmt.Errorf("forward of layer %d: %w", i, err)
			}
			s.LayerDone(i)
		}
		ops.RMSNorm(w.normed, w.residual, l.mlpNorm, m.config.RMSNormEps)
		ops.MatMul(w.gateUp, w.normed, l.gateUp)
		inter := m.config.IntermediateSize
		ops.SiluMul(w.hidden, w.gateUp.ColumnRange(0, inter), w.gateUp.ColumnRange(inter, 2*inter))
		ops.MatMul(w.update, w.hidden, l.down)
		ops.Add(w.residual, w.update)
	}
	if wanted == 0 {
		return gpu.Tensor{}, m.device.Sync()
	}
	ops.Gather(w.last, w.residual, s.Wanted)
	ops.RMSNorm(w.last, w.last, m.weights.finalNorm, m.config.RMSNormEps)
	ops.MatMul(w.logits, w.last, m.weights.head)
	return w.logits, m.device.Sync()
}

// attention adds layer i's attention to the residual.
func (m *Llama) attention(l *layer, w views, s Step, i int) {
	c, ops := m.config, m.ops
	ops.RMSNorm(w.normed, w.residual, l.attentionNorm, c.RMSNormEps)
	ops.MatMul(w.qkv, w.normed, l.qkv)
	queries, keys := c.NumHeads*c.HeadDim, c.NumKVHeads*c.HeadDim
	// Queries and keys are next to each other and rotate alike.
	ops.Rope(w.qkv.ColumnRange(0, queries+keys), w.rope, c.HeadDim)
	q, k, v := w.qkv.ColumnRange(0, queries), w.qkv.ColumnRange(queries, queries+keys), w.qkv.ColumnRange(queries+keys, queries+2*keys)
	ops.StoreKV(s.KV[i], k, v, s.At)
	ops.Attention(w.mixed, q, s.KV[i], s.At, float32(1/math.Sqrt(float64(c.HeadDim))))
	ops.MatMul(w.update, w.mixed, l.output)
	ops.Add(w.residual, w.update)
}
