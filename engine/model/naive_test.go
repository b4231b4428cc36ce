package model

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// naive is a Llama written a second time, from the paper and in float64: no pages, no cache, no batch, no chunks, weights
// as they are stored. It shares no code with the package; it even reads the files by itself (F32 in one file).
type naive struct {
	hidden, layers, heads, kvHeads, headDim int
	eps, theta                              float64
	scaling                                 map[string]any
	tied                                    bool
	windows                                 []int // by layer, 0: none
	weights                                 map[string][]float64
}

func loadNaive(t *testing.T, dir string) *naive {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	number := func(name string) float64 { return c[name].(float64) }
	m := &naive{
		hidden: int(number("hidden_size")), layers: int(number("num_hidden_layers")), heads: int(number("num_attention_heads")),
		kvHeads: int(number("num_key_value_heads")), headDim: int(number("head_dim")),
		eps: number("rms_norm_eps"), theta: number("rope_theta"), tied: c["tie_word_embeddings"].(bool),
		weights: map[string][]float64{},
	}
	m.scaling, _ = c["rope_scaling"].(map[string]any)
	m.windows = make([]int, m.layers)
	if types, ok := c["layer_types"].([]any); ok {
		for i, kind := range types {
			if kind == "sliding_attention" {
				m.windows[i] = int(number("sliding_window"))
			}
		}
	}

	file, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	headerEnd := 8 + binary.LittleEndian.Uint64(file)
	var header map[string]struct {
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(file[8:headerEnd], &header); err != nil {
		t.Fatal(err)
	}
	for name, h := range header {
		data := file[headerEnd:][h.Offsets[0]:h.Offsets[1]]
		values := make([]float64, len(data)/4)
		for i := range values {
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
		}
		m.weights[name] = values
	}
	return m
}

// linear is w times x.
func linear(w, x []float64) []float64 {
	y := make([]float64, len(w)/len(x))
	for o := range y {
		for k, v := range x {
			y[o] += v * w[o*len(x)+k]
		}
	}
	return y
}

func (m *naive) norm(x, weight []float64) []float64 {
	var mean float64
	for _, v := range x {
		mean += v * v / float64(len(x))
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = weight[i] * v / math.Sqrt(mean+m.eps)
	}
	return y
}

// rotate turns a head's vector to its position, as a product of complex numbers.
func (m *naive) rotate(x []float64, position int) {
	half := len(x) / 2
	for j := range half {
		freq := math.Pow(m.theta, -2*float64(j)/float64(len(x)))
		if m.scaling != nil {
			number := func(name string) float64 { return m.scaling[name].(float64) }
			factor, low, high, old := number("factor"), number("low_freq_factor"), number("high_freq_factor"), number("original_max_position_embeddings")
			wavelength := 2 * math.Pi / freq
			switch {
			case wavelength > old/low:
				freq /= factor
			case wavelength >= old/high:
				smooth := (old/wavelength - low) / (high - low)
				freq = (1-smooth)*freq/factor + smooth*freq
			}
		}
		angle := float64(position) * freq
		z := complex(x[j], x[j+half]) * complex(math.Cos(angle), math.Sin(angle))
		x[j], x[j+half] = real(z), imag(z)
	}
}

// logits runs all tokens of one sequence and gives the logits after each.
func (m *naive) logits(tokens []int32) [][]float64 {
	weight := func(name string) []float64 { return m.weights[name+".weight"] }
	var keys, values [][][]float64 // [layer][position]
	keys, values = make([][][]float64, m.layers), make([][][]float64, m.layers)
	var all [][]float64
	for position, token := range tokens {
		x := append([]float64(nil), weight("model.embed_tokens")[int(token)*m.hidden:][:m.hidden]...)
		for l := range m.layers {
			name := "model.layers." + string(rune('0'+l)) + "."
			in := m.norm(x, weight(name+"input_layernorm"))
			q, k := linear(weight(name+"self_attn.q_proj"), in), linear(weight(name+"self_attn.k_proj"), in)
			for h := range m.heads {
				m.rotate(q[h*m.headDim:(h+1)*m.headDim], position)
			}
			for h := range m.kvHeads {
				m.rotate(k[h*m.headDim:(h+1)*m.headDim], position)
			}
			keys[l], values[l] = append(keys[l], k), append(values[l], linear(weight(name+"self_attn.v_proj"), in))
			var mixed []float64
			for h := range m.heads {
				mixed = append(mixed, m.attend(q[h*m.headDim:(h+1)*m.headDim], keys[l], values[l], h*m.kvHeads/m.heads, m.windows[l])...)
			}
			for i, v := range linear(weight(name+"self_attn.o_proj"), mixed) {
				x[i] += v
			}
			in = m.norm(x, weight(name+"post_attention_layernorm"))
			gate, up := linear(weight(name+"mlp.gate_proj"), in), linear(weight(name+"mlp.up_proj"), in)
			for i, g := range gate {
				up[i] *= g / (1 + math.Exp(-g))
			}
			for i, v := range linear(weight(name+"mlp.down_proj"), up) {
				x[i] += v
			}
		}
		head := "lm_head"
		if m.tied {
			head = "model.embed_tokens"
		}
		all = append(all, linear(weight(head), m.norm(x, weight("model.norm"))))
	}
	return all
}

func (m *naive) attend(q []float64, keys, values [][]float64, kvHead, window int) []float64 {
	out := make([]float64, len(q))
	var total float64
	for p := range keys {
		if window > 0 && p <= len(keys)-1-window { // the mask lets i see j where j > i - window
			continue
		}
		k, v := keys[p][kvHead*len(q):(kvHead+1)*len(q)], values[p][kvHead*len(q):(kvHead+1)*len(q)]
		weight := math.Exp(linear(k, q)[0] / math.Sqrt(float64(len(q))))
		total += weight
		for d := range out {
			out[d] += weight * v[d]
		}
	}
	for d := range out {
		out[d] /= total
	}
	return out
}
