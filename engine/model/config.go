package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
)

// Config is the part of a Hugging Face config.json that the forward pass needs, validated, with defaults filled in.
type Config struct {
	Architecture string // LlamaForCausalLM, MistralForCausalLM or MinistralForCausalLM

	HiddenSize       int
	IntermediateSize int
	NumLayers        int
	NumHeads         int // NumHeads % NumKVHeads == 0
	NumKVHeads       int
	HeadDim          int // even
	VocabSize        int
	ContextLength    int // max_position_embeddings

	// SlidingWindow is how many tokens a token of a windowed layer looks at, its own included; 0: no layer is windowed.
	SlidingWindow int
	Windowed      []bool // by layer; nil: none is

	RMSNormEps  float32
	RopeTheta   float64
	RopeScaling *RopeScaling // nil: none

	TieWordEmbeddings bool
	StoredDType       string  // torch_dtype, for people; empty when config.json has none
	EOSTokenIDs       []int32 // ascending, of config.json and generation_config.json; may be empty
	BOSTokenID        *int32
}

// RopeScaling stretches the rotation of slow frequencies, as Llama 3.1 does ("rope_type": "llama3").
type RopeScaling struct {
	Factor          float64 // > 1 for a longer context
	LowFreqFactor   float64 // wavelengths above OriginalContext/LowFreqFactor are stretched by Factor
	HighFreqFactor  float64 // wavelengths below OriginalContext/HighFreqFactor stay
	OriginalContext int     // original_max_position_embeddings
}

// ReadConfig reads dir's config.json and, where there is one, the end tokens of generation_config.json.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read model config: %w", err)
	}
	c, err := ParseConfig(raw)
	if err != nil {
		return Config{}, fmt.Errorf("read model config %s: %w", path, err)
	}
	path = filepath.Join(dir, "generation_config.json")
	raw, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("read generation config: %w", err)
	}
	var generation struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err := json.Unmarshal(raw, &generation); err != nil {
		return Config{}, fmt.Errorf("read generation config %s: %w", path, err)
	}
	more, err := tokenIDs("eos_token_id", generation.EOS, c.VocabSize)
	if err != nil {
		return Config{}, fmt.Errorf("read generation config %s: %w", path, err)
	}
	c.EOSTokenIDs = sortedSet(append(c.EOSTokenIDs, more...))
	return c, nil
}

// file is config.json. Pointers tell an absent field from a zero.
type file struct {
	Architectures         []string        `json:"architectures"`
	ModelType             string          `json:"model_type"`
	HiddenSize            *int            `json:"hidden_size"`
	IntermediateSize      *int            `json:"intermediate_size"`
	NumHiddenLayers       *int            `json:"num_hidden_layers"`
	NumAttentionHeads     *int            `json:"num_attention_heads"`
	NumKeyValueHeads      json.RawMessage `json:"num_key_value_heads"` // null is not absent: see architecture
	HeadDim               *int            `json:"head_dim"`
	VocabSize             *int            `json:"vocab_size"`
	MaxPositionEmbeddings *int            `json:"max_position_embeddings"`
	RMSNormEps            *float64        `json:"rms_norm_eps"`
	RopeTheta             *float64        `json:"rope_theta"`
	RopeScaling           json.RawMessage `json:"rope_scaling"`
	RopeParameters        json.RawMessage `json:"rope_parameters"`
	SlidingWindow         json.RawMessage `json:"sliding_window"`
	LayerTypes            []string        `json:"layer_types"`
	TieWordEmbeddings     bool            `json:"tie_word_embeddings"`
	EOSTokenID            json.RawMessage `json:"eos_token_id"`
	BOSTokenID            json.RawMessage `json:"bos_token_id"`
	TorchDType            string          `json:"torch_dtype"`
	DType                 string          `json:"dtype"`
	HiddenAct             *string         `json:"hidden_act"`
	AttentionBias         bool            `json:"attention_bias"`
	MLPBias               bool            `json:"mlp_bias"`
	Quantization          json.RawMessage `json:"quantization_config"`
}

// maxExtent bounds every size, so that products of two fit in an int and a damaged file is refused before it allocates.
const maxExtent = 1 << 24

