package tokenizer

import "unicode/utf8"

// Stream decodes incrementally: the concatenation of all its results is Decode of all ids. It belongs to one goroutine.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	pending     []byte // the beginning of a rune, at most 3 bytes
}

// NewStream gives a decoder of one sequence.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	return &Stream{t: t, skipSpecial: skipSpecial}
}

// Push takes the next ids and gives the text that is certain now. It never gives half a rune.
func (s *Stream) Push(ids ...int32) string {
	raw := s.pending
	for _, id := range ids {
		raw = append(raw, s.t.piece(id, s.skipSpecial)...)
	}
	text, rest := appendText(nil, raw)
	s.pending = append([]byte(nil), rest...)
	return string(text)
}

// Pending gives the bytes that Push keeps back: the beginning of a rune, or none.
func (s *Stream) Pending() []byte { return s.pending }

// Flush gives what Push kept back, with U+FFFD for bytes that can't become a rune any more. The stream can go on after.
func (s *Stream) Flush() string {
	if len(s.pending) == 0 {
		return ""
	}
	s.pending = nil
	return string(utf8.RuneError)
}

// appendText appends the runes of raw to dst, with one U+FFFD for each maximal part of a rune that is not valid, and gives
// the rest that may yet be the beginning of a rune.
func appendText(dst, raw []byte) (text, rest []byte) {
	for len(raw) > 0 {
		if raw[0] < utf8.RuneSelf {
			dst = append(dst, raw[0])
			raw = raw[1:]
			continue
		}
		if !utf8.FullRune(raw) {
			return dst, raw
		}
		r, n := utf8.DecodeRune(raw)
		if r == utf8.RuneError && n == 1 {
			for n = min(3, len(raw)); n > 1 && utf8.FullRune(raw[:n]); n-- {
			}
		}
		dst = utf8.AppendRune(dst, r)
		raw = raw[n:]
	}
	return dst, nil
}
