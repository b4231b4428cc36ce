package model

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// llama3 is a config.json like that of a Llama 3.2 model.
const llama3 = `{
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128009, 128001, 128008, 128001], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256
}`

// with changes fields of a config.json; nil removes one.
func with(t *testing.T, config string, fields map[string]any) []byte {
	t.Helper()
	var c map[string]any
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		t.Fatal(err)
	}
	for name, value := range fields {
		c[name] = value
		if value == nil {
			delete(c, name)
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// with1 sets one more field.
func with1(fields map[string]any, name string, value any) map[string]any {
	fields[name] = value
	return fields
}

func TestParseConfig(t *testing.T) {
	bos := int32(128000)
	full := func(change func(*Config)) Config {
		c := Config{
			Architecture: "LlamaForCausalLM", HiddenSize: 2048, IntermediateSize: 8192, NumLayers: 16, NumHeads: 32, NumKVHeads: 8, HeadDim: 64,
			VocabSize: 128256, ContextLength: 131072, RMSNormEps: 1e-5, RopeTheta: 500000,
			RopeScaling:       &RopeScaling{Factor: 32, LowFreqFactor: 1, HighFreqFactor: 4, OriginalContext: 8192},
			TieWordEmbeddings: true, StoredDType: "bfloat16", EOSTokenIDs: []int32{128001, 128008, 128009}, BOSTokenID: &bos,
		}
		change(&c)
		return c
	}
	tests := []struct {
		name, reason string
		fields       map[string]any
		want         Config
	}{
		{"llama3", "every field is taken", nil, full(func(*Config) {})},
		{"one end token", "", map[string]any{"eos_token_id": 2}, full(func(c *Config) { c.EOSTokenIDs = []int32{2} })},
		{"defaults", "what older files leave out", map[string]any{
			"num_key_value_heads": nil, "head_dim": nil, "rms_norm_eps": nil, "rope_theta": nil, "rope_scaling": nil, "tie_word_embeddings": nil,
			"torch_dtype": nil, "eos_token_id": nil, "bos_token_id": nil, "hidden_act": nil,
		}, full(func(c *Config) {
			c.NumKVHeads, c.RMSNormEps, c.RopeTheta, c.RopeScaling, c.TieWordEmbeddings = 32, 1e-6, 10000, nil, false
			c.StoredDType, c.EOSTokenIDs, c.BOSTokenID = "", nil, nil
		})},
		{"newer names", "rope_parameters and dtype", map[string]any{
			"rope_scaling": nil, "rope_theta": nil, "torch_dtype": nil, "dtype": "float16",
			"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 7000},
		}, full(func(c *Config) { c.RopeTheta, c.RopeScaling, c.StoredDType = 7000, nil, "float16" })},
		{"llama has no window", "the class doesn't look at the fields", map[string]any{"sliding_window": 10, "layer_types": []string{"sliding_attention"}}, full(func(*Config) {})},
		{"mistral", "a window on every layer", map[string]any{"architectures": []string{"MistralForCausalLM"}, "sliding_window": 128}, full(func(c *Config) {
			c.Architecture, c.SlidingWindow, c.Windowed = "MistralForCausalLM", 128, slices.Repeat([]bool{true}, 16)
		})},
		{"mistral with null KV heads", "null is a head for each, a file without the field means 8", with1(with1(map[string]any{"architectures": []string{"MistralForCausalLM"}},
			"num_key_value_heads", json.RawMessage("null")), "sliding_window", json.RawMessage("null")),
			full(func(c *Config) { c.Architecture, c.NumKVHeads = "MistralForCausalLM", 32 })},
		{"mistral without a window", "null is none", with1(map[string]any{"architectures": []string{"MistralForCausalLM"}, "num_key_value_heads": nil}, "sliding_window", json.RawMessage("null")),
			full(func(c *Config) { c.Architecture = "MistralForCausalLM" })},
		{"mistral's default window", "the field is absent", map[string]any{"architectures": []string{"MistralForCausalLM"}}, full(func(c *Config) {
			c.Architecture, c.SlidingWindow, c.Windowed = "MistralForCausalLM", 4096, slices.Repeat([]bool{true}, 16)
		})},
		{"ministral", "layers alternate, rope parameters stand once for each type", map[string]any{
			"architectures": []string{"MinistralForCausalLM"}, "sliding_window": 64, "layer_types": slices.Repeat([]string{"sliding_attention", "full_attention"}, 8),
			"rope_scaling": nil, "rope_theta": nil, "rope_parameters": map[string]any{
				"full_attention":    map[string]any{"rope_type": "default", "rope_theta": 7000},
				"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": 7000},
			},
		}, full(func(c *Config) {
			c.Architecture, c.SlidingWindow, c.Windowed = "MinistralForCausalLM", 64, slices.Repeat([]bool{true, false}, 8)
			c.RopeTheta, c.RopeScaling = 7000, nil
		})},
		{"ministral, all full", "nothing is windowed", map[string]any{
			"architectures": []string{"MinistralForCausalLM"}, "layer_types": slices.Repeat([]string{"full_attention"}, 16),
		}, full(func(c *Config) { c.Architecture = "MinistralForCausalLM" })},
		{"older name", "rope_scaling.type", map[string]any{"rope_scaling": map[string]any{"type": "default"}}, full(func(c *Config) { c.RopeScaling = nil })},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseConfig(with(t, llama3, test.fields))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

func TestParseConfigErrors(t *testing.T) {
	rope := func(fields map[string]any) map[string]any {
		all := map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
		for name, value := range fields {
			all[name] = value
			if value == nil {
				delete(all, name)
			}
		}
		return map[string]any{"rope_scaling": all}
	}
	ministral := func(fields map[string]any) map[string]any {
		return with1(fields, "architectures", []string{"MinistralForCausalLM"})
	}
	tests := []struct {
		fields map[string]any
		want   string
	}{
		{ministral(map[string]any{"sliding_window": 0}), "sliding_window is 0: want null or 1 to 16777216 tokens"},
		{ministral(map[string]any{"sliding_window": "wide"}), `sliding_window is "wide": want null or 1 to 16777216 tokens`},
		{ministral(map[string]any{"layer_types": []string{"full_attention"}}), "layer_types has 1 entries: want one for each of the 16 layers (num_hidden_layers)"},
		{ministral(map[string]any{"layer_types": slices.Repeat([]string{"chunked_attention"}, 16)}),
			`layer_types[0] is "chunked_attention": want "full_attention" or "sliding_attention"`},
		{ministral(map[string]any{"sliding_window": json.RawMessage("null"), "layer_types": slices.Repeat([]string{"sliding_attention"}, 16)}),
			`layer_types[0] is "sliding_attention", but sliding_window is null: want the window's length in tokens`},
		{ministral(map[string]any{"rope_parameters": map[string]any{"full_attention": map[string]any{"rope_theta": 1}, "sliding_attention": map[string]any{"rope_theta": 2}}}),
			"rope_parameters differs between full_attention and sliding_attention: want the same for both, others aren't computed"},
		{map[string]any{"architectures": []string{"GPT2LMHeadModel"}}, `architectures is ["GPT2LMHeadModel"]: want one of ["LlamaForCausalLM" "MistralForCausalLM" "MinistralForCausalLM"]`},
		{map[string]any{"architectures": nil}, `architectures is []: want one of ["LlamaForCausalLM" "MistralForCausalLM" "MinistralForCausalLM"]`},
		{map[string]any{"hidden_act": "gelu"}, `hidden_act is "gelu": want "silu"`},
		{map[string]any{"attention_bias": true}, "attention_bias is true: want false, biases aren't computed"},
		{map[string]any{"mlp_bias": true}, "mlp_bias is true: want false, biases aren't computed"},
		{map[string]any{"quantization_config": map[string]any{"bits": 4}}, "quantization_config is set: want unquantised weights (F32, F16 or BF16)"},
		{map[string]any{"hidden_size": nil}, "hidden_size is missing: want a number above 0"},
		{map[string]any{"hidden_size": 0}, "hidden_size is 0: want 1 to 16777216"},
		{map[string]any{"hidden_size": "big"}, "hidden_size is a JSON string: want int"},
		{map[string]any{"hidden_size": 2.5}, "hidden_size is a JSON number 2.5: want int"},
		{map[string]any{"intermediate_size": -1}, "intermediate_size is -1: want 1 to 16777216"},
		{map[string]any{"num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824: want 1 to 16777216"},
		{map[string]any{"num_attention_heads": nil}, "num_attention_heads is missing: want a number above 0"},
		{map[string]any{"num_key_value_heads": 5}, "num_key_value_heads is 5: want a divisor of num_attention_heads, 32"},
		{map[string]any{"num_key_value_heads": "8"}, `num_key_value_heads is "8": want null or a divisor of num_attention_heads, 32`},
		{map[string]any{"num_key_value_heads": 0}, "num_key_value_heads is 0: want a divisor of num_attention_heads, 32"},
		{map[string]any{"head_dim": nil, "hidden_size": 2050}, "hidden_size is 2050: want a multiple of num_attention_heads, 32, or a head_dim"},
		{map[string]any{"head_dim": 63}, "head_dim is 63: want an even number from 2 to 524288"},
		{map[string]any{"vocab_size": nil}, "vocab_size is missing: want a number above 0"},
		{map[string]any{"max_position_embeddings": nil}, "max_position_embeddings is missing: want a number above 0"},
		{map[string]any{"rms_norm_eps": 0}, "rms_norm_eps is 0: want a number between 0 and 1"},
		{map[string]any{"rope_theta": -1}, "rope_theta is -1: want a number above 1"},
		{map[string]any{"eos_token_id": "</s>"}, "eos_token_id: want a token id or a list of them: json: cannot unmarshal string into Go value of type int32"},
		{map[string]any{"eos_token_id": 128256}, "eos_token_id holds 128256: want 0 to 128255 (vocab_size - 1)"},
		{map[string]any{"eos_token_id": []int{1, -1}}, "eos_token_id holds -1: want 0 to 128255 (vocab_size - 1)"},
		{map[string]any{"bos_token_id": 1 << 20}, "bos_token_id holds 1048576: want 0 to 128255 (vocab_size - 1)"},
		{rope(map[string]any{"rope_type": "yarn"}), `rope_scaling.rope_type is "yarn": want "llama3" or "default"`},
		{rope(map[string]any{"factor": nil}), "rope_scaling.factor is missing: rope_type llama3 needs it"},
		{rope(map[string]any{"factor": 0}), "rope_scaling.factor is 0: want a number above 0"},
		{rope(map[string]any{"low_freq_factor": 4}), "rope_scaling.high_freq_factor is 4: want more than low_freq_factor, 4"},
		{rope(map[string]any{"original_max_position_embeddings": 0}), "rope_scaling.original_max_position_embeddings is 0: want a number above 0"},
	}
	for _, test := range tests {
		t.Run(test.want, func(t *testing.T) {
			_, err := ParseConfig(with(t, llama3, test.fields))
			if err == nil || err.Error() != test.want {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
	for _, raw := range []string{"", "[]", "{", `"x"`, "null"} {
		if _, err := ParseConfig([]byte(raw)); err == nil {
			t.Errorf("%q: want an error", raw)
		}
	}
}

func TestReadConfigTakesEndTokensOfGenerationConfig(t *testing.T) {
	tests := []struct {
		name, generation string
		want             []int32
		wantErr          string
	}{
		{"none", "", []int32{128001, 128008, 128009}, ""},
		{"more", `{"eos_token_id": [5, 128001]}`, []int32{5, 128001, 128008, 128009}, ""},
		{"silent", `{"temperature": 0.6}`, []int32{128001, 128008, 128009}, ""},
		{"wrong", `{"eos_token_id": 999999}`, nil, "eos_token_id holds 999999"},
		{"damaged", `{`, nil, "generation_config.json: unexpected end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("config.json", llama3)
			if test.generation != "" {
				write("generation_config.json", test.generation)
			}
			c, err := ReadConfig(dir)
			if (err == nil) != (test.wantErr == "") || (err != nil && !strings.Contains(err.Error(), test.wantErr)) {
				t.Fatalf("error %v, want one with %q", err, test.wantErr)
			}
			if diff := cmp.Diff(test.want, c.EOSTokenIDs); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzParseConfig checks that a config that is accepted has sizes that the forward pass can use.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(llama3))
	f.Add([]byte(`{"architectures":["LlamaForCausalLM"],"hidden_size":8}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseConfig(raw)
		if err != nil {
			return
		}
		if c.NumKVHeads < 1 || c.NumHeads%c.NumKVHeads != 0 || c.HeadDim < 2 || c.HeadDim%2 != 0 || c.HiddenSize < 1 ||
			c.IntermediateSize < 1 || c.NumLayers < 1 || c.VocabSize < 1 || c.ContextLength < 1 || !(c.RMSNormEps > 0) || !(c.RopeTheta > 1) {
			t.Fatalf("accepted %+v", c)
		}
	})
}
