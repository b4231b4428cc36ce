package tokenizer_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	. "github.com/sluice-dev/sluice/engine/tokenizer"
)

// seeded gives a loaded seeded tokenizer.
func seeded(t testing.TB, vocabSize int, seed uint64) (*Tokenizer, Seeded) {
	t.Helper()
	dir := t.TempDir()
	s, err := WriteSeeded(dir, vocabSize, seed)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok, s
}

func TestSeeded(t *testing.T) {
	for _, vocabSize := range []int{MinSeededVocab, 512, 2048, 8192} {
		tok, s := seeded(t, vocabSize, 7)
		want := Seeded{VocabSize: vocabSize, BOSTokenID: int32(vocabSize - 4), EOSTokenIDs: []int32{int32(vocabSize - 3), int32(vocabSize - 1)}}
		if diff := cmp.Diff(want, s); diff != "" {
			t.Errorf("size %d (-want +got):\n%s", vocabSize, diff)
		}
		if tok.VocabSize() != vocabSize {
			t.Errorf("size %d loads as %d", vocabSize, tok.VocabSize())
		}
		for id := range int32(vocabSize) {
			if tok.Decode([]int32{id}, false) == "" {
				t.Fatalf("size %d: id %d has no text", vocabSize, id)
			}
		}
		for text, id := range map[string]int32{BeginOfText: s.BOSTokenID, EndOfText: s.EOSTokenIDs[0], IMEnd: s.EOSTokenIDs[1]} {
			if diff := cmp.Diff([]int32{id}, tok.Encode(text, false)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", text, diff)
			}
		}
		if diff := cmp.Diff(s.EOSTokenIDs[:1], tok.EOS()); diff != "" {
			t.Errorf("EOS (-want +got):\n%s", diff)
		}
		if got := tok.Encode("a", true); len(got) != 2 || got[0] != s.BOSTokenID {
			t.Errorf("Encode with special tokens gives %v", got)
		}
	}
	small, _ := seeded(t, 512, 7)
	large, _ := seeded(t, 2048, 7)
	text := "The woman in the yellow coat counts the cups."
	if s, l := len(small.Encode(text, false)), len(large.Encode(text, false)); l >= s || s >= len(text) {
		t.Errorf("%d bytes are %d tokens of 512 and %d of 2048: nothing was learnt", len(text), s, l)
	}
}

func TestSeededIsDeterministic(t *testing.T) {
	read := func(seed uint64) [2]string {
		dir := t.TempDir()
		if _, err := WriteSeeded(dir, 1500, seed); err != nil {
			t.Fatal(err)
		}
		var out [2]string
		for i, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			out[i] = string(data)
		}
		return out
	}
	first, again, other := read(1), read(1), read(2)
	if first != again {
		t.Error("the same seed gave other files")
	}
	if first[0] == other[0] {
		t.Error("another seed gave the same vocabulary")
	}
}

func TestSeededRefusesSizes(t *testing.T) {
	for _, size := range []int{-1, 0, MinSeededVocab - 1, 1<<20 + 1} {
		if _, err := WriteSeeded(t.TempDir(), size, 1); err == nil {
			t.Errorf("size %d is accepted", size)
		}
	}
}

func BenchmarkWriteSeeded(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, err := WriteSeeded(dir, 4096, 1); err != nil {
			b.Fatal(err)
		}
	}
}
