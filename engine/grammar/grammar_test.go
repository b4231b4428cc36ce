package grammar

import (
	"context"
	"testing"
)

// letters is a vocabulary of all bytes, some longer tokens, and the end token last.
func letters(more ...string) Vocabulary {
	var v Vocabulary
	for x := range 256 {
		v.Tokens = append(v.Tokens, []byte{byte(x)})
	}
	for _, s := range more {
		v.Tokens = append(v.Tokens, []byte(s))
	}
	v.Tokens = append(v.Tokens, nil)
	v.End = []int32{int32(len(v.Tokens) - 1)}
	return v
}

func newTestCompiler(t testing.TB, v Vocabulary, c Config) *Compiler {
	t.Helper()
	compiler, err := NewCompiler(v, c)
	if err != nil {
		t.Fatal(err)
	}
	return compiler
}

// admits reports whether the whole text is in the grammar, and whether it is the beginning of one.
func admits(g *Grammar, text string) (whole, beginning bool) {
	m := g.Matcher()
	for i := range len(text) {
		if m.Accept(int32(text[i])) != nil {
			return false, false
		}
	}
	return m.CanEnd(), true
}

func TestRegex(t *testing.T) {
	tests := []struct {
		name, source string
		yes, no      []string
	}{
		{"literal", `abc`, []string{"abc"}, []string{"", "ab", "abcd", "xabc"}},
		{"empty", ``, []string{""}, []string{"a"}},
		{"anchors at the edges", `^(?:a|^b)$`, []string{"a", "b"}, []string{"ab"}},
		{"fold", `(?i)straSSe`, []string{"STRASSE", "strasse"}, []string{"straße"}},
		{"fold beyond ASCII", `(?i)k`, []string{"k", "K", "\u212a"}, []string{"x"}},
		{"dot", `a.c`, []string{"abc", "aéc", "a\U0001f600c"}, []string{"a\nc", "a\xffc", "ac"}},
		{"dot of lines", `(?s)a.c`, []string{"a\nc"}, nil},
		{"class", `[^a-y]`, []string{"z", "é", "€"}, []string{"a", "y", "zz"}},
		{"property", `\p{Greek}+`, []string{"αβγ"}, []string{"abc", "α1"}},
		{"letters", `\p{L}{2,3}`, []string{"éa", "日本語"}, []string{"a", "日本語x", "12"}},
		{"digits", `\d{3}-\d{4}`, []string{"123-4567"}, []string{"12-4567", "123-45678"}},
		{"star of nullable", `(a*b*)*`, []string{"", "abba", "bbbb"}, []string{"c"}},
		{"bounds of nullable", `(a?){2,3}b`, []string{"b", "ab", "aaab"}, []string{"aaaab"}},
		{"counted", `(abc){20,30}`, nil, []string{"abc"}},
		{"long counts", `[a-z]{100,200}`, []string{string(make100('x', 100)), string(make100('y', 200))}, []string{string(make100('x', 99)), string(make100('x', 201))}},
		{"at least", `(ab|c){60,}`, []string{string(make100('c', 60)), string(make100('c', 99))}, []string{string(make100('c', 59))}},
		{"lazy", `a+?b??`, []string{"a", "aab"}, []string{"b"}},
		{"nested counts", `((ab){2}c){30,31}d`, nil, []string{"ababcd"}},
	}
	c := newTestCompiler(t, letters(), Config{})
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, err := c.Compile(context.Background(), Spec{Regex, test.source})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range test.yes {
				if whole, _ := admits(g, s); !whole {
					t.Errorf("%q is not admitted", s)
				}
			}
			for _, s := range test.no {
				if whole, _ := admits(g, s); whole {
					t.Errorf("%q is admitted", s)
				}
			}
		})
	}
}

func make100(x byte, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = x
	}
	return out
}

