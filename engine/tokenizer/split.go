package tokenizer

import (
	"fmt"
	"strings"

	"github.com/dlclark/regexp2"
)

// gpt2Pattern is what ByteLevel with use_regex splits by: contractions, words, numbers and other runs, each with one space
// before it, and white space that no word follows.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// splitter cuts a piece of text into smaller ones. The pieces it emits concatenate to the text, except those that drop.
type splitter interface {
	split(text string, emit func(piece string)) error
}

// patternSplitter makes each match of a pattern, and each part between matches, a piece.
type patternSplitter struct {
	re *regexp2.Regexp
	// matchesOnly drops the parts between matches.
	matchesOnly bool
}

func newPatternSplitter(pattern string, matchesOnly bool) (*patternSplitter, error) {
	re, err := regexp2.Compile(pattern, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	return &patternSplitter{re: re, matchesOnly: matchesOnly}, nil
}

func (p *patternSplitter) split(text string, emit func(string)) error {
	runes := make([]rune, 0, len(text))
	for _, r := range text {
		runes = append(runes, r)
	}
	// The matcher counts runes. Walk the text beside it, so that invalid bytes, one rune each, keep their bytes.
	at, atRune := 0, 0
	advance := func(toRune int) int {
		for i := range text[at:] {
			if atRune == toRune {
				return at + i
			}
			atRune++
		}
		return len(text)
	}
	m, err := p.re.FindRunesMatch(runes)
	for ; err == nil && m != nil; m, err = p.re.FindNextMatch(m) {
		if m.Length == 0 {
			continue
		}
		if start := advance(m.Index); start > at {
			if !p.matchesOnly {
				emit(text[at:start])
			}
			at = start
		}
		end := advance(m.Index + m.Length)
		emit(text[at:end])
		at = end
	}
	if err != nil {
		return fmt.Errorf("split text: %w", err)
	}
	if at < len(text) && !p.matchesOnly {
		emit(text[at:])
	}
	return nil
}

// prefixSpacer puts a space before a piece that has none.
type prefixSpacer struct{}

func (prefixSpacer) split(text string, emit func(string)) error {
	if !strings.HasPrefix(text, " ") {
		text = " " + text
	}
	emit(text)
	return nil
}

// splitAll runs the splitters one after the other.
func splitAll(splitters []splitter, text string, emit func(string)) error {
	if len(splitters) == 0 {
		emit(text)
		return nil
	}
	var inner error
	err := splitters[0].split(text, func(piece string) {
		if inner == nil {
			inner = splitAll(splitters[1:], piece, emit)
		}
	})
	if err != nil {
		return err
	}
	return inner
}
