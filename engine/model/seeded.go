package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/sluice-dev/sluice/engine/model/safetensors"
)

// SeededOptions say what WriteSeeded writes. A zero field takes the default named beside it.
type SeededOptions struct {
	Arch          string  // "llama", or "ministral": every second layer, from the first on, looks at a window
	SlidingWindow int     // 64; of ministral, in tokens
	Hidden        int     // 128
	Layers        int     // 4
	Heads         int     // 8
	KVHeads       int     // Heads/2, or 1 for one head
	HeadDim       int     // Hidden/Heads
	Intermediate  int     // 11/4 of Hidden
	VocabSize     int     // 1024; the tokenizer's
	ContextLength int     // 4096
	RopeTheta     float64 // 10000

	// Seed picks the weights. The same options give the same files, byte for byte.
	Seed uint64

	EOSTokenIDs []int32 // may be empty: the model never ends by itself
	BOSTokenID  *int32
}

func (o SeededOptions) withDefaults() SeededOptions {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	if o.Arch == "" {
		o.Arch = "llama"
	}
	set(&o.Hidden, 128)
	set(&o.Layers, 4)
	set(&o.Heads, 8)
	set(&o.KVHeads, max(1, o.Heads/2))
	set(&o.HeadDim, o.Hidden/max(1, o.Heads))
	set(&o.Intermediate, o.Hidden*11/4)
	set(&o.VocabSize, 1024)
	set(&o.ContextLength, 4096)
	if o.Arch == "ministral" {
		set(&o.SlidingWindow, 64)
	}
	if o.RopeTheta == 0 {
		o.RopeTheta = 10000
	}
	return o
}

// config gives the bytes of config.json, which are validated like anybody else's, and what they say.
func (o SeededOptions) config() ([]byte, Config, error) {
	name, ok := map[string]string{"llama": "LlamaForCausalLM", "ministral": "MinistralForCausalLM"}[o.Arch]
	if !ok {
		return nil, Config{}, fmt.Errorf("arch is %q: want \"llama\" or \"ministral\"", o.Arch)
	}
	if o.Arch == "llama" && o.SlidingWindow != 0 {
		return nil, Config{}, fmt.Errorf("sliding window is %d: llama has none, choose \"ministral\"", o.SlidingWindow)
	}
	var eos any
	switch len(o.EOSTokenIDs) {
	case 0:
	case 1:
		eos = o.EOSTokenIDs[0]
	default:
		eos = o.EOSTokenIDs
	}
	fields := map[string]any{
		"architectures":           []string{name},
		"model_type":              o.Arch,
		"hidden_size":             o.Hidden,
		"intermediate_size":       o.Intermediate,
		"num_hidden_layers":       o.Layers,
		"num_attention_heads":     o.Heads,
		"num_key_value_heads":     o.KVHeads,
		"head_dim":                o.HeadDim,
		"hidden_act":              "silu",
		"rms_norm_eps":            1e-5,
		"rope_theta":              o.RopeTheta,
		"rope_scaling":            nil,
		"attention_bias":          false,
		"mlp_bias":                false,
		"tie_word_embeddings":     false,
		"vocab_size":              o.VocabSize,
		"max_position_embeddings": o.ContextLength,
		"eos_token_id":            eos,
		"bos_token_id":            o.BOSTokenID,
		"torch_dtype":             "float32",
		"use_cache":               true,
	}
	if o.Arch == "ministral" {
		types := make([]string, max(0, o.Layers))
		for i := range types {
			types[i] = slidingAttention
			if i%2 == 1 {
				types[i] = fullAttention
			}
		}
		fields["sliding_window"], fields["layer_types"] = o.SlidingWindow, types
	}
	raw, err := json.MarshalIndent(fields, "", "  ")
	if err != nil {
		return nil, Config{}, fmt.Errorf("encode config.json: %w", err)
	}
	c, err := ParseConfig(raw)
	return append(raw, '\n'), c, err
}

// WriteSeeded writes config.json and model.safetensors of a small model with random weights into dir, which is created.
// The weights are scaled so that attention, MLP and token each matter for what comes next: greedy output depends on the
// whole prompt, and sampled output varies. Files that are there already are overwritten.
func WriteSeeded(dir string, options SeededOptions) error {
	raw, c, err := options.withDefaults().config()
	if err != nil {
		return fmt.Errorf("seeded model: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("seeded model: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644); err != nil {
		return fmt.Errorf("seeded model: %w", err)
	}
	return writeFile(filepath.Join(dir, safetensors.SingleName), func(w io.Writer) error {
		return safetensors.Write(w, seededSources(c, options.Seed))
	})
}

// writeFile replaces the file at path by what write writes, and leaves no half-written file behind.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = errors.Join(write(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// seededSources gives every parameter of a model. With inputs of unit size, scores of attention have a deviation of
// about 2.5, so that it picks out few positions; attention and MLP each add about as much to the residual as the token's
// embedding; logits have a deviation of about 2.5, which over 1024 tokens leaves some 45 likely ones.
func seededSources(c Config, seed uint64) []safetensors.Source {
	var sources []safetensors.Source
	add := func(p parameter, deviation float64) {
		sources = append(sources, safetensors.Source{Name: p.name, Shape: p.shape, Fill: func(dst []float32) {
			fillSeeded(dst, p.name, seed, deviation)
		}})
	}
	norm := func(p parameter) {
		sources = append(sources, safetensors.Source{Name: p.name, Shape: p.shape, Fill: func(dst []float32) {
			for i := range dst {
				dst[i] = 1
			}
		}})
	}
	fanIn := func(gain float64, inputs int) float64 { return gain / math.Sqrt(float64(inputs)) }

	add(c.embedding(), 1)
	for i := range c.NumLayers {
		l := c.layer(i)
		norm(l.attentionNorm)
		add(l.q, fanIn(1.6, c.HiddenSize))
		add(l.k, fanIn(1.6, c.HiddenSize))
		add(l.v, fanIn(1, c.HiddenSize))
		add(l.o, fanIn(1.6, c.NumHeads*c.HeadDim))
		norm(l.mlpNorm)
		add(l.gate, fanIn(1.5, c.HiddenSize))
		add(l.up, fanIn(1, c.HiddenSize))
		add(l.down, fanIn(1.3, c.IntermediateSize))
	}
	norm(c.finalNorm())
	add(c.head(), fanIn(2.5, c.HiddenSize))
	return sources
}

// fillSeeded draws from a uniform distribution around 0, whose arithmetic is the same on every machine. A tensor's
// numbers depend on its name and the seed alone.
func fillSeeded(dst []float32, name string, seed uint64, deviation float64) {
	h := fnv.New64a()
	h.Write([]byte(name))
	random := rand.New(rand.NewPCG(seed, h.Sum64()))
	width := deviation * math.Sqrt(12)
	for i := range dst {
		dst[i] = float32((random.Float64() - 0.5) * width)
	}
}