// ParseConfig reads and validates the bytes of a config.json. Errors name the field and what it should be.
func ParseConfig(raw []byte) (Config, error) {
	var f file
	if err := json.Unmarshal(raw, &f); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return Config{}, fmt.Errorf("%s is a JSON %s: want %s", wrong.Field, wrong.Value, wrong.Type)
		}
		return Config{}, fmt.Errorf("not JSON: %w", err)
	}
	kind, err := f.architecture()
	if err != nil {
		return Config{}, err
	}
	if err := f.supported(); err != nil {
		return Config{}, err
	}
	c := Config{Architecture: kind.name, TieWordEmbeddings: f.TieWordEmbeddings, StoredDType: f.TorchDType}
	if c.StoredDType == "" {
		c.StoredDType = f.DType
	}
	if err := f.sizes(kind, &c); err != nil {
		return Config{}, err
	}
	if err := f.windows(kind, &c); err != nil {
		return Config{}, err
	}
	if err := f.numbers(&c); err != nil {
		return Config{}, err
	}
	if err := f.tokens(&c); err != nil {
		return Config{}, err
	}
	return c, nil
}

// supported refuses what would be computed wrongly if it were ignored.
func (f *file) supported() error {
	if f.HiddenAct != nil && *f.HiddenAct != "silu" {
		return fmt.Errorf("hidden_act is %q: want \"silu\"", *f.HiddenAct)
	}
	if f.AttentionBias {
		return errors.New("attention_bias is true: want false, biases aren't computed")
	}
	if f.MLPBias {
		return errors.New("mlp_bias is true: want false, biases aren't computed")
	}
	if present(f.Quantization) {
		return errors.New("quantization_config is set: want unquantised weights (F32, F16 or BF16)")
	}
	return nil
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

func (f *file) sizes(kind architecture, c *Config) error {
	fields := []struct {
		name  string
		value *int
		to    *int
	}{
		{"hidden_size", f.HiddenSize, &c.HiddenSize},
		{"intermediate_size", f.IntermediateSize, &c.IntermediateSize},
		{"num_hidden_layers", f.NumHiddenLayers, &c.NumLayers},
		{"num_attention_heads", f.NumAttentionHeads, &c.NumHeads},
		{"vocab_size", f.VocabSize, &c.VocabSize},
		{"max_position_embeddings", f.MaxPositionEmbeddings, &c.ContextLength},
	}
	for _, field := range fields {
		if field.value == nil {
			return fmt.Errorf("%s is missing: want a number above 0", field.name)
		}
		if *field.value < 1 || *field.value > maxExtent {
			return fmt.Errorf("%s is %d: want 1 to %d", field.name, *field.value, maxExtent)
		}
		*field.to = *field.value
	}
	c.NumKVHeads = c.NumHeads
	if kind.kvHeads > 0 && len(f.NumKeyValueHeads) == 0 {
		c.NumKVHeads = kind.kvHeads
	}
	if present(f.NumKeyValueHeads) {
		if err := json.Unmarshal(f.NumKeyValueHeads, &c.NumKVHeads); err != nil {
			return fmt.Errorf("num_key_value_heads is %.40s: want null or a divisor of num_attention_heads, %d", f.NumKeyValueHeads, c.NumHeads)
		}
	}
	if c.NumKVHeads < 1 || c.NumHeads%c.NumKVHeads != 0 {
		return fmt.Errorf("num_key_value_heads is %d: want a divisor of num_attention_heads, %d", c.NumKVHeads, c.NumHeads)
	}
	c.HeadDim = c.HiddenSize / c.NumHeads
	if f.HeadDim != nil {
		c.HeadDim = *f.HeadDim
	} else if c.HiddenSize%c.NumHeads != 0 {
		return fmt.Errorf("hidden_size is %d: want a multiple of num_attention_heads, %d, or a head_dim", c.HiddenSize, c.NumHeads)
	}
	if c.HeadDim < 2 || c.HeadDim%2 != 0 || c.HeadDim > maxExtent/c.NumHeads {
		return fmt.Errorf("head_dim is %d: want an even number from 2 to %d", c.HeadDim, maxExtent/c.NumHeads)
	}
	return nil
}

func (f *file) numbers(c *Config) error {
	c.RMSNormEps = 1e-6
	if f.RMSNormEps != nil {
		c.RMSNormEps = float32(*f.RMSNormEps)
	}
	if !(c.RMSNormEps > 0 && c.RMSNormEps < 1) {
		return fmt.Errorf("rms_norm_eps is %g: want a number between 0 and 1", c.RMSNormEps)
	}
	rope, err := f.rope()
	if err != nil {
		return err
	}
	c.RopeTheta = 10000
	if rope.Theta != nil {
		c.RopeTheta = *rope.Theta
	} else if f.RopeTheta != nil {
		c.RopeTheta = *f.RopeTheta
	}
	if !(c.RopeTheta > 1 && c.RopeTheta < math.MaxFloat32) {
		return fmt.Errorf("rope_theta is %g: want a number above 1", c.RopeTheta)
	}
	c.RopeScaling, err = rope.scaling(c.ContextLength)
	return err
}

// ropeFile is rope_scaling, or rope_parameters in newer files.
type ropeFile struct {
	field           string
	RopeType        string   `json:"rope_type"`
	Type            string   `json:"type"` // before rope_type
	Theta           *float64 `json:"rope_theta"`
	Factor          *float64 `json:"factor"`
	LowFreqFactor   *float64 `json:"low_freq_factor"`
	HighFreqFactor  *float64 `json:"high_freq_factor"`
	OriginalContext *int     `json:"original_max_position_embeddings"`
}

func (f *file) rope() (ropeFile, error) {
	field, raw := "rope_scaling", f.RopeScaling
	if present(f.RopeParameters) {
		field, raw = "rope_parameters", f.RopeParameters
	}
	r := ropeFile{field: field}
	raw, err := oneForAllLayers(field, raw)
	if err != nil {
		return r, err
	}
	if present(raw) {
		if err := json.Unmarshal(raw, &r); err != nil {
			return r, fmt.Errorf("%s: %w", field, err)
		}
	}
	return r, nil
}

// oneForAllLayers gives the parameters that stand in raw once for every layer type, which must be the same.
func oneForAllLayers(field string, raw json.RawMessage) (json.RawMessage, error) {
	var types map[string]json.RawMessage
	if present(raw) {
		if err := json.Unmarshal(raw, &types); err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
	}
	full, sliding := types[fullAttention], types[slidingAttention]
	if full == nil && sliding == nil {
		return raw, nil
	}
	var a, b any
	if full == nil || sliding == nil || json.Unmarshal(full, &a) != nil || json.Unmarshal(sliding, &b) != nil || !reflect.DeepEqual(a, b) {
		return nil, fmt.Errorf("%s differs between %s and %s: want the same for both, others aren't computed", field, fullAttention, slidingAttention)
	}
	return full, nil
}

func (r ropeFile) scaling(contextLength int) (*RopeScaling, error) {
	kind := r.RopeType
	if kind == "" {
		kind = r.Type
	}
	switch kind {
	case "", "default":
		return nil, nil
	case "llama3":
	default:
		return nil, fmt.Errorf("%s.rope_type is %q: want \"llama3\" or \"default\"", r.field, kind)
	}
	s := RopeScaling{OriginalContext: contextLength}
	fields := []struct {
		name  string
		value *float64
		to    *float64
	}{
		{"factor", r.Factor, &s.Factor},
		{"low_freq_factor", r.LowFreqFactor, &s.LowFreqFactor},
		{"high_freq_factor", r.HighFreqFactor, &s.HighFreqFactor},
	}
	for _, field := range fields {
		if field.value == nil {
			return nil, fmt.Errorf("%s.%s is missing: rope_type llama3 needs it", r.field, field.name)
		}
		if !(*field.value > 0 && *field.value < math.MaxFloat32) {
			return nil, fmt.Errorf("%s.%s is %g: want a number above 0", r.field, field.name, *field.value)
		}
		*field.to = *field.value
	}
	if s.HighFreqFactor <= s.LowFreqFactor {
		return nil, fmt.Errorf("%s.high_freq_factor is %g: want more than low_freq_factor, %g", r.field, s.HighFreqFactor, s.LowFreqFactor)
	}
	if r.OriginalContext != nil {
		s.OriginalContext = *r.OriginalContext
	}
	if s.OriginalContext < 1 {
		return nil, fmt.Errorf("%s.original_max_position_embeddings is %d: want a number above 0", r.field, s.OriginalContext)
	}
	return &s, nil
}

func (f *file) tokens(c *Config) error {
	eos, err := tokenIDs("eos_token_id", f.EOSTokenID, c.VocabSize)
	if err != nil {
		return err
	}
	c.EOSTokenIDs = sortedSet(eos)
	bos, err := tokenIDs("bos_token_id", f.BOSTokenID, c.VocabSize)
	if err != nil {
		return err
	}
	if len(bos) > 0 {
		c.BOSTokenID = &bos[0]
	}
	return nil
}

// tokenIDs reads a number, a list of numbers, or nothing.
func tokenIDs(field string, raw json.RawMessage, vocabSize int) ([]int32, error) {
	if !present(raw) {
		return nil, nil
	}
	var ids []int32
	if raw[0] != '[' {
		raw = slices.Concat([]byte("["), raw, []byte("]"))
	}
	if err := json.Unmarshal(raw, &ids); err != nil {
		return nil, fmt.Errorf("%s: want a token id or a list of them: %w", field, err)
	}
	for _, id := range ids {
		if id < 0 || int(id) >= vocabSize {
			return nil, fmt.Errorf("%s holds %d: want 0 to %d (vocab_size - 1)", field, id, vocabSize-1)
		}
	}
	return ids, nil
}

func sortedSet(ids []int32) []int32 {
	slices.Sort(ids)
	return slices.Compact(ids)
}
