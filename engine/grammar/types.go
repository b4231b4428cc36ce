package grammar

import (
	"fmt"
	"regexp/syntax"
	"slices"
)

// number adds numbers or integers with their bounds.
func (w *schemaWriter) number(from int32, s *value, whole bool, to int32) {
	if m := s.get("multipleOf"); m != nil && (m.kind != kindNumber || !whole || m.text != "1") {
		fail(&UnsupportedError{"the keyword multipleOf", m.at})
	}
	var bounds interval
	for _, keyword := range numberKeywords[:4] {
		v := s.get(keyword)
		if v == nil {
			continue
		}
		if v.kind == kindTrue || v.kind == kindFalse {
			fail(&UnsupportedError{"a boolean " + keyword, v.at})
		}
		at := parseBound(v)
		switch keyword {
		case "minimum":
			bounds.raise(at, false)
		case "exclusiveMinimum":
			bounds.raise(at, true)
		case "maximum":
			bounds.lower(at, false)
		case "exclusiveMaximum":
			bounds.lower(at, true)
		}
	}
	switch {
	case bounds.low != nil || bounds.high != nil:
		w.b.between(from, bounds, whole, to)
	case whole:
		w.b.anyInteger(from, to)
	default:
		w.b.anyNumber(from, to)
	}
}

// str adds strings.
func (w *schemaWriter) str(from int32, s *value, to int32) {
	b := w.b
	least, most, ok := w.counts(s, "minLength", "maxLength")
	if !ok {
		return
	}
	if re, where := w.expression(s); re != nil {
		if low, high := lengths(re); low < int(least) || most >= 0 && (high < 0 || high > int(most)) {
			fail(&UnsupportedError{"a pattern or format beside a minLength or maxLength that it does not keep by itself", where})
		}
		open, shut := b.node(), b.node()
		b.edge(from, '"', '"', open)
		inside := &writer{b: b, where: where, point: b.point}
		inside.regex(open, re, shut)
		b.edge(shut, '"', '"', to)
		return
	}
	if least == 0 && most < 0 {
		b.anyString(from, to)
		return
	}
	open, shut := b.node(), b.node()
	b.edge(from, '"', '"', open)
	b.repeat(open, b.jsonRule("char", b.char), least, most, shut)
	b.edge(shut, '"', '"', to)
}

// expression gives the expression of a pattern or a format, nil when there is none, and where it comes from.
func (w *schemaWriter) expression(s *value) (*syntax.Regexp, string) {
	pattern, format := s.get("pattern"), s.get("format")
	switch {
	case pattern == nil && format == nil:
		return nil, ""
	case pattern != nil && format != nil:
		fail(&UnsupportedError{"format beside pattern", format.at})
	}
	source := pattern
	if format != nil {
		source = format
	}
	if source.kind != kindString {
		fail(&InvalidError{"must be a string", source.at})
	}
	text := source.text
	if format != nil {
		var ok bool
		if text, ok = formats[source.text]; !ok {
			fail(&UnsupportedError{fmt.Sprintf("the format %q", source.text), source.at})
		}
	}
	re, err := parseRegex(text, source.at)
	if err != nil {
		fail(err)
	}
	return re, source.at
}

// lengths gives the fewest and the most code points that an expression admits, -1 for without an end.
func lengths(re *syntax.Regexp) (least, most int) {
	if low, high, ok := bounds(re); ok {
		least, most = lengths(re.Sub[0])
		if most != 0 {
			if high < 0 || most < 0 {
				most = -1
			}
			most *= max(high, 1)
		}
		if high == 0 {
			most = 0
		}
		return least * low, most
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune), len(re.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1, 1
	case syntax.OpCapture:
		return lengths(re.Sub[0])
	case syntax.OpConcat:
		for _, s := range re.Sub {
			low, high := lengths(s)
			least += low
			if most += high; high < 0 || most < high {
				most = -1
			}
		}
	case syntax.OpAlternate:
		for i, s := range re.Sub {
			low, high := lengths(s)
			if i == 0 {
				least, most = low, high
				continue
			}
			least = min(least, low)
			if most >= 0 {
				most = max(most, high)
			}
			if high < 0 {
				most = -1
			}
		}
	}
	return least, most
}

