package model

import (
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/model/safetensors"
	"github.com/sluice-dev/sluice/gpu"
)

// weights are a rank's share of a Llama's parameters on a device. Heads, kvHeads, intermediate and vocab are the shard's.
type weights struct {
	embedding gpu.Tensor // [vocab, hidden], or [vocab+1, hidden] with zeros at the end where other ranks have tokens too; the first stage's
	layers    []layer    // of the stage
	finalNorm gpu.Tensor // [1, hidden]; the last stage's
	head      gpu.Matrix // [vocab, hidden]; the last stage's

	bytes int64
}

type layer struct {
	attentionNorm gpu.Tensor // [1, hidden]
	qkv           gpu.Matrix // [(heads + 2*kvHeads)*headDim, hidden]: queries, keys, values
	output        gpu.Matrix // [hidden, heads*headDim]
	mlpNorm       gpu.Tensor // [1, hidden]
	gateUp        gpu.Matrix // [2*intermediate, hidden]: gate, up
	down          gpu.Matrix // [hidden, intermediate]
}

// parameter is the name and shape of one stored tensor.
type parameter struct {
	name  string
	shape []int64
}

// block is the part [rows) x [cols) of a parameter; a vector is one row.
type block struct {
	parameter
	rows, cols span
}

// extent gives the rows and columns of the whole parameter.
func (p parameter) extent() (rows, cols int) {
	if len(p.shape) == 1 {
		return 1, int(p.shape[0])
	}
	return int(p.shape[0]), int(p.shape[1])
}

func (p parameter) all() block {
	rows, cols := p.extent()
	return block{p, span{0, rows}, span{0, cols}}
}

// rowsOf gives the outputs [rows) of a weight.
func (p parameter) rowsOf(rows span) block {
	b := p.all()
	b.rows = rows
	return b
}

// colsOf gives the inputs [cols) of a weight.
func (p parameter) colsOf(cols span) block {
	b := p.all()
	b.cols = cols
	return b
}

// The names of the parameters outside the layers.
const (
	embeddingName = "model.embed_tokens.weight"
	finalNormName = "model.norm.weight"
	headName      = "lm_head.weight"
)

// layerParameters are the parameters of one layer, named and ordered as Hugging Face does.
type layerParameters struct {
	attentionNorm, q, k, v, o, mlpNorm, gate, up, down parameter
}

func (c Config) layer(i int) layerParameters {
	at := func(name string, shape ...int64) parameter {
		return parameter{fmt.Sprintf("model.layers.%d.%s.weight", i, name), shape}
	}
	hidden, inter := int64(c.HiddenSize), int64(c.IntermediateSize)
	q, kv := int64(c.NumHeads*c.HeadDim), int64(c.NumKVHeads*c.HeadDim)
	return layerParameters{
		attentionNorm: at("input_layernorm", hidden),
		q:             at("self_attn.q_proj", q, hidden),
		k:             at("self_attn.k_proj", kv, hidden),
		v:             at("self_attn.v_proj", kv, hidden),
		o:             at("self_attn.o_proj", hidden, q),
		mlpNorm:       at("post_attention_layernorm", hidden),
		gate:          at("mlp.gate_proj", inter, hidden),
		up:            at("mlp.up_proj", inter, hidden),
		down:          at("mlp.down_proj", hidden, inter),
	}
}

func (c Config) embedding() parameter {
	return parameter{embeddingName, []int64{int64(c.VocabSize), int64(c.HiddenSize)}}
}

func (c Config) finalNorm() parameter { return parameter{finalNormName, []int64{int64(c.HiddenSize)}} }

func (c Config) head() parameter {
	return parameter{headName, []int64{int64(c.VocabSize), int64(c.HiddenSize)}}
}

// loader moves parameters from files to a device through one reused buffer.
type loader struct {
	set    *safetensors.Set
	device gpu.Device
	buffer []float32
	bytes  int64 // on the device so far
}

// loadWeights reads a rank's share of a Llama's parameters from dir.
func loadWeights(dir string, c Config, shard Shard, device gpu.Device) (*weights, error) {
	set, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer set.Close() // only read from
	l := &loader{set: set, device: device}
	w, err := l.weights(c, shard)
	if err != nil {
		return nil, fmt.Errorf("load weights %s: %w", dir, err)
	}
	return w, nil
}

