package grammar

import (
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// The notions of JSON itself, each written once as a rule or where it stands.

// plain are the code points that stand for themselves in a JSON string.
func plain() runes {
	return runes{{' ', '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, utf8.MaxRune}}
}

// jsonRule gives the rule of a name, written by write the first time.
func (b *builder) jsonRule(name string, write func(from, to int32)) int32 {
	rule, ok := b.jsonRules[name]
	if !ok {
		rule = b.rule()
		b.jsonRules[name] = rule
		write(b.start[rule], b.end[rule])
	}
	return rule
}

// own adds an expression of this package's, which is right.
func (b *builder) own(from int32, source string, to int32) {
	re, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		panic(err)
	}
	w := &writer{b: b, point: b.class}
	w.regex(from, re, to)
}

// char adds one code point of a JSON string: a plain one, an escape, or a pair of escapes beyond U+FFFF. Single
// surrogates are no code points.
func (b *builder) char(from, to int32) {
	b.class(from, plain(), to)
	b.escape(from, to)
}

func (b *builder) escape(from, to int32) {
	b.own(from, `\\(["\\/bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|`+
		`[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))`, to)
}

// chars adds any number of code points of a JSON string.
func (b *builder) chars(from, to int32) {
	again := b.node()
	b.empty(from, again)
	b.char(again, again)
	b.empty(again, to)
}

// anyString adds a JSON string.
func (b *builder) anyString(from, to int32) {
	open, shut := b.node(), b.node()
	b.edge(from, '"', '"', open)
	b.chars(open, shut)
	b.edge(shut, '"', '"', to)
}

// The digits of numbers without bounds are limited, so that every number can be read as 64 bits and ends.
const (
	wholeDigits    = 18
	integerPattern = `-?(0|[1-9][0-9]{0,17})`
	numberPattern  = integerPattern + `(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?`
)

func (b *builder) anyInteger(from, to int32) {
	b.call(from, b.jsonRule("integer", func(from, to int32) { b.own(from, integerPattern, to) }), to)
}

func (b *builder) anyNumber(from, to int32) {
	b.call(from, b.jsonRule("number", func(from, to int32) { b.own(from, numberPattern, to) }), to)
}

// point adds one code point of set inside a JSON string: as itself where it may, else by its shortest escape.
func (b *builder) point(from int32, set runes, to int32) {
	itself := set
	for _, r := range []rune{'"', '\\'} {
		itself = itself.without(r, r)
	}
	b.class(from, itself.without(0, ' '-1), to)
	var escapes []string
	for r := range rune(' ') {
		if set.has(r) {
			escapes = append(escapes, escapeRune(r))
		}
	}
	for _, r := range []rune{'"', '\\'} {
		if set.has(r) {
			escapes = append(escapes, escapeRune(r))
		}
	}
	b.texts(from, escapes, to)
}

// space adds what may stand between two parts of JSON.
func (w *schemaWriter) space(from, to int32) {
	b := w.b
	rule := b.jsonRule("space", func(from, to int32) {
		space := &writer{b: b, point: b.class}
		space.addNonEmpty(from, w.whitespace, to)
	})
	if nullable(w.whitespace) {
		b.empty(from, to)
	}
	b.call(from, rule, to)
}

// anyValue adds any JSON value.
func (w *schemaWriter) anyValue(from, to int32) {
	b := w.b
	rule, ok := b.jsonRules["value"]
	if !ok {
		rule = b.rule()
		b.jsonRules["value"] = rule
		from, to := b.start[rule], b.end[rule]
		b.texts(from, []string{"null", "true", "false"}, to)
		b.anyNumber(from, to)
		b.anyString(from, to)
		w.anyArray(from, to)
		w.anyObject(from, to)
	}
	b.call(from, rule, to)
}

// anyArray adds any JSON array.
func (w *schemaWriter) anyArray(from, to int32) {
	w.b.call(from, w.b.jsonRule("array", func(from, to int32) {
		w.list(from, '[', ']', 0, -1, w.anyValue, to)
	}), to)
}

// anyObject adds any JSON object.
func (w *schemaWriter) anyObject(from, to int32) {
	w.b.call(from, w.b.jsonRule("object", func(from, to int32) {
		w.list(from, '{', '}', 0, -1, func(from, to int32) { w.pair(from, w.b.anyString, w.anyValue, to) }, to)
	}), to)
}

// pair adds a name, a colon and a value.
func (w *schemaWriter) pair(from int32, name, val func(from, to int32), to int32) {
	b := w.b
	colon, space, at := b.node(), b.node(), b.node()
	name(from, colon)
	b.edge(colon, ':', ':', space)
	w.space(space, at)
	val(at, to)
}

// list adds a bracket, between least and most parts with commas, and a bracket. most < 0 is without
// an end.
func (w *schemaWriter) list(from int32, open, shut byte, least, most int32, part func(from, to int32), to int32) {
	b := w.b
	opened, first, done, end := b.node(), b.node(), b.node(), b.node()
	b.edge(from, open, open, opened)
	w.space(opened, first)
	if least == 0 {
		b.edge(first, shut, shut, to)
	}
	w.space(done, end)
	b.edge(end, shut, shut, to)
	switch {
	case most == 0:
	case least <= 1 && most < 0:
		// A part, and after it a comma and back to before a part.
		before, comma := b.node(), b.node()
		b.empty(first, before)
		part(before, done)
		b.edge(done, ',', ',', comma)
		w.space(comma, before)
	default:
		rule, more := b.rule(), b.rule()
		part(b.start[rule], b.end[rule])
		comma, before, after := b.node(), b.node(), b.node()
		b.edge(b.start[more], ',', ',', comma)
		w.space(comma, before)
		b.call(before, rule, b.end[more])
		b.call(first, rule, after)
		b.repeat(after, more, max(least-1, 0), max(most, 0)-1, done)
	}
}

// otherName adds a JSON string that is none of names. Until it differs from all of them it has no escapes, which could
// spell one of them another way.
func (b *builder) otherName(from int32, names []string, to int32) {
	open, free, shut := b.node(), b.node(), b.node()
	b.edge(from, '"', '"', open)
	b.chars(free, shut)
	b.edge(shut, '"', '"', to)
	if len(names) == 0 {
		b.empty(open, free)
		return
	}
	b.differ(open, names, free, to)
}

// differ adds, at a common beginning of names (their rests are given), what leaves them: another code point, after which
// anything goes, or the end of the string where no name ends.
func (b *builder) differ(at int32, rests []string, free, to int32) {
	next := map[rune][]string{}
	var order []rune
	ends := false
	for _, rest := range rests {
		if rest == "" {
			ends = true
			continue
		}
		r, n := utf8.DecodeRuneInString(rest)
		if _, ok := next[r]; !ok {
			order = append(order, r)
		}
		next[r] = append(next[r], rest[n:])
	}
	other := plain()
	for _, r := range order {
		other = other.without(r, r)
		if !plain().has(r) {
			continue // comes by an escape only, and there are none here
		}
		child := b.node()
		b.text(at, string(r), child)
		b.differ(child, next[r], free, to)
	}
	b.class(at, other, free)
	if !ends {
		b.edge(at, '"', '"', to)
	}
}

// spaceOnly reports whether an expression admits nothing but JSON's white space.
func spaceOnly(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral, syntax.OpCharClass:
		for _, r := range re.Rune {
			if !strings.ContainsRune(" \t\n\r", r) {
				return false
			}
		}
		if re.Op == syntax.OpCharClass {
			for _, r := range pairs(re.Rune) {
				if r.hi-r.lo > 1 { // only tab and line feed are neighbours
					return false
				}
			}
		}
		return true
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return false
	}
	for _, s := range re.Sub {
		if !spaceOnly(s) {
			return false
		}
	}
	return true
}
