package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// small is a tokenizer.json of 256 bytes and some merges, worked out by hand: ids 0 to 255 are the bytes.
//
//	256 he · 257 ll · 258 hell · 259 hello · 260 " w" · 261 or · 262 " wor" · 263 é (two bytes) · 264 hel (no merge leads there)
func small(t testing.TB, change func(map[string]any)) ([]byte, map[string]any) {
	t.Helper()
	vocab := map[string]any{}
	for b := range 256 {
		vocab[toEntry([]byte{byte(b)})] = b
	}
	for i, s := range []string{"he", "ll", "hell", "hello", "Ġw", "or", "Ġwor", "Ã©", "hel"} {
		vocab[s] = 256 + i
	}
	file := map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil,
		"added_tokens": []any{
			map[string]any{"id": 300, "content": "<s>", "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false},
			map[string]any{"id": 301, "content": "<s>x", "special": false, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false},
			map[string]any{"id": 302, "content": "café", "special": false, "normalized": true, "lstrip": false, "rstrip": false, "single_word": false},
		},
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": nil,
		"decoder":        map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false,
			"vocab":  vocab,
			"merges": []any{"h e", "l l", []any{"he", "ll"}, "hell o", "Ġ w", "o r", "Ġw or", "Ã ©"},
		},
	}
	if change != nil {
		change(file)
	}
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return data, file
}

