package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The expressions are those of Go's regexp package (RE2): literals, classes with Unicode properties, alternation,
// groups, repeats with bounds up to 1000, flags i, s and U. The whole text has to match, so ^ at the beginning and $ at
// the end change nothing; elsewhere anchors are not supported, nor are word boundaries, look-around and back-references.

// parseRegex reads an expression. where is put before the position in errors, for an expression inside a schema.
func parseRegex(source, where string) (*syntax.Regexp, error) {
	position := func(at int) string {
		if where == "" {
			return fmt.Sprintf("byte %d", at)
		}
		return fmt.Sprintf("%s, byte %d", where, at)
	}
	if !utf8.ValidString(source) {
		return nil, &InvalidError{"the expression is not valid UTF-8", position(0)}
	}
	if what, at := unsupportedConstruct(source); what != "" {
		return nil, &UnsupportedError{what, position(at)}
	}
	re, err := syntax.Parse(source, syntax.Perl)
	if err == nil {
		return re, nil
	}
	var e *syntax.Error
	if !errors.As(err, &e) {
		return nil, &InvalidError{err.Error(), position(0)}
	}
	at := max(strings.Index(source, e.Expr), 0)
	switch e.Code {
	case syntax.ErrInvalidRepeatSize:
		return nil, &UnsupportedError{fmt.Sprintf("the repeat %s, of more than 1000 times together with those inside it, or the wrong way round,", e.Expr), position(at)}
	case syntax.ErrLarge, syntax.ErrNestingDepth:
		return nil, &InvalidError{e.Code.String(), position(at)}
	}
	return nil, &InvalidError{fmt.Sprintf("%s: %q", e.Code, e.Expr), position(at)}
}

// constructs are beginnings of what other dialects have.
var constructs = []struct{ prefix, what string }{
	{"(?=", "look-ahead (?=…)"},
	{"(?!", "negative look-ahead (?!…)"},
	{"(?<=", "look-behind (?<=…)"},
	{"(?<!", "negative look-behind (?<!…)"},
	{"(?>", "the atomic group (?>…)"},
	{"(?(", "the conditional (?(…)…)"},
	{"(?#", "the comment (?#…)"},
	{"(?R)", "the recursion (?R)"},
	{"(?P=", "the back-reference (?P=…)"},
	{`\k`, `the back-reference \k`},
	{`\b`, `the word boundary \b`},
	{`\B`, `the word boundary \B`},
	{`\G`, `the anchor \G`},
	{`\Z`, `the anchor \Z`},
	{`\u`, `the escape \u; \x{…} is its equivalent,`},
	{`\c`, `the control escape \c`},
	{`\R`, `the line break \R`},
	{`\X`, `the grapheme \X`},
}

// unsupportedConstruct finds what RE2 has not got, by its first byte; what is "" when there is nothing.
func unsupportedConstruct(source string) (what string, at int) {
	inClass := false
	for i := 0; i < len(source); i++ {
		rest := source[i:]
		switch {
		case strings.HasPrefix(rest, `\Q`):
			end := strings.Index(rest, `\E`)
			if end < 0 {
				return "", 0
			}
			i += end + 1
			continue
		case inClass && source[i] == ']':
			inClass = false
			continue
		case !inClass && source[i] == '[':
			inClass = true
			// A bracket in the first place is a member.
			if strings.HasPrefix(rest, "[^]") {
				i += 2
			} else if strings.HasPrefix(rest, "[]") {
				i++
			}
			continue
		}
		for _, c := range constructs {
			if strings.HasPrefix(rest, c.prefix) && (!inClass || c.prefix == `\u` || c.prefix == `\c`) {
				return c.what, i
			}
		}
		if source[i] != '\\' || i+1 == len(source) {
			continue
		}
		if d := source[i+1]; !inClass && '1' <= d && d <= '9' {
			return fmt.Sprintf(`the back-reference \%c`, d), i
		}
		i++
	}
	return "", 0
}

// writer adds an expression to a builder.
type writer struct {
	b     *builder
	where string // for errors

	// point adds one code point of a set; it may write it with an escape.
	point func(from int32, set runes, to int32)
}

