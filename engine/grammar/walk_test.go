package grammar

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/mail"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// satisfies is an independent reading of schemas, on what encoding/json makes of the text.
func satisfies(s map[string]any, v any) error {
	if all, ok := s["anyOf"].([]any); ok {
		var err error
		for _, one := range all {
			if err = satisfies(one.(map[string]any), v); err == nil {
				return nil
			}
		}
		return err
	}
	if enum, ok := s["enum"].([]any); ok {
		for _, one := range enum {
			if string(must(json.Marshal(one))) == string(must(json.Marshal(v))) {
				return nil
			}
		}
		return fmt.Errorf("%v is not in %v", v, enum)
	}
	names, ok := s["type"].([]any)
	if !ok {
		names = []any{s["type"]}
	}
	var err error
	for _, name := range names {
		if err = satisfiesType(s, name, v); err == nil {
			return nil
		}
	}
	return err
}

func number(s map[string]any, name string, otherwise float64) float64 {
	if f, ok := s[name].(float64); ok {
		return f
	}
	return otherwise
}

func satisfiesType(s map[string]any, name, v any) error {
	between := func(n int, least, most string) error {
		if float64(n) < number(s, least, 0) || float64(n) > number(s, most, 1e18) {
			return fmt.Errorf("%v has %d, want %s %v, %s %v", v, n, least, s[least], most, s[most])
		}
		return nil
	}
	switch v := v.(type) {
	case nil:
		if name == "null" {
			return nil
		}
	case bool:
		if name == "boolean" {
			return nil
		}
	case float64:
		if name == "integer" && v != float64(int64(v)) || name != "integer" && name != "number" {
			break
		}
		if v < number(s, "minimum", -1e300) || v > number(s, "maximum", 1e300) || v >= number(s, "exclusiveMaximum", 1e300) {
			return fmt.Errorf("%v is not within %v", v, s)
		}
		return nil
	case string:
		if name != "string" {
			break
		}
		if p, ok := s["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(v) {
			return fmt.Errorf("%q does not match %s", v, p)
		}
		if f, ok := s["format"].(string); ok {
			return satisfiesFormat(f, v)
		}
		return between(utf8.RuneCountInString(v), "minLength", "maxLength")
	case []any:
		if name != "array" {
			break
		}
		prefix, _ := s["prefixItems"].([]any)
		for i, item := range v {
			schema := s["items"]
			if i < len(prefix) {
				schema = prefix[i]
			}
			if err := satisfies(schema.(map[string]any), item); err != nil {
				return err
			}
		}
		return between(len(v), "minItems", "maxItems")
	case map[string]any:
		if name != "object" {
			break
		}
		properties, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, r := range required {
			if _, ok := v[r.(string)]; !ok {
				return fmt.Errorf("%v lacks %v", v, r)
			}
		}
		for k, item := range v {
			schema, ok := properties[k]
			if !ok {
				schema, ok = s["additionalProperties"]
			}
			if !ok && properties != nil {
				return fmt.Errorf("%q should not be in %v", k, v)
			}
			if ok {
				if err := satisfies(schema.(map[string]any), item); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return fmt.Errorf("%v is no %v", v, name)
}

func satisfiesFormat(format, v string) error {
	var err error
	switch format {
	case "date":
		_, err = time.Parse(time.DateOnly, v)
	case "time":
		_, err = time.Parse("15:04:05.999999999Z07:00", v)
	case "date-time":
		_, err = time.Parse(time.RFC3339Nano, v)
	case "ipv4", "ipv6":
		_, err = netip.ParseAddr(v)
	case "email":
		_, err = mail.ParseAddress(v)
	case "uuid":
		if _, err = hex.DecodeString(strings.ReplaceAll(v, "-", "")); err == nil && len(v) != 36 {
			err = fmt.Errorf("%q is no UUID", v)
		}
	case "duration":
		if len(v) < 3 || v[0] != 'P' {
			err = fmt.Errorf("%q is no duration", v)
		}
	}
	return err
}

// TestWalksSatisfy: every text that comes out of random walks decodes and satisfies its schema; no name comes twice.
func TestWalksSatisfy(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	texts := 0
	for range 400 {
		v := randomVocabulary(r, sampleText)
		c := newTestCompiler(t, v, Config{Whitespace: []string{"", NoWhitespace, `[ \t\r\n]*`}[r.IntN(3)]})
		source := randomSchema(r, 3)
		g, err := c.Compile(context.Background(), Spec{JSONSchema, source})
		if err != nil {
			if strings.Contains(err.Error(), "nothing can satisfy") {
				continue
			}
			t.Fatalf("%s: %v", source, err)
		}
		var schema map[string]any
		if err := json.Unmarshal([]byte(source), &schema); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			text, ok := walk(t, r, &v, g)
			if !ok {
				continue
			}
			texts++
			var got any
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatalf("%s gives %s: %v", source, text, err)
			}
			if err := satisfies(schema, got); err != nil {
				t.Fatalf("%s gives %s: %v", source, text, err)
			}
		}
	}
	if texts < 300 {
		t.Errorf("only %d walks came to an end", texts)
	}
}

// walk follows the masks at random until the text ends, in favour of what ends it. ok is false when it got too long.
func walk(t *testing.T, r *rand.Rand, v *Vocabulary, g *Grammar) (text []byte, ok bool) {
	m, mask := g.Matcher(), make([]uint64, g.Words())
	for range 3000 {
		if err := m.Mask(mask); err != nil {
			t.Fatalf("after %q: %v", text, err)
		}
		if m.CanEnd() != (mask[v.End[0]>>6]>>(v.End[0]&63)&1 == 1) {
			t.Fatalf("after %q: can end is %v", text, m.CanEnd())
		}
		if m.CanEnd() && r.IntN(2) == 0 || m.Done() {
			if err := m.Accept(v.End[0]); err != nil || !m.Done() {
				t.Fatal(err)
			}
			return text, true
		}
		var allowed []int32
		for id := range v.End[0] {
			if mask[id>>6]>>(id&63)&1 == 1 {
				allowed = append(allowed, id)
			}
		}
		id := allowed[r.IntN(len(allowed))]
		for _, closer := range `"]},` {
			if r.IntN(3) == 0 && mask[closer>>6]>>(closer&63)&1 == 1 {
				id = closer
			}
		}
		if err := m.Accept(id); err != nil {
			t.Fatal(err)
		}
		text = append(text, v.Tokens[id]...)
	}
	return text, false
}

// TestRegexWalksMatch: the same of expressions, with regexp as the judge.
func TestRegexWalksMatch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	v := randomVocabulary(r, sampleText)
	c := newTestCompiler(t, v, Config{})
	for _, source := range []string{
		`(?i)[a-cß]{1,9}é+|x`, `\p{Greek}{2,4}(\d+|\W)`, `(?s:.){0,70}end`, `[[:^alpha:]]{3}`, `(foo|bar(baz)?)(,(foo|bar(baz)?)){0,30}`, `\x{1F600}?[^\x00-\x{ffff}]`,
	} {
		g, err := c.Compile(context.Background(), Spec{Regex, source})
		if err != nil {
			t.Fatal(err)
		}
		want := regexp.MustCompile(`^(?:` + source + `)$`)
		for range 30 {
			if text, ok := walk(t, r, &v, g); ok && (!want.Match(text) || !utf8.Valid(text)) {
				t.Errorf("%s gives %q", source, text)
			}
		}
	}
}