func mustParse(t testing.TB, change func(map[string]any)) *Tokenizer {
	t.Helper()
	data, _ := small(t, change)
	tok, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestEncodeGolden(t *testing.T) {
	cases := []struct {
		name, reason, text string
		change             func(map[string]any)
		want               []int32
	}{
		{name: "empty", text: ""},
		{name: "word", reason: "merges in the order of their ranks", text: "hello", want: []int32{259}},
		{name: "words", reason: "a word takes the space before it; 'l' and 'd' have no merge", text: "hello world", want: []int32{259, 262, 'l', 'd'}},
		{name: "no merge across words", reason: "a space before a word is its own word when more spaces follow", text: "he  wor", want: []int32{256, toByte(' '), 262}},
		{name: "left first", reason: "of equal ranks the leftmost pair", text: "lll", want: []int32{257, 'l'}},
		{name: "two bytes", reason: "a rune may be a token", text: "é", want: []int32{263}},
		{name: "other bytes", reason: "a rune without a token is its bytes", text: "€", want: []int32{0xe2, 0x82, 0xac}},
		{name: "special", reason: "a special token is found in the text", text: "he<s>he", want: []int32{256, 300, 256}},
		{name: "longest", reason: "of tokens that start at one place the longest", text: "<s>xy", want: []int32{301, 'y'}},
		{name: "almost special", reason: "half a token is text", text: "<s", want: []int32{'<', 's'}},
		{name: "bytes that are no UTF-8", reason: "each byte has its token", text: "\xff\xfe", want: []int32{0xff, 0xfe}},
		{name: "decomposed", reason: "without a normalizer runes stay as they are", text: "e\u0301", want: []int32{'e', 0xcc, 0x81}},
		{
			name: "NFC", reason: "the normalizer composes", text: "e\u0301 cafe\u0301",
			change: func(f map[string]any) { f["normalizer"] = map[string]any{"type": "NFC"} },
			want:   []int32{263, toByte(' '), 302},
		},
		{
			name: "ignore_merges", reason: "a word that is an entry is taken whole", text: "hel",
			change: func(f map[string]any) { f["model"].(map[string]any)["ignore_merges"] = true },
			want:   []int32{264},
		},
		{name: "merges lead elsewhere", reason: "an entry without merges is not reached", text: "hel", want: []int32{256, 'l'}},
		{
			name: "prefix space", reason: "each part begins with a space", text: "wor<s>wor",
			change: func(f map[string]any) { f["pre_tokenizer"].(map[string]any)["add_prefix_space"] = true },
			want:   []int32{262, 300, 262},
		},
		{
			name: "split", reason: "a Split step before ByteLevel: single digits apart", text: "or11he",
			change: func(f map[string]any) {
				f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
					map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `\d`}, "behavior": "Isolated", "invert": false},
					map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
				}}
			},
			want: []int32{261, '1', '1', 256},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tok := mustParse(t, c.change)
			if diff := cmp.Diff(c.want, append([]int32(nil), tok.Encode(c.text, true)...)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func toByte(c byte) int32 { return int32(c) }

// The patterns of the common model families cut these texts so.
func TestSplitPatterns(t *testing.T) {
	const qwen = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	cases := []struct {
		name, pattern, text, want string
	}{
		{"gpt-2", gpt2Pattern, "I'll pay  $123.50!\n\nOK", "I|'ll| pay| | $|123|.|50|!|\n|\n|OK"},
		{"gpt-2, capitals", gpt2Pattern, "WE'LL", "WE|'|LL"},
		{"llama-3", seededPattern, "WE'LL pay  $12345!\n\n  OK", "WE|'LL| pay| | $|123|45|!\n\n| | OK"},
		{"llama-3, letters take one sign", seededPattern, "(ab) día東京", "(ab|)| día東京"},
		{"qwen", qwen, "x=12\tif", "x|=|1|2|\tif"},
		{"trailing space", seededPattern, "a  ", "a|  "},
		{"invalid bytes", seededPattern, "a\xff\xffb c", "a|\xff\xff|b| c"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, err := newPatternSplitter(c.pattern, false)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if err := s.split(c.text, func(p string) { got = append(got, p) }); err != nil {
				t.Fatal(err)
			}
			if strings.Join(got, "") != c.text {
				t.Errorf("pieces %q do not make the text", got)
			}
			if diff := cmp.Diff(c.want, strings.Join(got, "|")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseErrorsNameTheField(t *testing.T) {
	model := func(f map[string]any) map[string]any { return f["model"].(map[string]any) }
	added := func(f map[string]any) map[string]any { return f["added_tokens"].([]any)[0].(map[string]any) }
	cases := []struct {
		name   string
		change func(map[string]any)
		want   string
	}{
		{"truncation", func(f map[string]any) { f["truncation"] = map[string]any{"max_length": 3} }, "truncation: prompts are never cut; set it to null"},
		{"padding", func(f map[string]any) { f["padding"] = map[string]any{} }, "padding: prompts are never padded; set it to null"},
		{"model", func(f map[string]any) { model(f)["type"] = "Unigram" }, `model.type: "Unigram" is not supported, only BPE`},
		{"prefix", func(f map[string]any) { model(f)["continuing_subword_prefix"] = "##" }, `model.continuing_subword_prefix: "##" is not supported, only null`},
		{"suffix", func(f map[string]any) { model(f)["end_of_word_suffix"] = "</w>" }, `model.end_of_word_suffix: "</w>" is not supported, only null`},
		{"byte fallback", func(f map[string]any) { model(f)["byte_fallback"] = true }, "model.byte_fallback: true is not supported: only byte-level vocabularies are"},
		{"dropout", func(f map[string]any) { model(f)["dropout"] = 0.5 }, "model.dropout: must be null or 0"},
		{"no vocabulary", func(f map[string]any) { model(f)["vocab"] = map[string]any{} }, "model.vocab: is missing"},
		{"negative id", func(f map[string]any) { model(f)["vocab"].(map[string]any)["zz"] = -1 }, `model.vocab["zz"]: id -1 is not in [0, 16777216)`},
		{"huge id", func(f map[string]any) { added(f)["id"] = 1 << 30 }, "added_tokens[0].id: id 1073741824 is not in [0, 16777216)"},
		{"missing byte", func(f map[string]any) { delete(model(f)["vocab"].(map[string]any), "A") }, `model.vocab: lacks an entry for byte 0x41, 'A': it is not byte-level`},
		{"merge", func(f map[string]any) { model(f)["merges"] = []any{"h e", "he"} }, `model.merges[1]: "he" is not two entries with one space between`},
		{"merge list", func(f map[string]any) { model(f)["merges"] = []any{[]any{"h"}} }, "model.merges[0]: is neither a string nor a list of two strings"},
		{"merge of nothing", func(f map[string]any) { model(f)["merges"] = []any{"h q"} }, `model.merges[0]: "hq" is not in model.vocab`},
		{"normalizer", func(f map[string]any) { f["normalizer"] = map[string]any{"type": "Lowercase"} }, `normalizer: type "Lowercase" is not supported, only NFC and null`},
		{"pre_tokenizer", func(f map[string]any) { f["pre_tokenizer"] = nil }, "pre_tokenizer: is missing; ByteLevel is needed"},
		{"pre_tokenizer type", func(f map[string]any) { f["pre_tokenizer"] = map[string]any{"type": "Metaspace"} }, `pre_tokenizer.type: "Metaspace" is not supported here: only Split steps and ByteLevel at the end are`},
		{"behavior", func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
				map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "a"}, "behavior": "MergedWithNext"}, map[string]any{"type": "ByteLevel"},
			}}
		}, `pre_tokenizer.pretokenizers[0].behavior: "MergedWithNext" with invert false is not supported, only Isolated, or Removed with invert true`},
		{"decoder", func(f map[string]any) { f["decoder"] = nil }, "decoder: null is not supported, only ByteLevel"},
		{"post_processor", func(f map[string]any) { f["post_processor"] = map[string]any{"type": "BertProcessing"} }, `post_processor.type: "BertProcessing" is not supported, only TemplateProcessing and ByteLevel`},
		{"template token", func(f map[string]any) {
			f["post_processor"] = map[string]any{"type": "TemplateProcessing", "single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<x>"}}}}
		}, `post_processor.single[0]: "<x>" is not in post_processor.special_tokens`},
		{"lstrip", func(f map[string]any) { added(f)["lstrip"] = true }, `added_tokens[0].lstrip: true is not supported ("<s>")`},
		{"empty token", func(f map[string]any) { added(f)["content"] = "" }, "added_tokens[0].content: is empty"},
		{"unknown field", func(f map[string]any) { model(f)["magic"] = 1 }, `json: unknown field "magic"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			data, _ := small(t, c.change)
			_, err := parse(data)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestPostProcessor(t *testing.T) {
	tok := mustParse(t, func(f map[string]any) {
		f["post_processor"] = map[string]any{"type": "Sequence", "processors": []any{
			map[string]any{"type": "ByteLevel", "trim_offsets": false},
			map[string]any{
				"type":   "TemplateProcessing",
				"single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<s>", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}, map[string]any{"SpecialToken": map[string]any{"id": "end", "type_id": 0}}},
				"pair":   []any{},
				"special_tokens": map[string]any{
					"<s>": map[string]any{"id": "<s>", "ids": []any{300}, "tokens": []any{"<s>"}},
					"end": map[string]any{"id": "end", "ids": []any{301, 302}, "tokens": []any{"a", "b"}},
				},
			},
		}}
	})
	if diff := cmp.Diff([]int32{300, 256, 301, 302}, tok.Encode("he", true)); diff != "" {
		t.Errorf("with special tokens (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int32{256}, tok.Encode("he", false)); diff != "" {
		t.Errorf("without (-want +got):\n%s", diff)
	}
}

func TestDecode(t *testing.T) {
	tok := mustParse(t, nil)
	cases := []struct {
		name, reason string
		ids          []int32
		skip         bool
		want         string
	}{
		{"words", "", []int32{259, 262, 'l', 'd'}, false, "hello world"},
		{"special", "kept when asked for", []int32{256, 300, 256}, false, "he<s>he"},
		{"special, skipped", "and the ones that aren't special stay", []int32{256, 300, 301}, true, "he<s>x"},
		{"unknown", "ids that don't exist have no text", []int32{-1, 256, 299, 1 << 20}, false, "he"},
		{"invalid", "each maximal part of a rune is one U+FFFD", []int32{0xe2, 0x82, 'A', 0xff, 0xf0, 0x9f}, false, "\uFFFDA\uFFFD\uFFFD"},
		{"joined", "a rune over three ids", []int32{0xe2, 0x82, 0xac}, false, "€"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, tok.Decode(c.ids, c.skip)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestStreamGivesWholeRunes(t *testing.T) {
	s := mustParse(t, nil).NewStream(false)
	var got []string
	for _, id := range []int32{256, 0xe2, 0x82, 0xac, 0xe2, 'x', 0xf0, 0x9f} {
		got = append(got, s.Push(id))
	}
	got = append(got, s.Flush(), s.Flush(), s.Push(256))
	want := []string{"he", "", "", "€", "", "\uFFFDx", "", "", "\uFFFD", "", "he"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// naive merges a word as the definition says: the pair of lowest rank, leftmost, again and again.
func naive(b *bpe, word string) []int32 {
	var ids []int32
	for i := range len(word) {
		ids = append(ids, b.byteID[word[i]])
	}
	for {
		best, at := merge{rank: 1 << 30}, -1
		for i := range len(ids) - 1 {
			if m, ok := b.merges[pair{ids[i], ids[i+1]}]; ok && m.rank < best.rank {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = append(append(append([]int32(nil), ids[:at]...), best.id), ids[at+2:]...)
	}
}

func seededTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	dir := t.TempDir()
	if _, err := WriteSeeded(dir, 3000, 5); err != nil {
		t.Fatal(err)
	}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestMergeEqualsNaive(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	tok := seededTokenizer(t)
	for range 3000 {
		var word strings.Builder
		for range 1 + rng.IntN(12) {
			if rng.IntN(2) == 0 { // pieces of the vocabulary make deep merges
				word.WriteString(tok.pieces[rng.IntN(len(tok.pieces))])
				continue
			}
			word.WriteByte("etaoin shrdlu"[rng.IntN(13)])
		}
		got := tok.bpe.merge(nil, word.String())
		if diff := cmp.Diff(naive(&tok.bpe, word.String()), got); diff != "" {
			t.Fatalf("%q (-naive +heap):\n%s", word.String(), diff)
		}
	}
}

// A word of a megabyte ends soon: merging is not quadratic.
func TestLongWord(t *testing.T) {
	tok := seededTokenizer(t)
	text := strings.Repeat("the", 1<<18)
	if got := tok.Decode(tok.Encode(text, false), false); got != text {
		t.Error("the text came back changed")
	}
}

func FuzzRoundTrip(f *testing.F) {
	tok := seededTokenizer(f)
	for _, s := range []string{"", " ", "hello world", "día 東京 🙂\r\n\t x", "<|im_start|>user\n<|im_e", "\u0301", strings.Repeat("a ", 100), "e\u0301"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ids := tok.Encode(s, false)
		got := tok.Decode(ids, false)
		if utf8.ValidString(s) && got != s {
			t.Fatalf("%q came back as %q by way of %v", s, got, ids)
		}
		if !utf8.ValidString(got) {
			t.Fatalf("%q decodes to invalid UTF-8 %q", s, got)
		}
		stream := tok.NewStream(false)
		var b strings.Builder
		for _, id := range ids {
			piece := stream.Push(id)
			if !utf8.ValidString(piece) {
				t.Fatalf("the stream gave half a rune: %q", piece)
			}
			b.WriteString(piece)
		}
		b.WriteString(stream.Flush())
		if b.String() != got {
			t.Fatalf("stream %q, whole %q", b.String(), got)
		}
	})
}

// Any ids, in any portions: the stream gives what Decode gives.
func TestStreamEqualsDecode(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	tok := seededTokenizer(t)
	for range 2000 {
		ids := make([]int32, rng.IntN(40))
		for i := range ids {
			ids[i] = rng.Int32N(int32(tok.VocabSize()) + 5)
			if rng.IntN(2) == 0 {
				ids[i] = 0x80 + rng.Int32N(0x80) // bytes beyond ASCII
			}
		}
		skip := rng.IntN(2) == 0
		s := tok.NewStream(skip)
		var got strings.Builder
		for rest := ids; len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			got.WriteString(s.Push(rest[:n]...))
			rest = rest[n:]
		}
		got.WriteString(s.Flush())
		if diff := cmp.Diff(tok.Decode(ids, skip), got.String()); diff != "" {
			t.Fatalf("%v (-whole +stream):\n%s", ids, diff)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := seededTokenizer(t)
	want := seededTokenizer(t).Encode(corpus, true)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if diff := cmp.Diff(want, tok.Encode(corpus, true)); diff != "" {
				t.Errorf("-alone +together:\n%s", diff)
			}
			if _, err := tok.ApplyChatTemplate([]Message{{Role: "user", Content: "x"}}, true, nil, maxChatBytes); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A full cache is emptied, and gives the same.
func TestCacheIsBounded(t *testing.T) {
	var c wordCache
	for i := range 3*maxCachedWords + 5 {
		c.put(strconv.Itoa(i), []int32{int32(i)})
	}
	if n := len(c.words); n != 5 {
		t.Errorf("%d words are cached", n)
	}
	c.put(strings.Repeat("x", maxCachedWordBytes+1), nil)
	if _, ok := c.get(strings.Repeat("x", maxCachedWordBytes+1)); ok {
		t.Error("a long word is cached")
	}
}

func FuzzParse(f *testing.F) {
	data, _ := small(f, nil)
	f.Add(data)
	f.Add([]byte(`{"model":{"vocab":{"a":1}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := parse(data)
		if err == nil {
			tok.Decode(tok.Encode("a b", true), false)
		}
	})
}

