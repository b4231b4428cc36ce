package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// tokenizerFile is tokenizer.json as far as it is understood. A field with a value that is not understood is an error:
// ignoring it would give other ids than the model was trained on.
type tokenizerFile struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    *component      `json:"normalizer"`
	PreTokenizer  *component      `json:"pre_tokenizer"`
	PostProcessor *component      `json:"post_processor"`
	Decoder       *component      `json:"decoder"`
	Model         modelFile       `json:"model"`
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type modelFile struct {
	Type                    string            `json:"type"`
	Dropout                 *float64          `json:"dropout"`
	UnkToken                *string           `json:"unk_token"`
	ContinuingSubwordPrefix *string           `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string           `json:"end_of_word_suffix"`
	FuseUnk                 bool              `json:"fuse_unk"`
	ByteFallback            bool              `json:"byte_fallback"`
	IgnoreMerges            bool              `json:"ignore_merges"`
	Vocab                   map[string]int32  `json:"vocab"`
	Merges                  []json.RawMessage `json:"merges"`
}

// component is a step of the pipeline, told apart by Type; the fields are those of all types together.
type component struct {
	Type string `json:"type"`

	// ByteLevel
	AddPrefixSpace *bool `json:"add_prefix_space,omitempty"`
	TrimOffsets    *bool `json:"trim_offsets,omitempty"`
	UseRegex       *bool `json:"use_regex,omitempty"`

	// Split
	Pattern  *splitPattern `json:"pattern,omitempty"`
	Behavior string        `json:"behavior,omitempty"`
	Invert   bool          `json:"invert,omitempty"`

	// Sequence
	Normalizers   []component `json:"normalizers,omitempty"`
	PreTokenizers []component `json:"pretokenizers,omitempty"`
	Processors    []component `json:"processors,omitempty"`

	// TemplateProcessing
	Single        []templatePiece          `json:"single,omitempty"`
	Pair          []templatePiece          `json:"pair,omitempty"`
	SpecialTokens map[string]templateToken `json:"special_tokens,omitempty"`
}

type splitPattern struct {
	Regex  *string `json:"Regex,omitempty"`
	String *string `json:"String,omitempty"`
}

type templatePiece struct {
	SpecialToken *templateRef `json:"SpecialToken,omitempty"`
	Sequence     *templateRef `json:"Sequence,omitempty"`
}

type templateRef struct {
	ID     string `json:"id"`
	TypeID int    `json:"type_id"`
}

type templateToken struct {
	ID     string   `json:"id"`
	IDs    []int32  `json:"ids"`
	Tokens []string `json:"tokens"`
}

// fieldError says which field of tokenizer.json can't be used, and why.
type fieldError struct{ field, reason string }

func (e fieldError) Error() string { return e.field + ": " + e.reason }

func unsupported(field, format string, args ...any) error {
	return fieldError{field, fmt.Sprintf(format, args...)}
}

const maxVocab = 1 << 24 // ids; far above any real vocabulary

// parse builds a tokenizer from the content of a tokenizer.json.
func parse(data []byte) (*Tokenizer, error) {
	var f tokenizerFile
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, err
	}
	t := &Tokenizer{}
	for _, step := range []func(*tokenizerFile) error{
		t.checkUnused, t.setVocab, t.setMerges, t.setAdded, t.setNormalizer, t.setPreTokenizer, t.setPostProcessor, t.setDecoder,
	} {
		if err := step(&f); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Tokenizer) checkUnused(f *tokenizerFile) error {
	empty := func(s *string) bool { return s == nil || *s == "" }
	isNull := func(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
	m := &f.Model
	switch {
	case !isNull(f.Truncation):
		return unsupported("truncation", "prompts are never cut; set it to null")
	case !isNull(f.Padding):
		return unsupported("padding", "prompts are never padded; set it to null")
	case m.Type != "" && m.Type != "BPE":
		return unsupported("model.type", "%q is not supported, only BPE", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("model.dropout", "must be null or 0")
	case !empty(m.ContinuingSubwordPrefix):
		return unsupported("model.continuing_subword_prefix", "%q is not supported, only null", *m.ContinuingSubwordPrefix)
	case !empty(m.EndOfWordSuffix):
		return unsupported("model.end_of_word_suffix", "%q is not supported, only null", *m.EndOfWordSuffix)
	case m.ByteFallback:
		return unsupported("model.byte_fallback", "true is not supported: only byte-level vocabularies are")
	}
	return nil
}

func (t *Tokenizer) setVocab(f *tokenizerFile) error {
	if len(f.Model.Vocab) == 0 {
		return unsupported("model.vocab", "is missing")
	}
	size := int32(0)
	grow := func(field string, id int32) error {
		if id < 0 || id >= maxVocab {
			return unsupported(field, "id %d is not in [0, %d)", id, maxVocab)
		}
		size = max(size, id+1)
		return nil
	}
	for entry, id := range f.Model.Vocab {
		if err := grow(fmt.Sprintf("model.vocab[%q]", entry), id); err != nil {
			return err
		}
	}
	for i, a := range f.AddedTokens {
		if err := grow(fmt.Sprintf("added_tokens[%d].id", i), a.ID); err != nil {
			return err
		}
	}
	t.pieces = make([]string, size)
	t.special = make([]bool, size)
	t.ids = make(map[string]int32, len(f.Model.Vocab)+len(f.AddedTokens))
	t.known = make([]bool, size)
	t.bytes = make(map[string]int32, len(f.Model.Vocab))
	for entry, id := range f.Model.Vocab {
		if t.known[id] {
			return unsupported(fmt.Sprintf("model.vocab[%q]", entry), "id %d has two entries", id)
		}
		t.known[id], t.ids[entry], t.pieces[id] = true, id, entry
		if b, ok := toBytes(entry); ok {
			t.pieces[id] = string(b)
			t.bytes[string(b)] = id
		}
	}
	for b := range 256 {
		id, ok := t.bytes[string([]byte{byte(b)})]
		if !ok {
			return unsupported("model.vocab", "lacks an entry for byte %#02x, %q: it is not byte-level", b, runeOfByte[b])
		}
		t.bpe.byteID[b] = id
	}
	if f.Model.IgnoreMerges {
		t.bpe.whole = t.bytes
	}
	return nil
}

func (t *Tokenizer) setMerges(f *tokenizerFile) error {
	t.bpe.merges = make(map[pair]merge, len(f.Model.Merges))
	for rank, raw := range f.Model.Merges {
		field := fmt.Sprintf("model.merges[%d]", rank)
		left, right, err := parseMerge(raw)
		if err != nil {
			return unsupported(field, "%s", err)
		}
		var ids [3]int32
		for i, entry := range [3]string{left, right, left + right} {
			id, ok := f.Model.Vocab[entry]
			if !ok {
				return unsupported(field, "%q is not in model.vocab", entry)
			}
			ids[i] = id
		}
		p := pair{ids[0], ids[1]}
		if _, twice := t.bpe.merges[p]; !twice {
			t.bpe.merges[p] = merge{rank: int32(rank), id: ids[2]}
		}
	}
	return nil
}

// parseMerge reads "left right" or ["left", "right"].
func parseMerge(raw json.RawMessage) (left, right string, err error) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		left, right, ok := strings.Cut(s, " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return "", "", fmt.Errorf("%q is not two entries with one space between", s)
		}
		return left, right, nil
	}
	var p []string
	if err := json.Unmarshal(raw, &p); err != nil || len(p) != 2 || p[0] == "" || p[1] == "" {
		return "", "", errors.New("is neither a string nor a list of two strings")
	}
	return p[0], p[1], nil
}

func (t *Tokenizer) setAdded(f *tokenizerFile) error {
	for i, a := range f.AddedTokens {
		field := fmt.Sprintf("added_tokens[%d]", i)
		switch {
		case a.Content == "":
			return unsupported(field+".content", "is empty")
		case a.SingleWord:
			return unsupported(field+".single_word", "true is not supported (%q)", a.Content)
		case a.LStrip:
			return unsupported(field+".lstrip", "true is not supported (%q)", a.Content)
		case a.RStrip:
			return unsupported(field+".rstrip", "true is not supported (%q)", a.Content)
		}
		t.known[a.ID], t.ids[a.Content] = true, a.ID
		t.pieces[a.ID], t.special[a.ID] = a.Content, a.Special
		if a.Normalized {
			t.addedNormalized.add(norm.NFC.String(a.Content), a.ID)
			continue
		}
		t.addedRaw.add(a.Content, a.ID)
	}
	return nil
}

func (t *Tokenizer) setNormalizer(f *tokenizerFile) error {
	if f.Normalizer == nil {
		return nil
	}
	steps := []component{*f.Normalizer}
	field := "normalizer"
	if f.Normalizer.Type == "Sequence" {
		steps = f.Normalizer.Normalizers
		field = "normalizer.normalizers"
	}
	for _, s := range steps {
		if s.Type != "NFC" {
			return unsupported(field, "type %q is not supported, only NFC and null", s.Type)
		}
		t.nfc = true
	}
	return nil
}

func (t *Tokenizer) setPreTokenizer(f *tokenizerFile) error {
	if f.PreTokenizer == nil {
		return unsupported("pre_tokenizer", "is missing; ByteLevel is needed")
	}
	steps := []component{*f.PreTokenizer}
	prefix := "pre_tokenizer"
	if f.PreTokenizer.Type == "Sequence" {
		steps = f.PreTokenizer.PreTokenizers
		prefix = "pre_tokenizer.pretokenizers"
	}
	for i, s := range steps {
		field := prefix
		if f.PreTokenizer.Type == "Sequence" {
			field = fmt.Sprintf("%s[%d]", prefix, i)
		}
		last := i == len(steps)-1
		switch {
		case s.Type == "ByteLevel" && last:
			if s.AddPrefixSpace != nil && *s.AddPrefixSpace {
				t.splitters = append(t.splitters, prefixSpacer{})
			}
			if s.UseRegex == nil || *s.UseRegex {
				p, err := newPatternSplitter(gpt2Pattern, false)
				if err != nil {
					return err
				}
				t.splitters = append(t.splitters, p)
			}
			return nil
		case s.Type == "Split" && !last:
			p, err := parseSplit(field, s)
			if err != nil {
				return err
			}
			t.splitters = append(t.splitters, p)
		default:
			return unsupported(field+".type", "%q is not supported here: only Split steps and ByteLevel at the end are", s.Type)
		}
	}
	return unsupported(prefix, "does not end with ByteLevel")
}

func parseSplit(field string, s component) (splitter, error) {
	if s.Pattern == nil || s.Pattern.Regex == nil {
		return nil, unsupported(field+".pattern", "only Regex is supported")
	}
	matchesOnly := false
	switch {
	case s.Behavior == "Isolated":
	case s.Behavior == "Removed" && s.Invert:
		matchesOnly = true
	default:
		return nil, unsupported(field+".behavior", "%q with invert %v is not supported, only Isolated, or Removed with invert true", s.Behavior, s.Invert)
	}
	p, err := newPatternSplitter(*s.Pattern.Regex, matchesOnly)
	if err != nil {
		return nil, unsupported(field+".pattern.Regex", "%s", err)
	}
	return p, nil
}

func (t *Tokenizer) setPostProcessor(f *tokenizerFile) error {
	if f.PostProcessor == nil {
		return nil
	}
	steps := []component{*f.PostProcessor}
	if f.PostProcessor.Type == "Sequence" {
		steps = f.PostProcessor.Processors
	}
	for _, s := range steps {
		switch s.Type {
		case "ByteLevel": // only moves offsets, which nobody asks for
		case "TemplateProcessing":
			if err := t.setTemplate(s); err != nil {
				return err
			}
		default:
			return unsupported("post_processor.type", "%q is not supported, only TemplateProcessing and ByteLevel", s.Type)
		}
	}
	return nil
}

func (t *Tokenizer) setTemplate(s component) error {
	seen := false
	for i, p := range s.Single {
		field := fmt.Sprintf("post_processor.single[%d]", i)
		switch {
		case p.Sequence != nil && !seen:
			seen = true
		case p.SpecialToken != nil:
			tok, ok := s.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return unsupported(field, "%q is not in post_processor.special_tokens", p.SpecialToken.ID)
			}
			for _, id := range tok.IDs {
				if id < 0 || int(id) >= len(t.pieces) {
					return unsupported(field, "id %d of %q is not in the vocabulary", id, p.SpecialToken.ID)
				}
			}
			if seen {
				t.suffix = append(t.suffix, tok.IDs...)
			} else {
				t.prefix = append(t.prefix, tok.IDs...)
			}
		default:
			return unsupported(field, "must be a SpecialToken or the one Sequence")
		}
	}
	if !seen {
		return unsupported("post_processor.single", "has no Sequence")
	}
	return nil
}

func (t *Tokenizer) setDecoder(f *tokenizerFile) error {
	if f.Decoder == nil || f.Decoder.Type != "ByteLevel" {
		kind := "null"
		if f.Decoder != nil {
			kind = f.Decoder.Type
		}
		return unsupported("decoder", "%s is not supported, only ByteLevel", kind)
	}
	return nil
}
