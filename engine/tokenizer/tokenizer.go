package tokenizer

import "errors"

// Tokenizer encodes and decodes text. It is immutable and safe for concurrent use.
type Tokenizer struct{}

// Load reads dir/tokenizer.json and, when it is there, dir/tokenizer_config.json. An error names the file and the field.
func Load(dir string) (*Tokenizer, error) { return nil, errors.New("load tokenizer " + dir) }

// Encode gives the token ids of text. Special tokens in the text are recognised. With addSpecial the ids that the
// tokenizer puts around a sequence (BOS) are added.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 { return nil }

// Decode gives the text of ids; invalid bytes become U+FFFD. With skipSpecial special tokens have no text. Unknown ids
// have no text.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string { return "" }

// EOS lists the ids that end a sequence, as far as the tokenizer's files know; may be empty.
func (t *Tokenizer) EOS() []int32 { return nil }

// BOS is the id that begins a sequence. ok is false when there is none.
func (t *Tokenizer) BOS() (id int32, ok bool) { return 0, false }

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int { return 0 }

// Message is one turn of a chat, as the template sees it.
type Message struct {
	Role    string
	Content string
	// Extra holds further keys of the message (name, tool_calls…), visible to the template.
	Extra map[string]any
}

// ApplyChatTemplate renders the conversation as the prompt that the model was trained on. With addGenerationPrompt the
// header of the assistant's turn follows. extra are further variables of the template (tools, documents…). An error of
// the template names its line. The result already holds the special tokens: encode it with addSpecial false.
func (t *Tokenizer) ApplyChatTemplate(messages []Message, addGenerationPrompt bool, extra map[string]any) (string, error) {
	return "", errors.New("apply chat template")
}

// Stream decodes incrementally: the concatenation of all its results is Decode of all ids. It belongs to one goroutine.
type Stream struct{}

// NewStream gives a decoder of one sequence.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream { return &Stream{} }

// Push takes the next ids and gives the text that is certain now. It never gives half a rune.
func (s *Stream) Push(ids ...int32) string { return "" }

// Flush gives what Push kept back, with U+FFFD for bytes that can't become a rune any more.
func (s *Stream) Flush() string { return "" }

// Seeded says what WriteSeeded wrote: the ids for config.json.
type Seeded struct {
	VocabSize   int // ids are in [0, VocabSize)
	BOSTokenID  int32
	EOSTokenIDs []int32 // <|end_of_text|> and <|im_end|>
}

// WriteSeeded trains byte-level BPE on an embedded text and writes dir/tokenizer.json and dir/tokenizer_config.json with
// a chat template. The same vocabSize and seed give the same bytes. vocabSize is at least 260: all bytes and 4 special
// tokens.
func WriteSeeded(dir string, vocabSize int, seed uint64) (Seeded, error) {
	return Seeded{}, errors.New("write tokenizer " + dir)
}
