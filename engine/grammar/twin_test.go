package grammar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"
)

// The naive twins: Brzozowski's derivatives for expressions, and one token after the other for masks.

// derive gives what re admits after r, nil when that is nothing. Expressions have no anchors.
func derive(re *syntax.Regexp, r rune) *syntax.Regexp {
	alternate := func(subs ...*syntax.Regexp) *syntax.Regexp {
		var some []*syntax.Regexp
		for _, s := range subs {
			if s != nil {
				some = append(some, s)
			}
		}
		if some == nil {
			return nil
		}
		return &syntax.Regexp{Op: syntax.OpAlternate, Sub: some}
	}
	concat := func(first *syntax.Regexp, rest ...*syntax.Regexp) *syntax.Regexp {
		if first == nil {
			return nil
		}
		return &syntax.Regexp{Op: syntax.OpConcat, Sub: append([]*syntax.Regexp{first}, rest...)}
	}
	if least, most, ok := bounds(re); ok {
		if most == 0 {
			return nil
		}
		rest := &syntax.Regexp{Op: syntax.OpRepeat, Sub: re.Sub, Min: max(least-1, 0), Max: most - 1}
		if most < 0 {
			rest.Max = -1
		}
		return concat(derive(re.Sub[0], r), rest)
	}
	switch re.Op {
	case syntax.OpLiteral:
		if re.Rune[0] != r {
			return nil
		}
		return &syntax.Regexp{Op: syntax.OpLiteral, Rune: re.Rune[1:]}
	case syntax.OpCharClass:
		if pairs(re.Rune).has(r) {
			return &syntax.Regexp{Op: syntax.OpEmptyMatch}
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return &syntax.Regexp{Op: syntax.OpEmptyMatch}
	case syntax.OpCapture:
		return derive(re.Sub[0], r)
	case syntax.OpAlternate:
		var subs []*syntax.Regexp
		for _, s := range re.Sub {
			subs = append(subs, derive(s, r))
		}
		return alternate(subs...)
	case syntax.OpConcat:
		var subs []*syntax.Regexp
		for i, s := range re.Sub {
			subs = append(subs, concat(derive(s, r), re.Sub[i+1:]...))
			if !nullableTwin(s) {
				break
			}
		}
		return alternate(subs...)
	}
	return nil
}

func nullableTwin(re *syntax.Regexp) bool {
	if re.Op == syntax.OpLiteral {
		return len(re.Rune) == 0
	}
	if least, _, ok := bounds(re); ok {
		return least == 0 || nullableTwin(re.Sub[0])
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
		return true
	case syntax.OpCapture:
		return nullableTwin(re.Sub[0])
	case syntax.OpConcat:
		for _, s := range re.Sub {
			if !nullableTwin(s) {
				return false
			}
		}
		return true
	case syntax.OpAlternate:
		for _, s := range re.Sub {
			if nullableTwin(s) {
				return true
			}
		}
	}
	return false
}

// normalTwin strips literals that are used up, on which derive must not be called.
func normalTwin(re *syntax.Regexp) *syntax.Regexp {
	if re.Op == syntax.OpLiteral && len(re.Rune) == 0 {
		return &syntax.Regexp{Op: syntax.OpEmptyMatch}
	}
	copied := *re
	copied.Sub = nil
	for _, s := range re.Sub {
		copied.Sub = append(copied.Sub, normalTwin(s))
	}
	return &copied
}

// randomRegex gives an expression over a, b and c.
func randomRegex(r *rand.Rand, depth int) string {
	if depth == 0 {
		return []string{"a", "b", "c", "ab", "[ab]", "[^a]", "ca", ""}[r.IntN(8)]
	}
	sub := func() string { return randomRegex(r, depth-1-r.IntN(depth)) }
	switch r.IntN(7) {
	case 0:
		return sub() + "|" + sub()
	case 1:
		return "(?:" + sub() + ")*"
	case 2:
		return "(?:" + sub() + ")+"
	case 3:
		return "(?:" + sub() + ")?"
	case 4:
		least := r.IntN(3)
		return fmt.Sprintf("(?:%s){%d,%d}", sub(), least, least+r.IntN(3))
	case 5:
		return fmt.Sprintf("(?:%s){%d,}", sub(), r.IntN(4))
	}
	return "(?:" + sub() + ")(?:" + sub() + ")"
}

func TestRegexIsAsItsTwin(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := newTestCompiler(t, letters(), Config{})
	for range 2000 {
		source := randomRegex(r, 1+r.IntN(4))
		re, err := syntax.Parse(source, syntax.Perl)
		if err != nil {
			continue // a repeat of too many repeats
		}
		g, err := c.Compile(context.Background(), Spec{Regex, source})
		if err != nil {
			if strings.Contains(err.Error(), "nothing can satisfy") {
				continue
			}
			t.Fatalf("%s: %v", source, err)
		}
		twin, m, text := re, g.Matcher(), ""
		for range 12 {
			if m.CanEnd() != nullableTwin(twin) {
				t.Fatalf("%s after %q: can end is %v", source, text, m.CanEnd())
			}
			mask := make([]uint64, g.Words())
			if err := m.Mask(mask); err != nil {
				t.Fatalf("%s after %q: %v", source, text, err)
			}
			var next []rune
			for _, x := range "abcd" {
				after := derive(normalTwin(twin), x)
				allowed := mask[x>>6]>>(x&63)&1 == 1
				if (after != nil) != allowed {
					t.Fatalf("%s after %q: %c allowed is %v", source, text, x, allowed)
				}
				if allowed {
					next = append(next, x)
				}
			}
			if m.Done() != (len(next) == 0 && m.CanEnd()) && !strings.Contains(source, "^") {
				t.Fatalf("%s after %q: done is %v", source, text, m.Done())
			}
			if len(next) == 0 {
				break
			}
			x := next[r.IntN(len(next))]
			if err := m.Accept(x); err != nil {
				t.Fatalf("%s after %q: %v", source, text, err)
			}
			text += string(x)
			twin = normalTwin(derive(normalTwin(twin), x))
			if len(twin.String()) > 3000 {
				break // derivatives grow
			}
		}
	}
}

// randomVocabulary has all bytes and cuts of sample.
func randomVocabulary(r *rand.Rand, sample string) Vocabulary {
	var more []string
	for range r.IntN(300) {
		from := r.IntN(len(sample))
		more = append(more, sample[from:min(len(sample), from+1+r.IntN(8))])
	}
	return letters(more...)
}

const sampleText = "{\"a\": 1, \"b\": [true, false, null], \"name\":\"x\\\"y\\u00e9é€\\n\"}, {\n  \"key\": -12.5e+3,\n  \"a\":[[],[1,2]]\n}]}\",\"ab\":\"abcabc\"}aabbccabcabcabcabcab"

// TestMaskIsAsItsTwin walks at random through random grammars over random vocabularies, and compares each mask with
// what trying every token gives. The automaton forgets often.
func TestMaskIsAsItsTwin(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	unwanted, cancel := context.WithCancel(context.Background())
	cancel()
	for range 300 {
		v := randomVocabulary(r, sampleText)
		config := Config{KeepBytes: []int{1, 20_000, 1 << 20}[r.IntN(3)]}
		c := newTestCompiler(t, v, config)
		spec := Spec{Regex, randomRegex(r, 1+r.IntN(5))}
		if r.IntN(2) == 0 {
			spec = Spec{JSONSchema, randomSchema(r, 3)}
		}
		g, err := c.Compile(context.Background(), spec)
		if err != nil {
			if strings.Contains(err.Error(), "nothing can satisfy") || strings.Contains(err.Error(), "repeat count") {
				continue
			}
			t.Fatalf("%v: %v", spec, err)
		}
		m := g.Matcher()
		var text []byte
		for range 30 {
			mask := make([]uint64, g.Words()+1)
			if err := m.Mask(mask); err != nil {
				t.Fatalf("%v after %q: %v", spec, text, err)
			}
			var allowed []int32
			for id := range int32(len(v.Tokens)) {
				err := m.Clone().Accept(id)
				got := mask[id>>6]>>(id&63)&1 == 1
				if (err == nil) != got {
					t.Fatalf("%v after %q: token %d %q allowed is %v, accept gives %v", spec, text, id, v.Tokens[id], got, err)
				}
				if got {
					allowed = append(allowed, id)
				}
			}
			id := allowed[r.IntN(len(allowed))]
			tried, quick := m.Clone(), make([]uint64, g.Words()+1)
			ok, err := tried.Try(id, quick)
			if err != nil {
				t.Fatalf("%v after %q: try token %d: %v", spec, text, id, err)
			}
			if !ok { // it is where it was
				gaveUp := tried.Follow(unwanted, id, quick)
				if gaveUp != nil && !errors.Is(gaveUp, context.Canceled) {
					t.Fatalf("%v after %q: follow token %d: %v", spec, text, id, gaveUp)
				}
				if gaveUp != nil { // likewise
					if err := tried.Follow(context.Background(), id, quick); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := m.Accept(id); err != nil {
				t.Fatal(err)
			}
			if tried.Done() != m.Done() || tried.CanEnd() != m.CanEnd() {
				t.Fatalf("%v after %q and token %d: done is %v, after a try %v", spec, text, id, m.Done(), tried.Done())
			}
			if !m.Done() {
				if err := m.Mask(mask); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(mask, quick) {
					t.Fatalf("%v after %q and token %d: a try (enough: %t) masks others", spec, text, id, ok)
				}
			}
			if id == v.End[0] {
				break
			}
			text = append(text, v.Tokens[id]...)
		}
	}
}

// randomSchema gives a schema that some value satisfies, most of the time.
func randomSchema(r *rand.Rand, depth int) string {
	return string(must(json.Marshal(randomNode(r, depth))))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func randomNode(r *rand.Rand, depth int) map[string]any {
	n := 7
	if depth > 0 {
		n = 12
	}
	s := map[string]any{}
	switch r.IntN(n) {
	case 0:
		s["type"] = "string"
		if r.IntN(2) == 0 {
			s["minLength"] = r.IntN(4)
		}
		if r.IntN(2) == 0 {
			s["maxLength"] = 3 + r.IntN(40)
		}
	case 1:
		s["type"] = "string"
		s["pattern"] = []string{`^a+b$`, `[a-z]{2,5}`, `"\\\n`, `(ab|c){20,50}`, `é*x`}[r.IntN(5)]
	case 2:
		s["type"] = "integer"
		if r.IntN(2) == 0 {
			s["minimum"] = r.IntN(2000) - 1000
		}
		if r.IntN(2) == 0 {
			s["maximum"] = 1000 + r.IntN(2000)
		}
	case 3:
		s["type"] = "number"
		if r.IntN(2) == 0 {
			s["minimum"] = float64(r.IntN(2000))/100 - 10
		}
		if r.IntN(2) == 0 {
			s["exclusiveMaximum"] = 10 + float64(r.IntN(2000))/100
		}
	case 4:
		s["enum"] = []any{"a", "ab", "abc", 1, nil, true, []any{1, "x"}}[:1+r.IntN(7)]
	case 5:
		s["type"] = []string{"boolean", "null"}
	case 6:
		s["type"] = "string"
		s["format"] = []string{"date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "duration", "hostname", "uri"}[r.IntN(10)]
	case 7, 8:
		s["type"] = "object"
		properties := map[string]any{}
		var required []string
		for range r.IntN(4) {
			name := []string{"a", "b", "ab", "na\"me", "é", "key"}[r.IntN(6)]
			properties[name] = randomNode(r, depth-1)
			if r.IntN(2) == 0 {
				required = append(required, name)
			}
		}
		if len(properties) > 0 || r.IntN(2) == 0 {
			s["properties"] = properties
		}
		if required != nil {
			s["required"] = required
		}
		if r.IntN(3) == 0 {
			s["additionalProperties"] = randomNode(r, depth-1)
		}
	case 9, 10:
		s["type"] = "array"
		s["items"] = randomNode(r, depth-1)
		if r.IntN(2) == 0 {
			s["minItems"] = r.IntN(3)
		}
		if r.IntN(2) == 0 {
			s["maxItems"] = 2 + r.IntN(3)
		}
		if r.IntN(3) == 0 {
			s["prefixItems"] = []any{randomNode(r, depth-1), randomNode(r, depth-1)}
		}
	case 11:
		s["anyOf"] = []any{randomNode(r, depth-1), randomNode(r, depth-1)}
	}
	return s
}

// TestFollowGivesUp: a mask that takes long ends when nobody wants it any more, and what it found out until then harms nobody.
func TestFollowGivesUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	var words []string
	for range 5000 {
		word := make([]byte, 2+r.IntN(8))
		for i := range word {
			word[i] = "abcd"[r.IntN(4)]
		}
		words = append(words, string(word))
	}
	v := letters(words...)
	c := newTestCompiler(t, v, Config{})
	g, err := c.Compile(context.Background(), Spec{Regex, `(.*a.{20}|.*b.{15}|.*c.{12})*`})
	if err != nil {
		t.Fatal(err)
	}
	unwanted, cancel := context.WithCancel(context.Background())
	cancel()
	m, mask, want := g.Matcher(), make([]uint64, g.Words()), make([]uint64, g.Words())
	gaveUp := 0
	for range 20 {
		const token = 'a'
		switch err := m.Clone().Follow(unwanted, token, mask); {
		case errors.Is(err, context.Canceled):
			gaveUp++
		case err != nil:
			t.Fatal(err)
		}
		twin := m.Clone()
		if err := m.Follow(context.Background(), token, mask); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(twin.Accept(token), twin.Mask(want)); err != nil || !slices.Equal(mask, want) {
			t.Fatalf("%v, or another mask", err)
		}
	}
	if gaveUp == 0 {
		t.Error("no mask ended early")
	}
}
