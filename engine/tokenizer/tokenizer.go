package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer encodes and decodes text. It is immutable and safe for concurrent use.
type Tokenizer struct {
	pieces  []string         // [vocabSize] bytes of each id; "" for ids that don't exist
	special []bool           // [vocabSize]
	known   []bool           // [vocabSize] ids that have an entry
	ids     map[string]int32 // entries as written in the file, added tokens by content
	bytes   map[string]int32 // byte-level entries by their bytes

	addedRaw        matcher // found before normalisation
	addedNormalized matcher // found after it
	nfc             bool
	splitters       []splitter
	bpe             bpe
	prefix, suffix  []int32 // around a sequence

	bos, eos string // texts of the tokens, "" when there is none
	chat     *chatTemplate
}

// Load reads dir/tokenizer.json and, where they exist, dir/tokenizer_config.json and dir/chat_template.jinja. An error
// names the file and the field.
func Load(dir string) (*Tokenizer, error) {
	path := filepath.Join(dir, "tokenizer.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer %s: %w", path, err)
	}
	if err := t.loadConfig(dir); err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	return t, nil
}

// configFile is tokenizer_config.json as far as it is used.
type configFile struct {
	BOSToken     tokenText       `json:"bos_token"`
	EOSToken     tokenText       `json:"eos_token"`
	ChatTemplate json.RawMessage `json:"chat_template"`
}

// tokenText is a token written as a string, as {"content": "…"} or as null.
type tokenText string

func (s *tokenText) UnmarshalJSON(data []byte) error {
	var text *string
	if json.Unmarshal(data, &text) == nil {
		if text != nil {
			*s = tokenText(*text)
		}
		return nil
	}
	var object struct {
		Content *string `json:"content"`
	}
	if err := json.Unmarshal(data, &object); err != nil || object.Content == nil {
		return errors.New("must be a string, null or an object with content")
	}
	*s = tokenText(*object.Content)
	return nil
}

func (t *Tokenizer) loadConfig(dir string) error {
	source := defaultChatTemplate
	path := filepath.Join(dir, "tokenizer_config.json")
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		var c configFile
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		t.bos, t.eos = string(c.BOSToken), string(c.EOSToken)
		for _, token := range []struct{ field, text string }{{"bos_token", t.bos}, {"eos_token", t.eos}} {
			if _, ok := t.ids[token.text]; token.text != "" && !ok {
				return fmt.Errorf("%s: %s: %q is not in tokenizer.json", path, token.field, token.text)
			}
		}
		template, ok, err := pickTemplate(c.ChatTemplate)
		if err != nil {
			return fmt.Errorf("%s: chat_template: %w", path, err)
		}
		if ok {
			source = template
		}
	}
	own := filepath.Join(dir, "chat_template.jinja")
	data, err = os.ReadFile(own)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		source, path = string(data), own
	}
	t.chat, err = parseChatTemplate(source)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// pickTemplate reads chat_template: a string, or a list of named ones, of which "default" is taken. ok is false when
// there is none.
func pickTemplate(raw json.RawMessage) (source string, ok bool, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", false, nil
	}
	if json.Unmarshal(raw, &source) == nil {
		return source, true, nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return "", false, errors.New("is neither a string nor a list of named templates")
	}
	for _, n := range named {
		if n.Name == "default" {
			return n.Template, true, nil
		}
	}
	return "", false, errors.New(`has no template named "default"`)
}

// Encode gives the token ids of text. Special tokens in the text are recognised. With addSpecial the ids that the
// tokenizer puts around a sequence (BOS) are added.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	ids := make([]int32, 0, len(text)/3+len(t.prefix)+len(t.suffix))
	if addSpecial {
		ids = append(ids, t.prefix...)
	}
	token := func(id int32) { ids = append(ids, id) }
	word := func(piece string) { ids = t.bpe.appendWord(ids, piece) }
	t.addedRaw.split(text, func(part string) {
		if t.nfc {
			part = norm.NFC.String(part)
		}
		t.addedNormalized.split(part, func(part string) {
			if err := splitAll(t.splitters, part, word); err != nil {
				// The matcher has no time limit, so only a fault of its own ends here; the bytes are still text.
				panic(fmt.Sprintf("tokenizer: %v", err))
			}
		}, token)
	}, token)
	if addSpecial {
		ids = append(ids, t.suffix...)
	}
	return ids
}

// Decode gives the text of ids; each part that is not valid UTF-8 becomes U+FFFD. With skipSpecial special tokens have no
// text. Ids that don't exist have no text.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	raw := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		raw = append(raw, t.piece(id, skipSpecial)...)
	}
	text, rest := appendText(make([]byte, 0, len(raw)), raw)
	if len(rest) > 0 {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	return string(text)
}

// Piece gives the bytes that a token stands for, which need not be whole runes; a special token's are its name. Ids that
// don't exist have none.
func (t *Tokenizer) Piece(id int32) string { return t.piece(id, false) }

// Text gives the bytes that a token adds to an answer: none for a special one.
func (t *Tokenizer) Text(id int32) string { return t.piece(id, true) }

// piece gives the bytes of an id.
func (t *Tokenizer) piece(id int32, skipSpecial bool) string {
	if id < 0 || int(id) >= len(t.pieces) || skipSpecial && t.special[id] {
		return ""
	}
	return t.pieces[id]
}

// EOS lists the ids that end a sequence, as far as tokenizer_config.json says; may be empty.
func (t *Tokenizer) EOS() []int32 {
	if id, ok := t.ids[t.eos]; ok && t.eos != "" {
		return []int32{id}
	}
	return nil
}

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int { return len(t.pieces) }
