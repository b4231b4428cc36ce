package model

import (
	"encoding/json"
	"fmt"
	"slices"
)

// architecture is what one of Hugging Face's classes adds to the others. They compute alike: Mistral is Llama with a
// window on every layer, Ministral chooses by layer.
type architecture struct {
	name    string
	kvHeads int // num_key_value_heads of a config.json without it; 0: num_attention_heads, which null always means
	window  int // sliding_window of a config.json without it, which is not the same as null; 0: none, the class has no window
	types   bool
}

var architectures = []architecture{
	{name: "LlamaForCausalLM"},
	{name: "MistralForCausalLM", kvHeads: 8, window: 4096},
	{name: "MinistralForCausalLM", kvHeads: 8, window: 4096, types: true},
}

// architecture picks the first that is known.
func (f *file) architecture() (architecture, error) {
	var names []string
	for _, a := range architectures {
		if slices.Contains(f.Architectures, a.name) {
			return a, nil
		}
		names = append(names, a.name)
	}
	return architecture{}, fmt.Errorf("architectures is %q: want one of %q", f.Architectures, names)
}

// The values of layer_types.
const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// windows reads which layers look at a window only.
func (f *file) windows(a architecture, c *Config) error {
	if a.window == 0 {
		return nil
	}
	window := a.window
	if string(f.SlidingWindow) == "null" {
		window = 0
	} else if len(f.SlidingWindow) > 0 {
		if err := json.Unmarshal(f.SlidingWindow, &window); err != nil || window < 1 || window > maxExtent {
			return fmt.Errorf("sliding_window is %s: want null or 1 to %d tokens", f.SlidingWindow, maxExtent)
		}
	}
	windowed := slices.Repeat([]bool{window > 0}, c.NumLayers)
	if a.types && f.LayerTypes != nil {
		if len(f.LayerTypes) != c.NumLayers {
			return fmt.Errorf("layer_types has %d entries: want one for each of the %d layers (num_hidden_layers)", len(f.LayerTypes), c.NumLayers)
		}
		for i, kind := range f.LayerTypes {
			if kind != fullAttention && kind != slidingAttention {
				return fmt.Errorf("layer_types[%d] is %q: want %q or %q", i, kind, fullAttention, slidingAttention)
			}
			if kind == slidingAttention && window == 0 {
				return fmt.Errorf("layer_types[%d] is %q, but sliding_window is null: want the window's length in tokens", i, kind)
			}
			windowed[i] = kind == slidingAttention
		}
	}
	if slices.Contains(windowed, true) {
		c.SlidingWindow, c.Windowed = window, windowed
	}
	return nil
}

// Window is how many tokens layer i of the model looks back at, its own included; 0: all.
func (c Config) Window(i int) int {
	if c.Windowed == nil || !c.Windowed[i] {
		return 0
	}
	return c.SlidingWindow
}