// array adds arrays: prefixItems, then items. Without items there are no others after prefixItems, and anything without
// those.
func (w *schemaWriter) array(from int32, s *value, to int32) {
	least, most, ok := w.counts(s, "minItems", "maxItems")
	if !ok {
		return
	}
	if u := s.get("uniqueItems"); u != nil && u.kind != kindFalse {
		fail(&UnsupportedError{"the keyword uniqueItems", u.at})
	}
	items, prefix := s.get("items"), s.get("prefixItems")
	if items != nil && items.kind == kindArray { // the spelling before 2020
		if prefix != nil {
			fail(&InvalidError{"a list of items beside prefixItems", items.at})
		}
		items, prefix = nil, items
	}
	item := func(from, to int32) { w.add(from, items, to) }
	switch {
	case prefix == nil && items == nil:
		item = w.anyValue
	case prefix != nil && prefix.kind != kindArray:
		fail(&InvalidError{"prefixItems must be a list of schemas", prefix.at})
	case prefix != nil && len(prefix.items) > 0:
		w.tuple(from, prefix.items, items, least, most, to)
		return
	case items == nil: // an empty prefixItems
		item = func(int32, int32) {}
	}
	w.list(from, '[', ']', least, most, item, to)
}

// tuple adds arrays that begin with items of their own. rest is nil when no others may follow.
func (w *schemaWriter) tuple(from int32, first []*value, rest *value, least, most int32, to int32) {
	b := w.b
	opened, at, done, end := b.node(), b.node(), b.node(), b.node()
	b.edge(from, '[', '[', opened)
	w.space(opened, at)
	w.space(done, end)
	b.edge(end, ']', ']', to)
	if least == 0 {
		b.edge(at, ']', ']', to)
	}
	for i, s := range first {
		if most >= 0 && i >= int(most) {
			return
		}
		if i > 0 {
			before, comma := b.node(), b.node()
			b.edge(at, ',', ',', comma)
			w.space(comma, before)
			at = before
		}
		after := b.node()
		w.add(at, s, after)
		if i+1 >= int(least) {
			b.empty(after, done)
		}
		at = after
	}
	n := int32(len(first))
	if rest == nil || most >= 0 && most <= n {
		return
	}
	more := b.rule()
	comma, before := b.node(), b.node()
	b.edge(b.start[more], ',', ',', comma)
	w.space(comma, before)
	w.add(before, rest, b.end[more])
	b.repeat(at, more, max(least-n, 0), max(most, n-1)-n, done)
}

// property is one that a schema names.
type property struct {
	name     string
	schema   *value // nil: anything
	required bool
}

// properties lists the named properties, in the schema's order, those that are only in required last; and the schema of
// all others: nil when there are none, and open when there may be any.
func (w *schemaWriter) properties(s *value) (named []property, others *value, open bool) {
	declared, required := s.get("properties"), s.get("required")
	others = s.get("additionalProperties")
	open = declared == nil && others == nil
	if declared != nil {
		if declared.kind != kindObject {
			fail(&InvalidError{"properties must be an object", declared.at})
		}
		for _, m := range declared.members {
			named = append(named, property{name: m.name, schema: m.value})
		}
	}
	if required == nil {
		return named, others, open
	}
	if required.kind != kindArray {
		fail(&InvalidError{"required must be a list of names", required.at})
	}
	index := make(map[string]int, len(named))
	for i, p := range named {
		index[p.name] = i
	}
	for _, r := range required.items {
		if r.kind != kindString {
			fail(&InvalidError{"required must be a list of names", r.at})
		}
		i, ok := index[r.text]
		if !ok {
			i = len(named)
			index[r.text] = i
			named = append(named, property{name: r.text, schema: others})
		}
		named[i].required = true
	}
	return named, others, open
}

