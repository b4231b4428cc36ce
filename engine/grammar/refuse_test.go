package grammar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRefusals(t *testing.T) {
	deep := strings.Repeat(`{"type":"array","items":`, 200) + `{}` + strings.Repeat(`}`, 200)
	wide := `{"$defs":{"a0":{"type":"object","properties":{"k":{"type":"string"}}}`
	for i := range 40 {
		wide += fmt.Sprintf(`,"a%d":{"allOf":[{"properties":{"k":{"anyOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]}}},{"type":"object"}]}`, i+1, i, i)
	}
	wide += `},"$ref":"#/$defs/a40"}`
	var enum []string
	for i := range 20_000 {
		enum = append(enum, fmt.Sprintf(`"value %d of many"`, i*7919))
	}
	tests := []struct {
		name, reason string
		spec         Spec
		want         error // compared by type and value; nil: it compiles
		limit        bool  // any *LimitError
	}{
		{"look-ahead", "named, with its place", Spec{Regex, `ab(?=c)`}, &UnsupportedError{"look-ahead (?=…)", "byte 2"}, false},
		{"negative look-behind", "", Spec{Regex, `(?<!c)`}, &UnsupportedError{"negative look-behind (?<!…)", "byte 0"}, false},
		{"back-reference", "", Spec{Regex, `(a)\1`}, &UnsupportedError{`the back-reference \1`, "byte 3"}, false},
		{"in a class it is none", "a class has no look-around", Spec{Regex, `[(?=]`}, nil, false},
		{"escaped it is none", "", Spec{Regex, `\(\?=\\1`}, nil, false},
		{"word boundary", "", Spec{Regex, `\ba`}, &UnsupportedError{`the word boundary \b`, "byte 0"}, false},
		{"anchor inside", "", Spec{Regex, `a^b`}, &UnsupportedError{`the anchor \A, with text on its other side,`, "the expression"}, false},
		{"not an expression", "", Spec{Regex, `a(b`}, &InvalidError{`missing closing ): "a(b"`, "byte 0"}, false},
		{"not UTF-8", "", Spec{Regex, "a\xff"}, &InvalidError{"the expression is not valid UTF-8", "byte 0"}, false},
		{"nothing", "an empty class", Spec{Regex, `a[^\x{0}-\x{10ffff}]`}, &InvalidError{"nothing can satisfy it", "the whole"}, false},
		{"repeats of repeats", "RE2's own bound", Spec{Regex, `((a{100}){100}){100}`},
			&UnsupportedError{"the repeat {100}, of more than 1000 times together with those inside it, or the wrong way round,", "byte 3"}, false},
		{"kind", "", Spec{"ebnf", `x`}, &InvalidError{"must be json_schema, regex or json_object", "kind"}, false},

		{"not JSON", "", Spec{JSONSchema, `{"type":`}, &InvalidError{"the schema is not JSON: unexpected EOF", "byte 8"}, false},
		{"empty", "", Spec{JSONSchema, ``}, &InvalidError{"the schema is not JSON: unexpected EOF", "byte 0"}, false},
		{"two", "", Spec{JSONSchema, `{} {}`}, &InvalidError{"something follows the schema", "byte 4"}, false},
		{"name twice", "", Spec{JSONSchema, `{"properties":{"a":{},"a":{}}}`}, &InvalidError{"the name comes twice", "/properties/a"}, false},
		{"not a schema", "", Spec{JSONSchema, `{"items":3}`}, &InvalidError{"a schema must be an object or a boolean", "/items"}, false},
		{"type", "", Spec{JSONSchema, `{"type":"text"}`}, &InvalidError{"type must be one of null, boolean, integer, number, string, array, object, or a list of them", "/type"}, false},
		{"if", "the keyword and its pointer", Spec{JSONSchema, `{"properties":{"a/b":{"if":{}}}}`}, &UnsupportedError{"the keyword if", "/properties/a~1b/if"}, false},
		{"unique", "", Spec{JSONSchema, `{"items":{"const":1},"uniqueItems":true}`}, &UnsupportedError{"the keyword uniqueItems", "/uniqueItems"}, false},
		{"format", "", Spec{JSONSchema, `{"format":"colour"}`}, &UnsupportedError{`the format "colour"`, "/format"}, false},
		{"pattern", "the place in the schema and in the pattern", Spec{JSONSchema, `{"pattern":"a(?!b)"}`}, &UnsupportedError{"negative look-ahead (?!…)", "/pattern, byte 1"}, false},
		{"pattern and length", "", Spec{JSONSchema, `{"pattern":"a*","maxLength":3}`}, &UnsupportedError{"a pattern or format beside a minLength or maxLength that it does not keep by itself", "/pattern"}, false},
		{"pattern of that length", "", Spec{JSONSchema, `{"pattern":"a{1,3}","maxLength":3,"minLength":1}`}, nil, false},
		{"remote reference", "", Spec{JSONSchema, `{"$ref":"other.json"}`}, &UnsupportedError{`the reference "other.json", which is not a # and a JSON pointer,`, "/$ref"}, false},
		{"dangling reference", "", Spec{JSONSchema, `{"$ref":"#/$defs/x"}`}, &InvalidError{`$ref "#/$defs/x" refers to nothing`, "/$ref"}, false},
		{"reference to itself", "no text is left", Spec{JSONSchema, `{"$ref":"#"}`}, &InvalidError{"nothing can satisfy it", "the whole"}, false},
		{"reference round", "an alternative that is the whole", Spec{JSONSchema, `{"anyOf":[{"$ref":"#"},{"type":"null"}]}`},
			&InvalidError{"a reference leads back to itself without anything in between", "the whole"}, false},
		{"no end", "an object inside itself for ever", Spec{JSONSchema, `{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`},
			&InvalidError{"nothing can satisfy it", "the whole"}, false},
		{"false", "", Spec{JSONSchema, `false`}, &InvalidError{"nothing can satisfy it", "the whole"}, false},
		{"bounds that cross", "", Spec{JSONSchema, `{"type":"integer","minimum":3,"exclusiveMaximum":3}`}, &InvalidError{"nothing can satisfy it", "the whole"}, false},
		{"two constants", "", Spec{JSONSchema, `{"allOf":[{"const":1},{"const":2}]}`}, &InvalidError{"nothing can satisfy two values of const", "/allOf/1/const"}, false},
		{"allOf of closed objects", "", Spec{JSONSchema, `{"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]}`},
			&UnsupportedError{`additionalProperties together with another schema's property "b"`, "/allOf/0/additionalProperties"}, false},
		{"allOf of itself and more", "", Spec{JSONSchema, `{"allOf":[{"$ref":"#"},{"type":"null"}]}`}, &InvalidError{"a reference leads back to itself without anything in between", "the root"}, false},
		{"allOf of itself", "", Spec{JSONSchema, `{"allOf":[{"$ref":"#"}]}`}, &InvalidError{"nothing can satisfy it", "the whole"}, false},

		{"source", "", Spec{Regex, strings.Repeat("a", 300<<10)}, nil, true},
		{"nesting", "", Spec{JSONSchema, deep}, &InvalidError{"is nested too deeply", strings.Repeat("/items", 127) + "/type"}, false},
		{"huge bounds of lengths", "counted, not written out", Spec{JSONSchema, `{"type":"string","minLength":500000,"maxLength":1000000}`}, nil, false},
		{"absurd bounds of lengths", "", Spec{JSONSchema, `{"type":"string","minLength":50000000}`}, nil, true},
		{"absurd numbers", "", Spec{JSONSchema, `{"minimum":1e1000000000}`}, nil, true},
		{"huge enum", "beginnings are shared", Spec{JSONSchema, `{"enum":[` + strings.Join(enum[:5000], ",") + `]}`}, nil, false},
		{"absurd enum", "", Spec{JSONSchema, `{"enum":[` + strings.Join(enum[:8000], ",") + strings.Repeat(`,"x"`, 10) + `,"` + strings.Repeat("y", 90_000) + `"]}`}, nil, true},
		{"references that double", "each is one rule", Spec{JSONSchema, wide}, nil, false},
		{"stars in stars", "", Spec{Regex, strings.Repeat("(", 60) + "a*" + strings.Repeat("b*)*", 60)}, nil, true},
		{"merging for ever", "", Spec{JSONSchema, `{"$defs":{"t":{"type":"object","properties":{"p":{"allOf":[{"$ref":"#/$defs/t"},{"properties":{"p":{"$ref":"#/$defs/t"}}}]}}}},"$ref":"#/$defs/t"}`}, nil, true},
	}
	c := newTestCompiler(t, letters(), Config{})
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := c.Compile(context.Background(), test.spec)
			if test.limit {
				var limit *LimitError
				if !errors.As(err, &limit) {
					t.Errorf("%s: error %v, want a limit", test.reason, err)
				}
				return
			}
			if err != nil {
				err = errors.Unwrap(err)
			}
			if diff := cmp.Diff(test.want, err); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

// TestAmbiguity: what has many ways to be read ends with an error, or goes on; it neither takes for ever nor fills memory.
func TestAmbiguity(t *testing.T) {
	same := `{"type":"array","items":{"$ref":"#"}}`
	for range 5 {
		same = `{"anyOf":[` + same + `,` + same + `]}`
	}
	for _, test := range []struct {
		name, text string
		spec       Spec
		fails      bool
	}{
		{"cuts of a text", strings.Repeat("a", 500), Spec{Regex, `(a|aa|aaa){1,1000}`}, false},
		{"cuts of cuts", strings.Repeat("a", 300), Spec{Regex, `((a|aa){1,20}){1,40}`}, false},
		{"far choice", strings.Repeat("ab", 90), Spec{Regex, `(a|b)*a(a|b){300}`}, false},
		{"exact cuts", strings.Repeat("a", 400), Spec{Regex, `((a|aa){2,3}b?){300}`}, true},
		{"arrays that are alike", strings.Repeat("[", 50), Spec{JSONSchema, same}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTestCompiler(t, letters("aa", "aaaaaaa", "[[", "[[[[[["), Config{Limits: Limits{Configurations: 256}})
			g, err := c.Compile(context.Background(), test.spec)
			if err != nil {
				t.Fatal(err)
			}
			m, mask := g.Matcher(), make([]uint64, g.Words())
			for i := range len(test.text) {
				if err = m.Mask(mask); err != nil {
					break
				}
				if err = m.Accept(int32(test.text[i])); err != nil {
					break
				}
			}
			var limit *LimitError
			if (err != nil) != test.fails || err != nil && !errors.As(err, &limit) {
				t.Errorf("error %v", err)
			}
		})
	}
}
