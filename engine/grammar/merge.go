package grammar

import (
	"fmt"
	"slices"
)

// Two schemas that hold at once become one, keyword by keyword. What has no single keyword for it is not supported.

// merging counts the work of merging: schemas that merge with themselves would have no end.
func (w *schemaWriter) merging(work int) {
	w.merged += work
	if w.merged > w.limits.Merge {
		fail(&LimitError{"steps to merge schemas", w.limits.Merge})
	}
}

// mergeAll merges the schemas of allOf and the keywords beside it.
func (w *schemaWriter) mergeAll(s *value) *value {
	all := s.get("allOf")
	if all.kind != kindArray || len(all.items) == 0 {
		fail(&InvalidError{"allOf must be a list of schemas", all.at})
	}
	merged := s.rest("allOf")
	for _, item := range all.items {
		if merged == nil {
			merged = item
			continue
		}
		merged = w.merge(merged, item)
	}
	return merged
}

// resolved gives a schema without $ref and allOf at its top.
func (w *schemaWriter) resolved(s *value, depth int) *value {
	w.merging(1)
	if depth > w.limits.Depth {
		fail(&InvalidError{"a reference leads back to itself without anything in between", s.place()})
	}
	switch {
	case s.kind != kindObject:
		return s
	case s.get("$ref") != nil:
		target := w.resolved(w.resolve(s.get("$ref")), depth+1)
		if rest := s.rest("$ref"); rest != nil {
			return w.mergeResolved(target, w.resolved(rest, depth+1))
		}
		return target
	case s.get("allOf") != nil:
		all := s.get("allOf")
		if all.kind != kindArray || len(all.items) == 0 {
			fail(&InvalidError{"allOf must be a list of schemas", all.at})
		}
		merged := s.rest("allOf")
		for _, item := range all.items {
			item = w.resolved(item, depth+1)
			if merged == nil {
				merged = item
				continue
			}
			merged = w.mergeResolved(merged, item)
		}
		return merged
	}
	return s
}

// merge gives the schema of what both admit.
func (w *schemaWriter) merge(a, b *value) *value {
	return w.mergeResolved(w.resolved(a, 0), w.resolved(b, 0))
}

func (w *schemaWriter) mergeResolved(a, b *value) *value {
	w.merging(len(a.members) + len(b.members))
	switch {
	case a.kind == kindTrue || b.kind == kindFalse:
		return b
	case b.kind == kindTrue || a.kind == kindFalse:
		return a
	case a.kind != kindObject || b.kind != kindObject:
		fail(&InvalidError{"a schema must be an object or a boolean", b.place()})
	}
	w.additional(a, b)
	w.additional(b, a)
	out := &value{kind: kindObject, at: b.at, members: slices.Clone(a.members)}
	for _, m := range b.members {
		i := slices.IndexFunc(out.members, func(x member) bool { return x.name == m.name })
		if i < 0 {
			out.members = append(out.members, m)
			continue
		}
		out.members[i].value = w.mergeKeyword(m.name, out.members[i].value, m.value)
	}
	return out
}

// additional fails when a speaks of all properties that it does not name and b names such ones.
func (w *schemaWriter) additional(a, b *value) {
	others := a.get("additionalProperties")
	if others == nil || others.kind == kindTrue || b.get("properties") == nil {
		return
	}
	for _, m := range b.get("properties").members {
		if a.get("properties").get(m.name) == nil {
			fail(&UnsupportedError{fmt.Sprintf("additionalProperties together with another schema's property %q", m.name), others.at})
		}
	}
}

// mergeKeyword gives the value of a keyword that two schemas have.
func (w *schemaWriter) mergeKeyword(keyword string, a, b *value) *value {
	if w.equal(a, b) || slices.Contains(annotations, keyword) {
		return a
	}
	switch keyword {
	case "type":
		return mergeTypes(w.types(&value{kind: kindObject, members: []member{{"type", a}}}),
			w.types(&value{kind: kindObject, members: []member{{"type", b}}}), b.at)
	case "properties":
		return w.mergeProperties(a, b)
	case "required":
		out := &value{kind: kindArray, at: b.at, items: slices.Clone(a.items)}
		out.items = append(out.items, b.items...)
		return out
	case "enum":
		out := &value{kind: kindArray, at: b.at}
		for _, x := range a.items {
			if slices.ContainsFunc(b.items, func(y *value) bool { return w.equal(x, y) }) {
				out.items = append(out.items, x)
			}
		}
		return out
	case "const": // they differ
		fail(&InvalidError{"nothing can satisfy two values of const", b.at})
	case "items", "additionalProperties", "propertyNames":
		return both(a, b)
	case "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties":
		if parseBound(a).Cmp(parseBound(b)) < 0 {
			return b
		}
		return a
	case "maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties":
		if parseBound(a).Cmp(parseBound(b)) > 0 {
			return b
		}
		return a
	case "uniqueItems", "nullable":
		if keyword == "uniqueItems" && a.kind == kindTrue || keyword == "nullable" && a.kind == kindFalse {
			return a
		}
		return b
	}
	fail(&UnsupportedError{"two schemas at once with the keyword " + keyword, b.at})
	return nil
}

// both is the schema of what two schemas admit, not yet merged: it may refer to itself.
func both(a, b *value) *value {
	all := &value{kind: kindArray, items: []*value{a, b}, at: b.at}
	return &value{kind: kindObject, members: []member{{"allOf", all}}, at: b.at}
}

func (w *schemaWriter) mergeProperties(a, b *value) *value {
	if a.kind != kindObject || b.kind != kindObject {
		fail(&InvalidError{"properties must be an object", b.at})
	}
	out := &value{kind: kindObject, at: b.at, members: slices.Clone(a.members)}
	for _, m := range b.members {
		i := slices.IndexFunc(out.members, func(x member) bool { return x.name == m.name })
		switch {
		case i < 0:
			out.members = append(out.members, m)
		case !w.equal(out.members[i].value, m.value):
			out.members[i].value = both(out.members[i].value, m.value)
		}
	}
	return out
}

func mergeTypes(a, b []string, at string) *value {
	out := &value{kind: kindArray, at: at}
	for _, name := range types {
		in := func(set []string) bool {
			return slices.Contains(set, name) || name == "integer" && slices.Contains(set, "number")
		}
		if in(a) && in(b) {
			out.items = append(out.items, &value{kind: kindString, text: name, at: at})
		}
	}
	return out
}