func TestSchema(t *testing.T) {
	tests := []struct {
		name, source string
		yes, no      []string
	}{
		{"anything", `{}`, []string{`1`, `"a"`, `null`, `[1, {"a":[]}]`, `{"a":{"b":[true,false]}}`}, []string{``, `{`, `[1,]`, `01`, `nul`}},
		{"string", `{"type":"string"}`, []string{`""`, `"é\u00e9\n\ud83d\ude00"`}, []string{`"`, `"\ud83d"`, `"\x"`, "\"\n\"", `1`}},
		{"lengths", `{"type":"string","minLength":2,"maxLength":3}`, []string{`"ab"`, `"日本語"`, `"\u0041\\x"`}, []string{`"a"`, `"abcd"`, `""`}},
		{"long", `{"type":"string","maxLength":100000}`, []string{`"abc"`}, nil},
		{"pattern", `{"type":"string","pattern":"^[a-c\"\\\\]+$"}`, []string{`"ab\"\\"`}, []string{`"d"`, `""`}},
		{"integer", `{"type":"integer"}`, []string{`0`, `-1`, `123`}, []string{`1.5`, `01`, `-`, `1e3`}},
		{"range", `{"type":"integer","minimum":-12,"maximum":107}`, []string{`-12`, `-1`, `0`, `9`, `99`, `107`}, []string{`-13`, `108`, `-0`, `200`, `1000`, `-100`}},
		{"open range", `{"type":"integer","exclusiveMinimum":9.5}`, []string{`10`, `99999`}, []string{`9`, `-10`, `0`}},
		{"number range", `{"type":"number","minimum":0.25,"exclusiveMaximum":1.5}`, []string{`0.25`, `0.3`, `1`, `1.0`, `1.49999`, `1.4`}, []string{`0.24`, `0`, `1.5`, `1.50`, `2`, `0.`, `-1`}},
		{"negative range", `{"type":"number","exclusiveMinimum":-1.5,"maximum":-0.5}`, []string{`-1`, `-0.5`, `-1.49`, `-0.50`}, []string{`-1.5`, `-0.4`, `-2`, `0`}},
		{"around zero", `{"type":"number","minimum":-0.5,"maximum":0.5}`, []string{`0`, `-0.5`, `0.5`, `-0.0`, `0.25`}, []string{`1`, `-1`, `0.51`}},
		{"enum", `{"enum":["a",1,null,{"x":[1,2]},"b\"c"]}`, []string{`"a"`, `1`, `null`, `{"x":[1,2]}`, `"b\"c"`}, []string{`"b"`, `2`}},
		{"enum of a type", `{"type":"string","enum":["a",1]}`, []string{`"a"`}, []string{`1`}},
		{"object", `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"}},"required":["a"]}`,
			[]string{`{"a":1}`, `{"a": 1, "b": true}`, "{\n  \"a\": 1,\n  \"b\": false\n}"}, []string{`{}`, `{"b":true}`, `{"b":true,"a":1}`, `{"a":1,"c":2}`, `{"a":1,}`, `{"a":1,"a":2}`}},
		{"all optional", `{"properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}}}`, []string{`{}`, `{"a":1}`, `{"b":2}`, `{"a":1,"c":3}`, `{"b":2,"c":3}`}, []string{`{,}`, `{"c":3,"a":1}`}},
		{"additional", `{"properties":{"a":{"const":1}},"additionalProperties":{"type":"integer"}}`, []string{`{}`, `{"b":2}`, `{"a":1,"ab":3,"c":4}`, `{"":1}`}, []string{`{"a":2}`, `{"b":"x"}`, `{"b":1,"a":1}`, `{"\u0061":1}`}},
		{"map", `{"type":"object","additionalProperties":{"type":"null"},"minProperties":1,"maxProperties":2}`, []string{`{"a":null}`, `{"a":null,"b":null}`}, []string{`{}`, `{"a":null,"b":null,"c":null}`}},
		{"names", `{"type":"object","propertyNames":{"pattern":"[a-z]+"},"additionalProperties":true}`, []string{`{}`, `{"ab":1}`}, []string{`{"A":1}`}},
		{"array", `{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3}`, []string{`[1]`, `[1,2, 3]`}, []string{`[]`, `[1,2,3,4]`, `["a"]`}},
		{"array without bounds", `{"type":"array","items":{"const":1}}`, []string{`[]`, `[1]`, `[1,1,1,1]`}, []string{`[1,]`}},
		{"empty array", `{"type":"array","maxItems":0}`, []string{`[]`}, []string{`[1]`}},
		{"tuple", `{"prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":1,"maxItems":4}`, []string{`[1]`, `[1,2]`, `[1,2,3]`, `[1,2,3,3]`}, []string{`[]`, `[2]`, `[1,3]`, `[1,2,3,3,3]`}},
		{"closed tuple", `{"prefixItems":[{"const":1}]}`, []string{`[]`, `[1]`}, []string{`[1,1]`}},
		{"any of", `{"anyOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},{"type":"object","properties":{"k":{"const":"b"},"y":{"type":"string"}},"required":["k","y"]}]}`,
			[]string{`{"k":"a","x":1}`, `{"k":"b","y":"z"}`}, []string{`{"k":"a","y":"z"}`}},
		{"any of with more", `{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`, []string{`{"a":1}`, `{"b":2}`, `{"a":1,"b":2}`}, []string{`{}`}},
		{"all of", `{"allOf":[{"type":"object","properties":{"a":{"minimum":2}},"required":["a"]},{"properties":{"a":{"type":"integer","maximum":4},"b":{}}}]}`, []string{`{"a":2}`, `{"a":4,"b":[]}`}, []string{`{"a":1}`, `{"a":5}`, `{}`}},
		{"types", `{"type":["string","null"]}`, []string{`"a"`, `null`}, []string{`1`}},
		{"recursion", `{"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/node"}`,
			[]string{`{"v":1,"next":null}`, `{"v":1,"next":{"v":2,"next":{"v":3,"next":null}}}`}, []string{`{"v":1}`, `{"v":1,"next":{}}`, `{"v":1,"next":{"v":2,"next":null}`}},
		{"root recursion", `{"type":"array","items":{"$ref":"#"}}`, []string{`[]`, `[[],[[]]]`}, []string{`[1]`, `[[]`}},
		{"unproductive branch", `{"anyOf":[{"type":"integer"},{"type":"object","properties":{"a":{"$ref":"#/anyOf/1"}},"required":["a"]}]}`, []string{`1`}, []string{`{`}},
		{"ref with more", `{"$defs":{"s":{"type":"string"}},"$ref":"#/$defs/s","maxLength":1}`, []string{`"a"`}, []string{`"ab"`}},
		{"date", `{"type":"string","format":"date"}`, []string{`"2024-02-28"`, `"1999-12-31"`}, []string{`"2024-02-30"`, `"2024-13-01"`, `"2024-1-1"`}},
		{"date-time", `{"type":"string","format":"date-time"}`, []string{`"2024-02-28T23:59:59Z"`, `"2024-02-28T23:59:59.123+01:00"`}, []string{`"2024-02-28 23:59:59Z"`, `"2024-02-28T24:00:00Z"`}},
		{"uuid", `{"type":"string","format":"uuid"}`, []string{`"123e4567-e89b-12d3-a456-426614174000"`}, []string{`"123e4567"`}},
		{"ipv4", `{"type":"string","format":"ipv4"}`, []string{`"0.0.0.0"`, `"255.1.22.199"`}, []string{`"256.1.1.1"`, `"1.1.1"`, `"01.1.1.1"`}},
		{"ipv6", `{"type":"string","format":"ipv6"}`, []string{`"::"`, `"::1"`, `"1:2:3:4:5:6:7:8"`, `"fe80::1:2"`}, []string{`":"`, `"1:2:3:4:5:6:7:8:9"`, `"1::2::3"`}},
		{"email", `{"type":"string","format":"email"}`, []string{`"a.b@c.org"`}, []string{`"a@b"`, `".a@b.cd"`}},
		{"duration", `{"type":"string","format":"duration"}`, []string{`"P1D"`, `"PT5M"`, `"P1Y2M3DT4H"`, `"P3W"`}, []string{`"P"`, `"PT"`, `"P1YT"`}},
		{"required and not named", `{"type":"object","required":["x"],"properties":{"a":{"const":1}}}`, []string{`{"a":1,"x":true}`, `{"x":[]}`}, []string{`{"a":1}`}},
	}
	c := newTestCompiler(t, letters(), Config{})
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, err := c.Compile(context.Background(), Spec{JSONSchema, test.source})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range test.yes {
				if whole, _ := admits(g, s); !whole {
					t.Errorf("%s is not admitted", s)
				}
			}
			for _, s := range test.no {
				if whole, _ := admits(g, s); whole {
					t.Errorf("%s is admitted", s)
				}
			}
		})
	}
}