// object adds objects: the named properties in their order, each at most once, then others. Without
// additionalProperties there are no others beside properties, and any without those.
func (w *schemaWriter) object(from int32, s *value, to int32) {
	b := w.b
	named, others, open := w.properties(s)
	names := make([]string, len(named))
	for i, p := range named {
		names[i] = p.name
	}
	other := func(from, to int32) { w.add(from, others, to) }
	if open || others == nil {
		other = w.anyValue
	}
	name := func(from, to int32) { b.otherName(from, names, to) }
	if n := s.get("propertyNames"); n != nil {
		if len(named) > 0 {
			fail(&UnsupportedError{"propertyNames beside properties or required", n.at})
		}
		if n.kind == kindObject {
			with := &value{kind: kindObject, at: n.at, members: append(slices.Clone(n.members), member{"type", &value{kind: kindString, text: "string", at: n.at}})}
			if n.get("type") != nil {
				with = n
			}
			name = func(from, to int32) { w.add(from, with, to) }
		}
	}
	least, most, ok := w.counts(s, "minProperties", "maxProperties")
	if !ok {
		return
	}
	if others != nil && others.kind == kindFalse {
		others = nil
	}
	if len(named) == 0 {
		if others == nil && !open {
			most = 0
		}
		if least > 0 && most == 0 {
			return
		}
		w.list(from, '{', '}', least, most, func(from, to int32) { w.pair(from, name, other, to) }, to)
		return
	}
	needed := int32(0)
	for _, p := range named {
		if p.required {
			needed++
		}
	}
	if least > needed || most >= 0 && (others != nil || open || int(most) < len(named)) {
		fail(&UnsupportedError{"minProperties or maxProperties beside properties", s.place()})
	}
	if others == nil && !open {
		other = nil
	}
	w.members(from, named, name, other, to)
}

// members adds an object with named properties. other is nil when there are no others.
func (w *schemaWriter) members(from int32, named []property, name, other func(from, to int32), to int32) {
	b := w.b
	// before[i] is the place where a name comes, of property i or a later one, as far as none is left out that is
	// required; the last is that of the others. after[i] is the place after a value, when i is the next property.
	n := len(named)
	before, after := make([]int32, n+1), make([]int32, n+1)
	for i := range before {
		before[i], after[i] = b.node(), b.node()
	}
	opened, end := b.node(), b.node()
	b.edge(from, '{', '{', opened)
	w.space(opened, before[0])
	lastRequired := -1
	for i, p := range named {
		if p.required {
			lastRequired = i
		}
		w.pair(before[i], func(from, to int32) { b.text(from, quote(p.name), to) }, func(from, to int32) {
			if p.schema == nil {
				w.anyValue(from, to)
				return
			}
			w.add(from, p.schema, to)
		}, after[i+1])
		if !p.required {
			b.empty(before[i], before[i+1])
		}
	}
	if other != nil {
		w.pair(before[n], name, other, after[n])
	}
	if lastRequired < 0 {
		b.edge(before[0], '}', '}', to)
	}
	for i := 1; i <= n; i++ {
		comma := b.node()
		b.edge(after[i], ',', ',', comma)
		w.space(comma, before[i])
		if i > lastRequired {
			w.space(after[i], end)
		}
	}
	b.edge(end, '}', '}', to)
}

// formats are the expressions of format.
var formats = map[string]string{
	"date":         datePattern,
	"time":         timePattern,
	"date-time":    datePattern + `T` + timePattern,
	"duration":     `P(\d{1,9}W|\d{1,9}Y(\d{1,9}M(\d{1,9}D)?)?|\d{1,9}M(\d{1,9}D)?|\d{1,9}D|(\d{1,9}Y(\d{1,9}M(\d{1,9}D)?)?|\d{1,9}M(\d{1,9}D)?|\d{1,9}D)?T(\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?|\d{1,9}M(\d{1,9}S)?|\d{1,9}S))`,
	"uuid":         `[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`,
	"email":        `[A-Za-z0-9_%+-]+(\.[A-Za-z0-9_%+-]+)*@` + label + `(\.` + label + `)*\.[A-Za-z]{2,24}`,
	"hostname":     label + `(\.` + label + `){0,7}`,
	"ipv4":         octet + `(\.` + octet + `){3}`,
	"ipv6":         ipv6Pattern(),
	"uri":          `[a-z][a-z0-9+.-]{0,31}://([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})+(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?`,
	"json-pointer": `(/([^/~]|~[01])*)*`,
}

// The days that a month has are kept, but for February's 29th of no leap year, which is left out.
const (
	datePattern = `\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))`
	timePattern = `([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)`
	label       = `[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?`
	octet       = `(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
)

// ipv6Pattern is an address of eight groups, of which one run of at least one may be left out.
func ipv6Pattern() string {
	const group = `[0-9a-fA-F]{1,4}`
	all := fmt.Sprintf(`(%s:){7}%s`, group, group)
	for left := range 8 { // groups before the gap
		before, most := "", 7-left // groups after it at most
		if left > 0 {
			before = fmt.Sprintf(`%s(:%s){%d}`, group, group, left-1)
		}
		after := ""
		if most > 0 {
			after = fmt.Sprintf(`(%s(:%s){0,%d})?`, group, group, most-1)
		}
		all += "|" + before + "::" + after
	}
	return all
}