// regex adds an expression that is the whole of a text.
func (w *writer) regex(from int32, re *syntax.Regexp, to int32) {
	w.add(from, w.unanchor(re, true, true), to)
}

// unanchor takes out the anchors that say nothing. first and last tell whether re is at the beginning and at the end.
func (w *writer) unanchor(re *syntax.Regexp, first, last bool) *syntax.Regexp {
	nothing := &syntax.Regexp{Op: syntax.OpEmptyMatch}
	sub := func(i int, first, last bool) { re.Sub[i] = w.unanchor(re.Sub[i], first, last) }
	switch re.Op {
	case syntax.OpBeginText, syntax.OpEndText:
		if re.Op == syntax.OpBeginText && first || re.Op == syntax.OpEndText && last {
			return nothing
		}
		fail(&UnsupportedError{fmt.Sprintf("the anchor %s, with text on its other side,", re), w.place()})
	case syntax.OpBeginLine, syntax.OpEndLine, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		fail(&UnsupportedError{fmt.Sprintf("the assertion %s", re), w.place()})
	case syntax.OpConcat:
		// What admits only the empty text leaves its neighbour at the edge.
		for i, isFirst := 0, first; i < len(re.Sub); i++ {
			isLast := last
			for _, after := range re.Sub[i+1:] {
				isLast = isLast && onlyEmpty(after)
			}
			was := onlyEmpty(re.Sub[i])
			sub(i, isFirst, isLast)
			isFirst = isFirst && was
		}
	case syntax.OpAlternate, syntax.OpCapture:
		for i := range re.Sub {
			sub(i, first, last)
		}
	case syntax.OpQuest:
		sub(0, first, last)
	case syntax.OpStar, syntax.OpPlus, syntax.OpRepeat:
		sub(0, false, false)
	}
	return re
}

func (w *writer) place() string {
	if w.where != "" {
		return w.where
	}
	return "the expression"
}

// onlyEmpty reports whether re admits nothing but the empty text.
func onlyEmpty(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginText, syntax.OpEndText:
		return true
	case syntax.OpConcat, syntax.OpAlternate, syntax.OpCapture, syntax.OpQuest, syntax.OpStar, syntax.OpPlus, syntax.OpRepeat:
		for _, s := range re.Sub {
			if !onlyEmpty(s) {
				return false
			}
		}
		return true
	}
	return false
}

// nullable reports whether re admits the empty text.
func nullable(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpStar, syntax.OpQuest:
		return true
	case syntax.OpCapture, syntax.OpPlus:
		return nullable(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min == 0 || nullable(re.Sub[0])
	case syntax.OpConcat:
		for _, s := range re.Sub {
			if !nullable(s) {
				return false
			}
		}
		return true
	case syntax.OpAlternate:
		for _, s := range re.Sub {
			if nullable(s) {
				return true
			}
		}
	}
	return false
}

// bounds gives how often re repeats its sub-expression, -1 is without an end. ok is false when it is no repeat.
func bounds(re *syntax.Regexp) (least, most int, ok bool) {
	switch re.Op {
	case syntax.OpStar:
		return 0, -1, true
	case syntax.OpPlus:
		return 1, -1, true
	case syntax.OpQuest:
		return 0, 1, true
	case syntax.OpRepeat:
		return re.Min, re.Max, true
	}
	return 0, 0, false
}

// add adds re.
func (w *writer) add(from int32, re *syntax.Regexp, to int32) {
	if least, most, ok := bounds(re); ok {
		w.repeat(from, re.Sub[0], least, most, to)
		return
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
		w.b.empty(from, to)
	case syntax.OpConcat:
		for i, s := range re.Sub {
			next := to
			if i < len(re.Sub)-1 {
				next = w.b.node()
			}
			w.add(from, s, next)
			from = next
		}
		if len(re.Sub) == 0 {
			w.b.empty(from, to)
		}
	case syntax.OpAlternate:
		for _, s := range re.Sub {
			w.add(from, s, to)
		}
	case syntax.OpCapture:
		w.add(from, re.Sub[0], to)
	default:
		w.points(from, re, to)
	}
}

