package grammar

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// runes is a set of code points as sorted, disjoint ranges [lo, hi]. Surrogates are never in a text, so they are cut out
// where the set becomes bytes.
type runes []runeRange

type runeRange struct{ lo, hi rune }

// pairs makes a set of the pairs that regexp/syntax gives.
func pairs(p []rune) runes {
	set := make(runes, 0, len(p)/2)
	for i := 0; i+1 < len(p); i += 2 {
		set = append(set, runeRange{p[i], p[i+1]})
	}
	return set.normal()
}

// normal sorts and joins.
func (s runes) normal() runes {
	s = slices.Clone(s)
	slices.SortFunc(s, func(a, b runeRange) int { return int(a.lo) - int(b.lo) })
	var out runes
	for _, r := range s {
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
			continue
		}
		out = append(out, r)
	}
	return out
}

// without gives the set less the range [lo, hi].
func (s runes) without(lo, hi rune) runes {
	var out runes
	for _, r := range s {
		if r.lo < lo {
			out = append(out, runeRange{r.lo, min(r.hi, lo-1)})
		}
		if r.hi > hi {
			out = append(out, runeRange{max(r.lo, hi+1), r.hi})
		}
	}
	return out
}

func (s runes) has(r rune) bool {
	return slices.ContainsFunc(s, func(x runeRange) bool { return x.lo <= r && r <= x.hi })
}

// byteRange is one byte of an encoding, [lo, hi].
type byteRange struct{ lo, hi byte }

// encodings gives the UTF-8 of the set as sequences of byte ranges: a text is the encoding of a member exactly when it is
// in one of the sequences.
func (s runes) encodings() [][]byteRange {
	var out [][]byteRange
	for _, r := range s.without(0xd800, 0xdfff) {
		out = appendEncodings(out, r.lo, min(r.hi, utf8.MaxRune))
	}
	return out
}

// appendEncodings splits [lo, hi] until each part has the same length and its continuation bytes are independent.
func appendEncodings(out [][]byteRange, lo, hi rune) [][]byteRange {
	if lo > hi {
		return out
	}
	for _, limit := range []rune{0x7f, 0x7ff, 0xffff} {
		if lo <= limit && limit < hi {
			return appendEncodings(appendEncodings(out, lo, limit), limit+1, hi)
		}
	}
	for bits := 6; bits < 24; bits += 6 {
		low := rune(1)<<bits - 1 // the bits of the last continuation bytes
		if lo>>bits == hi>>bits || utf8.RuneLen(hi)*6-6 < bits {
			continue
		}
		if lo&low != 0 {
			return appendEncodings(appendEncodings(out, lo, lo|low), lo|low+1, hi)
		}
		if hi&low != low {
			return appendEncodings(appendEncodings(out, lo, hi&^low-1), hi&^low, hi)
		}
	}
	var from, to [utf8.UTFMax]byte
	n := utf8.EncodeRune(from[:], lo)
	utf8.EncodeRune(to[:], hi)
	sequence := make([]byteRange, n)
	for i := range sequence {
		sequence[i] = byteRange{from[i], to[i]}
	}
	return append(out, sequence)
}

// largeClass is from how many sequences on a class is a rule of its own, written once however often it is used.
const largeClass = 24

// class adds the set as one code point in UTF-8. An empty set leads nowhere.
func (b *builder) class(from int32, set runes, to int32) {
	sequences := set.encodings()
	if len(sequences) < largeClass {
		b.sequences(from, sequences, to)
		return
	}
	key := fmt.Sprint(set)
	rule, ok := b.classRules[key]
	if !ok {
		rule = b.rule()
		b.classRules[key] = rule
		b.sequences(b.start[rule], sequences, b.end[rule])
	}
	b.call(from, rule, to)
}

// sequences adds an alternative of byte sequences, sharing endings.
func (b *builder) sequences(from int32, all [][]byteRange, to int32) {
	shared := map[string]int32{"": to}
	var add func(from int32, all [][]byteRange)
	add = func(from int32, all [][]byteRange) {
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n][0] == all[0][0] {
				n++
			}
			rest := make([][]byteRange, n)
			var key strings.Builder
			for i := range rest {
				rest[i] = all[i][1:]
				for _, r := range rest[i] {
					key.Write([]byte{r.lo, r.hi})
				}
				if n > 1 {
					key.WriteByte('|')
				}
			}
			next, ok := shared[key.String()]
			if !ok {
				next = b.node()
				shared[key.String()] = next
				add(next, rest)
			}
			b.edge(from, all[0][0].lo, all[0][0].hi, next)
			all = all[n:]
		}
	}
	add(from, all)
}
