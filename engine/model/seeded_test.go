package model

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/model/safetensors"
	"github.com/sluice-dev/sluice/gpu/host/reference"
)

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWriteSeededIsDeterministic(t *testing.T) {
	bos := int32(62)
	options := SeededOptions{Hidden: 16, Layers: 2, Heads: 2, VocabSize: 64, Seed: 7, EOSTokenIDs: []int32{63}, BOSTokenID: &bos}
	write := func(o SeededOptions) (config, weights []byte) {
		dir := filepath.Join(t.TempDir(), "new", "folder")
		if err := WriteSeeded(dir, o); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 2 {
			t.Errorf("folder holds %v, error %v: want two files", entries, err)
		}
		return readFile(t, filepath.Join(dir, "config.json")), readFile(t, filepath.Join(dir, safetensors.SingleName))
	}
	config, weights := write(options)
	config2, weights2 := write(options)
	if !bytes.Equal(config, config2) || !bytes.Equal(weights, weights2) {
		t.Error("the same options give other files")
	}
	// A change here changes every answer of a seeded model.
	sum := sha256.Sum256(weights)
	if got, want := hex.EncodeToString(sum[:8]), "0c6a6024b74aab7e"; got != want {
		t.Errorf("weights hash to %s, want %s", got, want)
	}
	options.Seed++
	config3, weights3 := write(options)
	if !bytes.Equal(config, config3) || bytes.Equal(weights, weights3) {
		t.Error("another seed must change the weights and nothing else")
	}

	got, err := ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Architecture: "LlamaForCausalLM", HiddenSize: 16, IntermediateSize: 44, NumLayers: 2, NumHeads: 2, NumKVHeads: 1, HeadDim: 8,
		VocabSize: 64, ContextLength: 4096, RMSNormEps: 1e-5, RopeTheta: 10000, StoredDType: "float32", EOSTokenIDs: []int32{63}, BOSTokenID: &bos,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

func TestWriteSeededErrors(t *testing.T) {
	for want, options := range map[string]SeededOptions{
		`arch is "gpt": want "llama" or "ministral"`:                         {Arch: "gpt"},
		`sliding window is 8: llama has none, choose "ministral"`:            {SlidingWindow: 8},
		"sliding_window is -1: want null or 1 to":                            {Arch: "ministral", SlidingWindow: -1},
		"num_key_value_heads is 3: want a divisor of num_attention_heads, 8": {KVHeads: 3},
		"head_dim is 7: want an even number":                                 {HeadDim: 7},
		"hidden_size is -1: want 1 to":                                       {Hidden: -1},
		"eos_token_id holds 1024: want 0 to 1023":                            {EOSTokenIDs: []int32{1024}},
	} {
		if err := WriteSeeded(t.TempDir(), options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// reshape rewrites a one-file F32 model in dir as shards of stored 16-bit numbers.
func reshape(t *testing.T, dir string, dtype safetensors.DType, narrow func(uint32) uint16) {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(dir, safetensors.SingleName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	weightMap := map[string]string{}
	for i, tensor := range f.Tensors() {
		values := make([]float32, tensor.Elements())
		if err := f.ReadFloat32(values, tensor.Name); err != nil {
			t.Fatal(err)
		}
		var data []byte
		for _, v := range values {
			data = binary.LittleEndian.AppendUint16(data, narrow(math.Float32bits(v)))
		}
		header, err := json.Marshal(map[string]any{tensor.Name: map[string]any{"dtype": dtype, "shape": tensor.Shape, "data_offsets": []int{0, len(data)}}})
		if err != nil {
			t.Fatal(err)
		}
		name := "model-" + string(rune('a'+i)) + ".safetensors"
		weightMap[tensor.Name] = name
		file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
		if err := os.WriteFile(filepath.Join(dir, name), slices.Concat(file, header, data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	index, err := json.Marshal(map[string]any{"weight_map": weightMap})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, safetensors.IndexName), index, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoadShardsOf16Bits(t *testing.T) {
	dir := t.TempDir()
	if err := WriteSeeded(dir, SeededOptions{Hidden: 16, Layers: 1, Heads: 2, VocabSize: 30}); err != nil {
		t.Fatal(err)
	}
	tokens := []int32{1, 2, 3, 4, 5}
	want := loadNaive(t, dir).logits(tokens)
	tests := []struct {
		dtype     safetensors.DType
		narrow    func(uint32) uint16
		tolerance float64
	}{
		{safetensors.BF16, func(b uint32) uint16 { return uint16(b >> 16) }, 0.3},
		// Cuts the fraction; all weights are in the range of normal numbers or below it.
		{safetensors.F16, func(b uint32) uint16 {
			exponent := int(b>>23&0xff) - 127 + 15
			if exponent <= 0 {
				return uint16(b >> 31 << 15)
			}
			return uint16(b>>31<<15) | uint16(exponent)<<10 | uint16(b>>13&0x3ff)
		}, 0.04},
	}
	for _, test := range tests {
		t.Run(string(test.dtype), func(t *testing.T) {
			reshape(t, dir, test.dtype, test.narrow)
			device := reference.New()
			m, err := Load(dir, device, Ranks{})
			if err != nil {
				t.Fatal(err)
			}
			got := newSequencer(t, m, device, 4, len(tokens)).forward(tokens, 0)
			for i, row := range want {
				for j, w := range row {
					if g := float64(got[i*len(row)+j]); math.Abs(g-w) > test.tolerance {
						t.Fatalf("logit [%d, %d] is %g, with full weights %g", i, j, g, w)
					}
				}
			}
		})
	}
}

func TestLoadErrors(t *testing.T) {
	base := SeededOptions{Hidden: 16, Layers: 1, Heads: 2, VocabSize: 30}
	tests := []struct {
		name   string
		fields map[string]any
		want   string
	}{
		{"a layer too many", map[string]any{"num_hidden_layers": 2}, `tensor "model.layers.1.input_layernorm.weight" is missing`},
		{"another vocabulary", map[string]any{"vocab_size": 31}, `tensor "model.embed_tokens.weight" has shape [30 16]: config.json wants [31 16]`},
		{"another width", map[string]any{"intermediate_size": 40}, `tensor "model.layers.0.mlp.gate_proj.weight" has shape [44 16]: config.json wants [40 16]`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := WriteSeeded(dir, base); err != nil {
				t.Fatal(err)
			}
			editConfig(t, dir, test.fields)
			if _, err := Load(dir, reference.New(), Ranks{}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}