// TestIntegerRangesAreExact: every integer around the bounds is in or out as it should be.
func TestIntegerRangesAreExact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := newTestCompiler(t, letters(), Config{})
	for range 300 {
		low := r.IntN(2400) - 1200
		high := low + r.IntN(1300)
		for _, kind := range []string{"integer", "number"} {
			g, err := c.Compile(context.Background(), Spec{JSONSchema, fmt.Sprintf(`{"type":%q,"minimum":%d,"maximum":%d}`, kind, low, high)})
			if err != nil {
				t.Fatal(err)
			}
			for n := -1300; n < 1300; n++ {
				whole, _ := admits(g, strconv.Itoa(n))
				if whole != (low <= n && n <= high) {
					t.Fatalf("%s from %d to %d: %d is %v", kind, low, high, n, whole)
				}
				if kind == "number" && n%37 == 0 {
					half := n >= 0 && low <= n && n < high || n < 0 && low < n && n <= high
					if whole, _ := admits(g, strconv.Itoa(n)+".50"); whole != half {
						t.Fatalf("from %d to %d: %d.50 is %v", low, high, n, whole)
					}
				}
			}
		}
	}
}

// TestCompilerShares: one build for all who ask at once, and a build that nobody waits for ends.
func TestCompilerShares(t *testing.T) {
	c := newTestCompiler(t, letters(), Config{})
	var wait sync.WaitGroup
	got := make([]*Grammar, 8)
	for i := range got {
		wait.Go(func() { got[i], _ = c.Compile(context.Background(), Spec{Regex, `a+`}) })
	}
	wait.Wait()
	for _, g := range got {
		if g == nil || g != got[0] {
			t.Fatal("who asks for the same gets another")
		}
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Compile(gone, Spec{JSONSchema, personSchema}); err != nil && !strings.Contains(err.Error(), "context canceled") {
		t.Error(err)
	}
	if _, err := c.Compile(context.Background(), Spec{JSONSchema, personSchema}); err != nil {
		t.Errorf("after one who left: %v", err)
	}
}

// TestMatchersAreIndependent: matchers of one grammar walk at once, while the grammar forgets all the time.
func TestMatchersAreIndependent(t *testing.T) {
	v := letters()
	c := newTestCompiler(t, v, Config{KeepBytes: 5000})
	g, err := c.Compile(context.Background(), Spec{JSONObject, "ignored"})
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for range 10 {
				if text, ok := walk(t, r, &v, g); ok && !json.Valid(text) {
					t.Errorf("%q is not JSON", text)
				}
			}
		})
	}
	wait.Wait()
}