func TestLoadErrors(t *testing.T) {
	write := func(files map[string]string) string {
		dir := t.TempDir()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	good, _ := small(t, nil)
	cases := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"no file", nil, "tokenizer.json: no such file or directory"},
		{"no JSON", map[string]string{"tokenizer.json": "{"}, "tokenizer.json: unexpected EOF"},
		{"token not there", map[string]string{"tokenizer.json": string(good), "tokenizer_config.json": `{"eos_token":"<e>"}`}, `tokenizer_config.json: eos_token: "<e>" is not in tokenizer.json`},
		{"token object", map[string]string{"tokenizer.json": string(good), "tokenizer_config.json": `{"bos_token":7}`}, "must be a string, null or an object with content"},
		{"template", map[string]string{"tokenizer.json": string(good), "tokenizer_config.json": `{"chat_template":"a\n{% if"}`}, "tokenizer_config.json: chat template, line 2: "},
		{"no default template", map[string]string{"tokenizer.json": string(good), "tokenizer_config.json": `{"chat_template":[{"name":"rag","template":""}]}`}, `tokenizer_config.json: chat_template: has no template named "default"`},
		{"own file", map[string]string{"tokenizer.json": string(good), "chat_template.jinja": "{{"}, "chat_template.jinja: chat template"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(write(c.files))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	tok := seededTokenizer(b)
	b.SetBytes(int64(len(corpus)))
	for b.Loop() {
		tok.Encode(corpus, false)
	}
}