// points adds what consists of single code points.
func (w *writer) points(from int32, re *syntax.Regexp, to int32) {
	switch re.Op {
	case syntax.OpNoMatch:
	case syntax.OpLiteral:
		for i, r := range re.Rune {
			next := to
			if i < len(re.Rune)-1 {
				next = w.b.node()
			}
			set := runes{{r, r}}
			if re.Flags&syntax.FoldCase != 0 {
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					set = append(set, runeRange{f, f})
				}
			}
			w.point(from, set.normal(), next)
			from = next
		}
	case syntax.OpCharClass:
		w.point(from, pairs(re.Rune), to)
	case syntax.OpAnyChar:
		w.point(from, runes{{0, utf8.MaxRune}}, to)
	case syntax.OpAnyCharNotNL:
		w.point(from, runes{{0, '\n' - 1}, {'\n' + 1, utf8.MaxRune}}, to)
	default:
		fail(&UnsupportedError{fmt.Sprintf("the construct %s", re), w.place()})
	}
}

// addNonEmpty adds re less the empty text.
func (w *writer) addNonEmpty(from int32, re *syntax.Regexp, to int32) {
	if !nullable(re) {
		w.add(from, re, to)
		return
	}
	if least, most, ok := bounds(re); ok {
		if nullable(re.Sub[0]) {
			least = 0
		}
		if most != 0 {
			w.repeatNonEmpty(from, re.Sub[0], max(least, 1), most, to)
		}
		return
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
	case syntax.OpCapture:
		w.addNonEmpty(from, re.Sub[0], to)
	case syntax.OpAlternate:
		for _, s := range re.Sub {
			w.addNonEmpty(from, s, to)
		}
	case syntax.OpConcat:
		// Two chains: nothing has come yet, and something has.
		yet, some := from, int32(-1)
		for i, s := range re.Sub {
			next := to
			if i < len(re.Sub)-1 {
				next = w.b.node()
			}
			w.addNonEmpty(yet, s, next)
			if some >= 0 {
				w.b.empty(some, next)
				w.addNonEmpty(some, s, next)
			}
			some = next
		}
	}
}

// repeat adds re between least and most times.
func (w *writer) repeat(from int32, re *syntax.Regexp, least, most int, to int32) {
	if nullable(re) {
		least = 0
	}
	if least == 0 {
		w.b.empty(from, to)
		least = 1
	}
	if most != 0 {
		w.repeatNonEmpty(from, re, least, most, to)
	}
}

// largeRepeat is from how many nodes on a repeat is counted and not written out.
const largeRepeat = 48

// repeatNonEmpty adds what is in re, less the empty text, between least and most times; least >= 1.
func (w *writer) repeatNonEmpty(from int32, re *syntax.Regexp, least, most int, to int32) {
	copies := max(least, most)
	if copies > 1 && copies*w.size(re) > largeRepeat {
		rule := w.b.rule()
		w.addNonEmpty(w.b.start[rule], re, w.b.end[rule])
		w.b.repeat(from, rule, int32(least), int32(most), to)
		return
	}
	for i := 1; i < copies || most < 0 && i <= copies; i++ {
		next := w.b.node()
		w.addNonEmpty(from, re, next)
		if i >= least {
			w.b.empty(next, to)
		}
		from = next
	}
	if most < 0 {
		w.addNonEmpty(from, re, from)
		return
	}
	w.addNonEmpty(from, re, to)
}

// size estimates the nodes that re needs.
func (w *writer) size(re *syntax.Regexp) int {
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		if len(re.Rune) > 0 && re.Rune[len(re.Rune)-1] < utf8.RuneSelf {
			return 1
		}
		return 8
	}
	total := 1
	for _, s := range re.Sub {
		total += w.size(s)
	}
	if _, most, ok := bounds(re); ok {
		total *= max(1, min(most, largeRepeat))
	}
	return total
}
