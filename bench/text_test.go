package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPromptsOfIDs(t *testing.T) {
	load := busyLoad()
	w := Writer{FromID: 100, ToID: 4000}
	prefixes := map[int][]int32{}
	for _, r := range Plan(load, 0, 200) {
		p := w.Prompt(load.Seed, r)
		if len(p.IDs) != r.InputTokens || p.Text != "" {
			t.Fatalf("request %d: %d ids and text %q, want %d ids", r.Index, len(p.IDs), p.Text, r.InputTokens)
		}
		for _, id := range p.IDs {
			if id < 100 || id >= 4000 {
				t.Fatalf("request %d: id %d", r.Index, id)
			}
		}
		prefix := p.IDs[:r.PrefixTokens]
		if known := prefixes[r.Group]; len(known) > len(prefix) {
			known = known[:len(prefix)]
			if !slices.Equal(known, prefix) {
				t.Fatalf("request %d: another prefix than its group %d", r.Index, r.Group)
			}
		} else {
			if !slices.Equal(known, prefix[:len(known)]) {
				t.Fatalf("request %d: another prefix than its group %d", r.Index, r.Group)
			}
			prefixes[r.Group] = prefix
		}
		if diff := cmp.Diff(p, w.Prompt(load.Seed, r)); diff != "" {
			t.Fatalf("request %d has two prompts:\n%s", r.Index, diff)
		}
	}
	for a, one := range prefixes {
		for b, two := range prefixes {
			if a != b && slices.Equal(one[:8], two[:8]) {
				t.Errorf("groups %d and %d begin alike", a, b)
			}
		}
	}
}

func TestPromptsOfWords(t *testing.T) {
	tests := []struct {
		name, reason   string
		w              Writer
		r              Request
		words, shared  int
		otherIsAnother bool
	}{
		{name: "plain", reason: "a word for a token", r: Request{InputTokens: 12, Corpus: -1}, words: 12, otherIsAnother: true},
		{name: "calibrated", reason: "overhead comes off first", w: Writer{TokensPerWord: 2, Overhead: 4}, r: Request{InputTokens: 24, Corpus: -1}, words: 10, otherIsAnother: true},
		{name: "shared", reason: "half of the words are the group's", w: Writer{TokensPerWord: 2}, r: Request{InputTokens: 40, PrefixTokens: 20, Corpus: -1}, words: 20, shared: 10, otherIsAnother: true},
		{name: "all shared", reason: "a ratio of 1 leaves nothing of its own", r: Request{InputTokens: 9, PrefixTokens: 9, Corpus: -1}, words: 9, shared: 9},
		{name: "small", reason: "a prompt has a word at least", w: Writer{TokensPerWord: 5, Overhead: 30}, r: Request{InputTokens: 8, Corpus: -1}, words: 1, otherIsAnother: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			other := tt.r
			other.Index, other.Seed = 1, 77
			one, two := strings.Fields(tt.w.Prompt(9, tt.r).Text), strings.Fields(tt.w.Prompt(9, other).Text)
			if len(one) != tt.words || len(two) != tt.words {
				t.Fatalf("%s: %d and %d words, want %d", tt.reason, len(one), len(two), tt.words)
			}
			if !slices.Equal(one[:tt.shared], two[:tt.shared]) {
				t.Errorf("%s: the shared words differ", tt.reason)
			}
			if another := !slices.Equal(one, two); another != tt.otherIsAnother {
				t.Errorf("%s: another prompt: %v", tt.reason, another)
			}
		})
	}
}

func TestVocabulary(t *testing.T) {
	sorted := slices.Clone(vocabulary)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(vocabulary) {
		t.Error("a word is there twice")
	}
}

func TestReadPrompts(t *testing.T) {
	got, err := ReadPrompts(strings.NewReader(`{"prompt": "Hello", "output_tokens": 3}

{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "id": 5}
{"input_ids": [1, 2]}
`))
	want := []Prompt{
		{Text: "Hello", OutputTokens: 3},
		{Messages: []byte(`[{"role": "user", "content": "Hi"}]`), OutputTokens: 4},
		{IDs: []int32{1, 2}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	again := slices.Clone(got)
	Shuffle(again, 1)
	third := slices.Clone(got)
	Shuffle(third, 1)
	if diff := cmp.Diff(again, third); diff != "" {
		t.Errorf("the same seed gives another order:\n%s", diff)
	}
	for text, want := range map[string]string{
		"":                               "no prompts",
		`{"prompt": "a"}` + "\n" + `{`:   "line 2",
		`{"text": "a"}`:                  "give one of prompt",
		`{"prompt":"a","input_ids":[1]}`: "give one of prompt",
		`{"prompt":"a","max_tokens":-1}`: "output_tokens is -1",
	} {
		if _, err := ReadPrompts(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

func FuzzReadPrompts(f *testing.F) {
	f.Add(`{"prompt": "Hello"}`)
	f.Add(`{"messages": [1], "max_tokens": 2}`)
	f.Fuzz(func(t *testing.T, text string) {
		prompts, err := ReadPrompts(strings.NewReader(text))
		if (err == nil) != (len(prompts) > 0) {
			t.Errorf("%d prompts and error %v", len(prompts), err)
		}
		chat := Target{API: Chat}
		for _, p := range prompts {
			if chat.Accepts(p) != nil {
				continue
			}
			if _, err := chat.body(Request{}, p); err != nil {
				t.Errorf("body of %+v: %v", p, err)
			}
		}
	})
}