// FuzzRegex: what compiles agrees with regexp on what it admits, and nothing panics or takes for ever.
func FuzzRegex(f *testing.F) {
	for _, s := range []string{`a+(b|c)*`, `(?i)x{2,5}`, `[^a-z]\d`, `(a?){3}`, `(?=a)`, `\p{L}`, `((((a*)*)*)*)*`, `^a$|^b`} {
		f.Add(s, "ab")
	}
	c := newTestCompiler(f, letters("ab", "aba"), Config{Limits: Limits{Nodes: 20_000, Work: 500_000, Configurations: 128, MaskWork: 500_000}})
	f.Fuzz(func(t *testing.T, source, text string) {
		g, err := c.compile(context.Background(), Spec{Regex, source})
		if err != nil {
			return
		}
		m, mask := g.Matcher(), make([]uint64, g.Words())
		for i := range len(text) {
			if m.Mask(mask) != nil {
				return
			}
			if err := m.Accept(int32(text[i])); err != nil {
				if mask[text[i]>>6]>>(text[i]&63)&1 == 1 && !strings.Contains(err.Error(), "ways to read") {
					t.Fatalf("%s allows %q after %q and then: %v", source, text[i], text[:i], err)
				}
				if want, err := regexp.MatchString(`^(?:`+source+`)$`, text); err == nil && want && utf8.ValidString(text) && mask[text[i]>>6]>>(text[i]&63)&1 == 0 {
					t.Fatalf("%s does not admit %q", source, text)
				}
				return
			}
		}
		if want, err := regexp.MatchString(`^(?:`+source+`)$`, text); err == nil && utf8.ValidString(text) && want != m.CanEnd() {
			t.Fatalf("%s: %q is %v", source, text, m.CanEnd())
		}
	})
}

// FuzzSchema: nothing panics or takes for ever, and what comes out is JSON.
func FuzzSchema(f *testing.F) {
	for _, s := range []string{
		personSchema, `{}`, `{"allOf":[{"$ref":"#"}]}`, `{"type":["string","null"],"maxLength":3}`, `{"enum":[1,"a",{"b":[]}]}`,
		`{"anyOf":[{"type":"integer","minimum":-5},{"type":"array","items":{"$ref":"#"}}]}`, `{"properties":{"a":{"pattern":"\\d+"}},"required":["a"]}`,
	} {
		f.Add(s, uint64(1))
	}
	v := letters(`{"`, `":`, `",`, `"}`)
	c := newTestCompiler(f, v, Config{Limits: Limits{Nodes: 20_000, Work: 500_000, Configurations: 128, MaskWork: 500_000, Merge: 20_000}})
	f.Fuzz(func(t *testing.T, source string, seed uint64) {
		g, err := c.compile(context.Background(), Spec{JSONSchema, source})
		if err != nil {
			return
		}
		r := rand.New(rand.NewPCG(seed, 0))
		m, mask := g.Matcher(), make([]uint64, g.Words())
		var text []byte
		for range 200 {
			if m.Mask(mask) != nil {
				return
			}
			if m.CanEnd() && !json.Valid(text) {
				t.Fatalf("%s gives %q", source, text)
			}
			var allowed []int32
			for id := range v.End[0] {
				if mask[id>>6]>>(id&63)&1 == 1 {
					allowed = append(allowed, id)
				}
			}
			if len(allowed) == 0 {
				return
			}
			id := allowed[r.IntN(len(allowed))]
			if m.Accept(id) != nil {
				return
			}
			text = append(text, v.Tokens[id]...)
		}
	})
}
