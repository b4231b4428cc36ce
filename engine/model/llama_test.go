package model

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host"
	"github.com/sluice-dev/sluice/gpu/host/reference"
)

// editConfig changes fields of dir's config.json.
func editConfig(t *testing.T, dir string, fields map[string]any) {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	for name, value := range fields {
		c[name] = value
	}
	if raw, err = json.Marshal(c); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// sequencer runs one sequence through a Llama, with its own pages.
type sequencer struct {
	t        *testing.T
	device   gpu.Device
	model    *Llama
	pageSize int
	kv       []gpu.Tensor
	table    gpu.Tensor
}

func newSequencer(t *testing.T, m *Llama, device gpu.Device, pageSize, longest int) *sequencer {
	t.Helper()
	s := &sequencer{t: t, device: device, model: m, pageSize: pageSize}
	pages := (longest + pageSize - 1) / pageSize
	width := 2 * pageSize * m.config.NumKVHeads * m.config.HeadDim
	for range m.config.NumLayers {
		s.kv = append(s.kv, gpu.View(s.alloc(gpu.F32, pages*width), pages, width))
	}
	table := make([]int32, pages)
	for i := range table {
		table[i] = int32(pages - 1 - i)
	}
	s.table = s.ints(table)
	return s
}

func (s *sequencer) alloc(dtype gpu.DType, n int) gpu.Buffer {
	s.t.Helper()
	b, err := s.device.Alloc(dtype, n)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *sequencer) ints(data []int32) gpu.Tensor {
	s.t.Helper()
	v := gpu.View(s.alloc(gpu.I32, len(data)), 1, len(data))
	if err := s.device.Write(v, gpu.Bytes(data)); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// window gives the table of windowed layers for a step from position start on: pages that no later token sees are gone.
func (s *sequencer) window(start int) gpu.Tensor {
	table := make([]int32, s.table.Cols)
	for i := range table {
		table[i] = int32(i)
		if (i+1)*s.pageSize <= start-s.model.config.SlidingWindow+1 {
			table[i] = -1
		}
	}
	return s.ints(table)
}

// forward computes tokens from position start on and gives all their logits, [len(tokens), vocab].
func (s *sequencer) forward(tokens []int32, start int) []float32 {
	s.t.Helper()
	positions, sequences, wanted := make([]int32, len(tokens)), make([]int32, len(tokens)), make([]int32, len(tokens))
	for i := range tokens {
		positions[i], wanted[i] = int32(start+i), int32(i)
	}
	c := s.model.config
	var layers []int
	var out []float32
	err := s.model.Forward(Step{
		Tokens: tokens,
		At: gpu.Paged{
			Positions: s.ints(positions), Sequences: s.ints(sequences), Tables: s.table,
			PageSize: s.pageSize, KVHeads: c.NumKVHeads, HeadDim: c.HeadDim,
		},
		Windows: s.window(start),
		KV:      s.kv, Wanted: s.ints(wanted),
		LayerDone: func(layer int) { layers = append(layers, layer) },
		Logits: func(slice gpu.Tensor) error {
			from := len(out)
			out = append(out, make([]float32, slice.Len())...)
			return s.device.Read(gpu.Bytes(out[from:]), slice)
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	want := make([]int, c.NumLayers)
	for i := range want {
		want[i] = i
	}
	if diff := cmp.Diff(want, layers); diff != "" {
		s.t.Errorf("LayerDone calls (-want +got):\n%s", diff)
	}
	return out
}

func TestForwardAgainstNaive(t *testing.T) {
	tests := []struct {
		name, reason string
		options      SeededOptions
		edit         map[string]any
	}{
		{"default", "what init-model writes", SeededOptions{VocabSize: 300}, nil},
		{"one key-value head", "multi-query attention", SeededOptions{Hidden: 48, Layers: 2, Heads: 6, KVHeads: 1, Intermediate: 50, VocabSize: 77}, nil},
		{"all heads", "multi-head attention, heads of a width that isn't hidden/heads", SeededOptions{Hidden: 30, Layers: 2, Heads: 3, KVHeads: 3, HeadDim: 14, VocabSize: 50}, nil},
		{"tied", "the head is the embedding", SeededOptions{Hidden: 64, Layers: 2, Heads: 4, VocabSize: 90}, map[string]any{"tie_word_embeddings": true}},
		{"windows", "layers alternate", SeededOptions{Arch: "ministral", SlidingWindow: 11, VocabSize: 90}, nil},
		{"a window of one", "a token sees itself alone", SeededOptions{Arch: "ministral", SlidingWindow: 1, Layers: 3, VocabSize: 90}, nil},
		{"llama3 rope", "low, blended and high frequencies", SeededOptions{Hidden: 64, Layers: 2, Heads: 2, VocabSize: 90}, map[string]any{
			"rope_scaling": map[string]any{
				"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
			},
		}},
	}
	devices := map[string]func(*testing.T) gpu.Device{
		"reference": func(*testing.T) gpu.Device { return reference.New() },
		"host": func(t *testing.T) gpu.Device {
			d, err := host.New(host.Config{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
	}
	for _, test := range tests {
		for name, open := range devices {
			t.Run(test.name+" on "+name, func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewPCG(seed, 0))
				dir := t.TempDir()
				test.options.Seed = seed
				if err := WriteSeeded(dir, test.options); err != nil {
					t.Fatal(err)
				}
				editConfig(t, dir, test.edit)

				tokens := make([]int32, 90)
				for i := range tokens {
					tokens[i] = int32(random.IntN(test.options.VocabSize))
				}
				want := loadNaive(t, dir).logits(tokens)

				device := open(t)
				defer device.Close()
				m, err := Load(dir, device, Ranks{})
				if err != nil {
					t.Fatal(err)
				}
				s := newSequencer(t, m, device, 7, len(tokens))
				for start := 0; start < len(tokens); {
					end := min(len(tokens), start+1+random.IntN(40))
					got := s.forward(tokens[start:end], start)
					compareLogits(t, got, want[start:end], start)
					start = end
				}
			})
		}
	}
}

// compareLogits allows 1e-3 on logits of about 2.5: float32 rounding goes through several layers.
func compareLogits(t *testing.T, got []float32, want [][]float64, start int) {
	t.Helper()
	for i, row := range want {
		for j, w := range row {
			if g := float64(got[i*len(row)+j]); !(math.Abs(g-w) <= 1e-3) {
				t.Fatalf("logit of token %d after position %d is %g, want %g", j, start+i, g, w)
			}
		}
	}
}
