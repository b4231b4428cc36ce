package grammar

import (
	"fmt"
	"net/url"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// keywords that say nothing about what is valid, or that others here look at.
var annotations = []string{
	"title", "description", "default", "example", "examples", "$schema", "$id", "$comment", "$defs", "definitions", "$anchor",
	"readOnly", "writeOnly", "deprecated", "discriminator", "contentEncoding", "contentMediaType", "contentSchema",
}

// keywords that have a meaning which is not enforced here.
var unsupportedKeywords = []string{
	"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties", "contains",
	"minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems", "additionalItems", "$dynamicRef",
	"$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary", "extends", "disallow", "divisibleBy",
}

// keywords by the type that they speak of.
var (
	stringKeywords = []string{"minLength", "maxLength", "pattern", "format"}
	numberKeywords = []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
	arrayKeywords  = []string{"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}
	objectKeywords = []string{"properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"}
)

// types are the names of types in the order in which they are written.
var types = []string{"null", "boolean", "integer", "number", "string", "array", "object"}

// schemaWriter adds schemas to a builder.
type schemaWriter struct {
	b          *builder
	root       *value
	whitespace *syntax.Regexp
	refs       map[string]int32 // rules by the place of what $ref refers to
	places     map[string]bool  // in the source, of the schemas that were added
	depth      int
	merged     int // work of merging so far
	limits     Limits
}

// add adds what a schema admits.
func (w *schemaWriter) add(from int32, s *value, to int32) {
	w.depth++
	defer func() { w.depth-- }()
	if w.depth > w.limits.Depth {
		fail(&LimitError{"levels of schemas inside schemas", w.limits.Depth})
	}
	w.places[s.at] = true
	switch s.kind {
	case kindTrue:
		w.anyValue(from, to)
		return
	case kindFalse:
		return
	case kindObject:
	default:
		fail(&InvalidError{"a schema must be an object or a boolean", s.place()})
	}
	for _, m := range s.members {
		if slices.Contains(unsupportedKeywords, m.name) {
			fail(&UnsupportedError{"the keyword " + m.name, m.value.at})
		}
	}
	switch {
	case s.get("$ref") != nil:
		w.ref(from, s, to)
	case s.get("allOf") != nil:
		w.add(from, w.mergeAll(s), to)
	case s.get("anyOf") != nil || s.get("oneOf") != nil:
		w.anyOf(from, s, to)
	case s.get("const") != nil || s.get("enum") != nil:
		w.literals(from, s, to)
	default:
		w.typed(from, s, to)
	}
}

// rest gives the schema without some keywords and without annotations; nil when nothing is left.
func (v *value) rest(without ...string) *value {
	var kept []member
	for _, m := range v.members {
		if !slices.Contains(without, m.name) && !slices.Contains(annotations, m.name) {
			kept = append(kept, m)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return &value{kind: kindObject, members: kept, at: v.at}
}

// ref adds what $ref refers to, through a rule; together with other keywords, both at once.
func (w *schemaWriter) ref(from int32, s *value, to int32) {
	if rest := s.rest("$ref"); rest != nil {
		w.add(from, w.merge(w.resolved(s, 0), rest), to)
		return
	}
	target := w.resolve(s.get("$ref"))
	rule, ok := w.refs[target.at]
	if !ok {
		rule = w.b.rule()
		w.refs[target.at] = rule
		depth := w.depth
		w.depth = 0
		w.add(w.b.start[rule], target, w.b.end[rule])
		w.depth = depth
	}
	w.b.call(from, rule, to)
}

// resolve finds what a $ref refers to.
func (w *schemaWriter) resolve(ref *value) *value {
	if ref.kind != kindString {
		fail(&InvalidError{"$ref must be a string", ref.at})
	}
	path, ok := strings.CutPrefix(ref.text, "#")
	if !ok || path != "" && path[0] != '/' {
		fail(&UnsupportedError{fmt.Sprintf("the reference %q, which is not a # and a JSON pointer,", ref.text), ref.at})
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		fail(&InvalidError{fmt.Sprintf("$ref %q: %s", ref.text, err), ref.at})
	}
	at := w.root
	for _, part := range strings.Split(path, "/")[1:] {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		next := at.get(part)
		if i, err := strconv.Atoi(part); err == nil && at.kind == kindArray && 0 <= i && i < len(at.items) {
			next = at.items[i]
		}
		if next == nil {
			fail(&InvalidError{fmt.Sprintf("$ref %q refers to nothing", ref.text), ref.at})
		}
		at = next
	}
	return at
}

// anyOf adds the alternatives, each together with the other keywords. oneOf is the same: that no second alternative
// admits the text too is not enforced.
func (w *schemaWriter) anyOf(from int32, s *value, to int32) {
	keyword := "anyOf"
	if s.get("oneOf") != nil {
		keyword = "oneOf"
		if s.get("anyOf") != nil {
			fail(&UnsupportedError{"oneOf beside anyOf", s.get("oneOf").at})
		}
	}
	all := s.get(keyword)
	if all.kind != kindArray || len(all.items) == 0 {
		fail(&InvalidError{keyword + " must be a list of schemas", all.at})
	}
	rest := s.rest(keyword)
	for _, item := range all.items {
		if rest != nil {
			item = w.merge(item, rest)
		}
		w.add(from, item, to)
	}
}

// literals adds const or enum: those members that the schema's type admits.
func (w *schemaWriter) literals(from int32, s *value, to int32) {
	var all []*value
	if enum := s.get("enum"); enum != nil {
		if enum.kind != kindArray {
			fail(&InvalidError{"enum must be a list", enum.at})
		}
		all = enum.items
	}
	if only := s.get("const"); only != nil {
		if s.get("enum") != nil {
			all = slices.DeleteFunc(slices.Clone(all), func(v *value) bool { return !w.equal(v, only) })
		} else {
			all = []*value{only}
		}
	}
	for _, m := range s.members {
		for _, set := range [][]string{stringKeywords, numberKeywords, arrayKeywords, objectKeywords} {
			if slices.Contains(set, m.name) {
				fail(&UnsupportedError{m.name + " beside enum or const", m.value.at})
			}
		}
	}
	allowed := w.types(s)
	var texts []string
	for _, v := range all {
		if allowed == nil || slices.ContainsFunc(allowed, v.isA) {
			texts = append(texts, v.encode())
		}
	}
	w.b.texts(from, texts, to)
}

// isA reports whether the value has a type.
func (v *value) isA(name string) bool {
	switch v.kind {
	case kindNull:
		return name == "null"
	case kindFalse, kindTrue:
		return name == "boolean"
	case kindNumber:
		return name == "number" || name == "integer" && !strings.ContainsAny(v.text, ".eE")
	case kindString:
		return name == "string"
	case kindArray:
		return name == "array"
	}
	return name == "object"
}

// equal reports whether two values are the same JSON, numbers as they are written.
func (w *schemaWriter) equal(a, b *value) bool {
	w.merging(1)
	if a.kind != b.kind || a.text != b.text || len(a.items) != len(b.items) || len(a.members) != len(b.members) {
		return false
	}
	for i := range a.items {
		if !w.equal(a.items[i], b.items[i]) {
			return false
		}
	}
	for _, m := range a.members {
		other := b.get(m.name)
		if other == nil || !w.equal(m.value, other) {
			return false
		}
	}
	return true
}

// types gives the types that the schema names, nil when it names none.
func (w *schemaWriter) types(s *value) []string {
	t := s.get("type")
	if t == nil {
		return nil
	}
	names := []*value{t}
	if t.kind == kindArray {
		names = t.items
	}
	out := []string{}
	for _, name := range names {
		if name.kind != kindString || !slices.Contains(types, name.text) {
			fail(&InvalidError{fmt.Sprintf("type must be one of %s, or a list of them", strings.Join(types, ", ")), name.at})
		}
		out = append(out, name.text)
	}
	if n := s.get("nullable"); n != nil && n.kind == kindTrue {
		out = append(out, "null")
	}
	return out
}

// typed adds what a schema says by type. Without a type it is the types that its keywords speak of; without these too it
// is anything.
func (w *schemaWriter) typed(from int32, s *value, to int32) {
	names := w.types(s)
	if names == nil {
		for _, m := range s.members {
			for name, set := range map[string][]string{
				"string": stringKeywords, "number": numberKeywords, "array": arrayKeywords, "object": objectKeywords,
			} {
				if slices.Contains(set, m.name) {
					names = append(names, name)
				}
			}
		}
	}
	if names == nil {
		w.anyValue(from, to)
		return
	}
	for _, name := range types {
		if !slices.Contains(names, name) {
			continue
		}
		switch name {
		case "null":
			w.b.text(from, "null", to)
		case "boolean":
			w.b.texts(from, []string{"true", "false"}, to)
		case "integer":
			if !slices.Contains(names, "number") {
				w.number(from, s, true, to)
			}
		case "number":
			w.number(from, s, false, to)
		case "string":
			w.str(from, s, to)
		case "array":
			w.array(from, s, to)
		case "object":
			w.object(from, s, to)
		}
	}
}

// count reads a keyword that is a number of things; absent gives otherwise.
func (w *schemaWriter) count(s *value, keyword string, otherwise int32) int32 {
	v := s.get(keyword)
	if v == nil {
		return otherwise
	}
	text, _ := strings.CutSuffix(v.text, ".0")
	n, err := strconv.ParseUint(text, 10, 63)
	if v.kind != kindNumber || err != nil {
		fail(&InvalidError{keyword + " must be a whole number from 0 on", v.at})
	}
	if n > uint64(w.limits.Repeat) {
		fail(&LimitError{fmt.Sprintf("repeats (%s at %s)", keyword, v.at), w.limits.Repeat})
	}
	return int32(n)
}

// counts reads a pair of keywords. most is -1 when it is absent; ok is false when nothing is between the two.
func (w *schemaWriter) counts(s *value, minKeyword, maxKeyword string) (least, most int32, ok bool) {
	least, most = w.count(s, minKeyword, 0), w.count(s, maxKeyword, -1)
	return least, most, most < 0 || least <= most
}