func (l *loader) weights(c Config, s Shard) (*weights, error) {
	w := &weights{layers: make([]layer, s.layers.len())}
	var err error
	if s.first {
		zeros := 0
		if s.vocab.len() < c.VocabSize {
			zeros = 1
		}
		if w.embedding, err = l.tensor(c.embedding().rowsOf(s.vocab), zeros); err != nil {
			return nil, err
		}
	}
	queries, keys := s.heads.times(c.HeadDim), s.kvHeads.times(c.HeadDim)
	for i := range w.layers {
		p, to := c.layer(s.layers.from+i), &w.layers[i]
		if to.attentionNorm, err = l.tensor(p.attentionNorm.all(), 0); err != nil {
			return nil, err
		}
		if to.qkv, err = l.matrix(p.q.rowsOf(queries), p.k.rowsOf(keys), p.v.rowsOf(keys)); err != nil {
			return nil, err
		}
		if to.output, err = l.matrix(p.o.colsOf(queries)); err != nil {
			return nil, err
		}
		if to.mlpNorm, err = l.tensor(p.mlpNorm.all(), 0); err != nil {
			return nil, err
		}
		if to.gateUp, err = l.matrix(p.gate.rowsOf(s.inter), p.up.rowsOf(s.inter)); err != nil {
			return nil, err
		}
		if to.down, err = l.matrix(p.down.colsOf(s.inter)); err != nil {
			return nil, err
		}
	}
	if s.last {
		if w.finalNorm, err = l.tensor(c.finalNorm().all(), 0); err != nil {
			return nil, err
		}
		head := c.head()
		if c.TieWordEmbeddings {
			head = c.embedding()
		}
		if w.head, err = l.matrix(head.rowsOf(s.vocab)); err != nil {
			return nil, err
		}
	}
	w.bytes = l.bytes
	return w, nil
}

// read gives the blocks one behind the other, with room for more elements at the end, which are zero. The slice is reused
// by the next read.
func (l *loader) read(more int, blocks ...block) ([]float32, error) {
	total := more
	for _, b := range blocks {
		t, ok := l.set.Tensor(b.name)
		if !ok {
			return nil, fmt.Errorf("tensor %q is missing", b.name)
		}
		if !slices.Equal(t.Shape, b.shape) {
			return nil, fmt.Errorf("tensor %q has shape %v: config.json wants %v", b.name, t.Shape, b.shape)
		}
		total += b.rows.len() * b.cols.len()
	}
	if cap(l.buffer) < total {
		l.buffer = make([]float32, total)
	}
	all := l.buffer[:total]
	rest := all
	for _, b := range blocks {
		n := b.rows.len() * b.cols.len()
		_, width := b.extent()
		if err := l.set.ReadBlock(rest[:n], b.name, width, b.rows.from, b.rows.to, b.cols.from, b.cols.to); err != nil {
			return nil, err
		}
		rest = rest[n:]
	}
	clear(rest)
	return all, nil
}

// tensor loads one block as a tensor with some rows of zeros behind it.
func (l *loader) tensor(b block, zeroRows int) (gpu.Tensor, error) {
	cols := b.cols.len()
	data, err := l.read(zeroRows*cols, b)
	if err != nil {
		return gpu.Tensor{}, err
	}
	buffer, err := l.device.Alloc(gpu.F32, len(data))
	if err != nil {
		return gpu.Tensor{}, fmt.Errorf("tensor %q: %w", b.name, err)
	}
	t := gpu.View(buffer, b.rows.len()+zeroRows, cols)
	if err := l.device.Write(t, gpu.Bytes(data)); err != nil {
		return gpu.Tensor{}, fmt.Errorf("tensor %q: %w", b.name, err)
	}
	l.bytes += int64(len(data)) * 4
	return t, nil
}

// matrix loads blocks that have the same inputs as one weight, their outputs one behind the other.
func (l *loader) matrix(blocks ...block) (gpu.Matrix, error) {
	data, err := l.read(0, blocks...)
	if err != nil {
		return nil, err
	}
	in := blocks[0].cols.len()
	m, err := l.device.Matrix(len(data)/in, in, data)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", blocks[0].name, err)
	}
	l.bytes += m.Bytes()
	return m, nil
}
