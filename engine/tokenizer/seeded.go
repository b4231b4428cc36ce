package tokenizer

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

//go:embed corpus.txt
var corpus string

// Texts of the special tokens of a seeded tokenizer.
const (
	BeginOfText = "<|begin_of_text|>"
	EndOfText   = "<|end_of_text|>"
	IMStart     = "<|im_start|>"
	IMEnd       = "<|im_end|>"
)

// MinSeededVocab is the smallest vocabulary: all bytes and the special tokens.
const MinSeededVocab = 256 + 4

const maxSeededVocab = 1 << 20

// seededPattern splits as recent models do: numbers of at most three digits, lines kept apart.
const seededPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// Seeded says what WriteSeeded wrote: the ids for config.json.
type Seeded struct {
	VocabSize   int // ids are in [0, VocabSize), and each has text
	BOSTokenID  int32
	EOSTokenIDs []int32 // <|end_of_text|> and <|im_end|>
}

// WriteSeeded trains byte-level BPE on an embedded text and writes dir/tokenizer.json and dir/tokenizer_config.json with
// a chat template. The same vocabSize and seed give the same bytes. vocabSize is at least MinSeededVocab.
func WriteSeeded(dir string, vocabSize int, seed uint64) (Seeded, error) {
	if vocabSize < MinSeededVocab || vocabSize > maxSeededVocab {
		return Seeded{}, fmt.Errorf("write tokenizer: vocabulary size %d is not in [%d, %d]", vocabSize, MinSeededVocab, maxSeededVocab)
	}
	rng := rand.New(rand.NewPCG(seed, 0x746f6b656e697a65))
	words, err := seededWords(rng)
	if err != nil {
		return Seeded{}, fmt.Errorf("write tokenizer: %w", err)
	}
	specials := []string{BeginOfText, EndOfText, IMStart, IMEnd}
	size := vocabSize - len(specials)
	pieces, merges := train(words, size)
	pieces, merges = pad(pieces, merges, size, rng)

	id := func(i int) int32 { return int32(size + i) }
	file, err := encodeFile(seededFile(pieces, merges, specials))
	if err != nil {
		return Seeded{}, fmt.Errorf("write tokenizer: %w", err)
	}
	conf, err := encodeFile(map[string]any{
		"bos_token":                    BeginOfText,
		"eos_token":                    EndOfText,
		"chat_template":                "{{ bos_token }}" + defaultChatTemplate,
		"model_max_length":             1 << 20,
		"tokenizer_class":              "PreTrainedTokenizerFast",
		"clean_up_tokenization_spaces": false,
	})
	if err != nil {
		return Seeded{}, fmt.Errorf("write tokenizer: %w", err)
	}
	for name, data := range map[string][]byte{"tokenizer.json": file, "tokenizer_config.json": conf} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return Seeded{}, fmt.Errorf("write tokenizer: %w", err)
		}
	}
	return Seeded{VocabSize: vocabSize, BOSTokenID: id(0), EOSTokenIDs: []int32{id(1), id(3)}}, nil
}

// seededWords counts the words of the text. The seed gives each paragraph a weight, so seeds differ in their merges.
func seededWords(rng *rand.Rand) (map[string]int, error) {
	splitter, err := newPatternSplitter(seededPattern, false)
	if err != nil {
		return nil, err
	}
	words := map[string]int{}
	for _, paragraph := range strings.SplitAfter(corpus, "\n\n") {
		weight := 1 + rng.IntN(4)
		if err := splitter.split(paragraph, func(word string) { words[word] += weight }); err != nil {
			return nil, err
		}
	}
	return words, nil
}

func seededFile(pieces []string, merges []pair, specials []string) *tokenizerFile {
	pattern, no := seededPattern, false
	f := &tokenizerFile{
		Version:    "1.0",
		Truncation: json.RawMessage("null"),
		Padding:    json.RawMessage("null"),
		PreTokenizer: &component{Type: "Sequence", PreTokenizers: []component{
			{Type: "Split", Pattern: &splitPattern{Regex: &pattern}, Behavior: "Isolated"},
			{Type: "ByteLevel", AddPrefixSpace: &no, TrimOffsets: &no, UseRegex: &no},
		}},
		Decoder: &component{Type: "ByteLevel"},
		Model:   modelFile{Type: "BPE", Vocab: make(map[string]int32, len(pieces))},
	}
	for id, p := range pieces {
		f.Model.Vocab[toEntry([]byte(p))] = int32(id)
	}
	for _, m := range merges {
		// Marshalling a list of two strings can't fail.
		raw, _ := json.Marshal([2]string{toEntry([]byte(pieces[m.left])), toEntry([]byte(pieces[m.right]))})
		f.Model.Merges = append(f.Model.Merges, raw)
	}
	for i, s := range specials {
		f.AddedTokens = append(f.AddedTokens, addedToken{ID: int32(len(pieces) + i), Content: s, Special: true})
	}
	bos := int32(len(pieces))
	a, b := &templateRef{ID: "A"}, &templateRef{ID: "B", TypeID: 1}
	ref := func(typeID int) *templateRef { return &templateRef{ID: BeginOfText, TypeID: typeID} }
	f.PostProcessor = &component{
		Type:          "TemplateProcessing",
		Single:        []templatePiece{{SpecialToken: ref(0)}, {Sequence: a}},
		Pair:          []templatePiece{{SpecialToken: ref(0)}, {Sequence: a}, {SpecialToken: ref(1)}, {Sequence: b}},
		SpecialTokens: map[string]templateToken{BeginOfText: {ID: BeginOfText, IDs: []int32{bos}, Tokens: []string{BeginOfText}}},
	}
	return f
}

// encodeFile writes JSON as people read it: indented, without HTML escapes. Maps come sorted, so equal values give equal
// bytes.
func encodeFile(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
