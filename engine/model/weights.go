package model

import (
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/model/safetensors"
	"github.com/sluice-dev/sluice/gpu"
)

// weights are a Llama's parameters on a device.
type weights struct {
	embedding gpu.Tensor // [vocab, hidden]
	layers    []layer
	finalNorm gpu.Tensor // [1, hidden]
	head      gpu.Matrix // [vocab, hidden]

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

// loadWeights reads a Llama's parameters from dir.
func loadWeights(dir string, c Config, device gpu.Device) (*weights, error) {
	set, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer set.Close() // only read from
	l := &loader{set: set, device: device}
	w, err := l.weights(c)
	if err != nil {
		return nil, fmt.Errorf("load weights %s: %w", dir, err)
	}
	return w, nil
}

func (l *loader) weights(c Config) (*weights, error) {
	w := &weights{layers: make([]layer, c.NumLayers)}
	var err error
	if w.embedding, err = l.tensor(c.embedding(), c.VocabSize, c.HiddenSize); err != nil {
		return nil, err
	}
	for i := range w.layers {
		p, to := c.layer(i), &w.layers[i]
		if to.attentionNorm, err = l.tensor(p.attentionNorm, 1, c.HiddenSize); err != nil {
			return nil, err
		}
		if to.qkv, err = l.matrix(p.q, p.k, p.v); err != nil {
			return nil, err
		}
		if to.output, err = l.matrix(p.o); err != nil {
			return nil, err
		}
		if to.mlpNorm, err = l.tensor(p.mlpNorm, 1, c.HiddenSize); err != nil {
			return nil, err
		}
		if to.gateUp, err = l.matrix(p.gate, p.up); err != nil {
			return nil, err
		}
		if to.down, err = l.matrix(p.down); err != nil {
			return nil, err
		}
	}
	if w.finalNorm, err = l.tensor(c.finalNorm(), 1, c.HiddenSize); err != nil {
		return nil, err
	}
	head := c.head()
	if c.TieWordEmbeddings {
		head = c.embedding()
	}
	if w.head, err = l.matrix(head); err != nil {
		return nil, err
	}
	w.bytes = l.bytes
	return w, nil
}

// read gives the parameters one behind the other. The slice is reused by the next read.
func (l *loader) read(parameters ...parameter) ([]float32, error) {
	total := 0
	for _, p := range parameters {
		t, ok := l.set.Tensor(p.name)
		if !ok {
			return nil, fmt.Errorf("tensor %q is missing", p.name)
		}
		if !slices.Equal(t.Shape, p.shape) {
			return nil, fmt.Errorf("tensor %q has shape %v: config.json wants %v", p.name, t.Shape, p.shape)
		}
		total += int(t.Elements())
	}
	if cap(l.buffer) < total {
		l.buffer = make([]float32, total)
	}
	all := l.buffer[:total]
	rest := all
	for _, p := range parameters {
		t, _ := l.set.Tensor(p.name)
		n := int(t.Elements())
		if err := l.set.ReadFloat32(rest[:n], p.name); err != nil {
			return nil, err
		}
		rest = rest[n:]
	}
	return all, nil
}

// tensor loads one parameter as [rows, cols].
func (l *loader) tensor(p parameter, rows, cols int) (gpu.Tensor, error) {
	data, err := l.read(p)
	if err != nil {
		return gpu.Tensor{}, err
	}
	buffer, err := l.device.Alloc(gpu.F32, len(data))
	if err != nil {
		return gpu.Tensor{}, fmt.Errorf("tensor %q: %w", p.name, err)
	}
	t := gpu.View(buffer, rows, cols)
	if err := l.device.Write(t, gpu.Bytes(data)); err != nil {
		return gpu.Tensor{}, fmt.Errorf("tensor %q: %w", p.name, err)
	}
	l.bytes += int64(len(data)) * 4
	return t, nil
}

// matrix loads parameters that have the same inputs as one weight, their outputs one behind the other.
func (l *loader) matrix(parameters ...parameter) (gpu.Matrix, error) {
	data, err := l.read(parameters...)
	if err != nil {
		return nil, err
	}
	in := int(parameters[0].shape[1])
	m, err := l.device.Matrix(len(data)/in, in, data)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", parameters[0].name, err)
	}
	l.bytes += m.Bytes()
	return m, nil
}
