package traceparent

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	traceText = "0af7651916cd43dd8448eb211c80319c"
	spanText  = "b7ad6b7169203331"
)

var known = Context{
	TraceID: TraceID{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c},
	SpanID:  SpanID{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}, Sampled: true,
}

func TestParse(t *testing.T) {
	with := func(change func(*Context)) Context {
		c := known
		change(&c)
		return c
	}
	for _, tc := range []struct {
		name, reason  string
		parent, state string
		want          Context // zero: refused
	}{
		{"plain", "the usual form", "00-" + traceText + "-" + spanText + "-01", "", known},
		{"with state", "it is handed on", "00-" + traceText + "-" + spanText + "-01", "a=1,b=2", with(func(c *Context) { c.State = "a=1,b=2" })},
		{"not sampled", "the flag is 0", "00-" + traceText + "-" + spanText + "-00", "", with(func(c *Context) { c.Sampled = false })},
		{"other flags", "only the lowest bit is known", "00-" + traceText + "-" + spanText + "-03", "", known},
		{"spaces around", "header values may have them", " 00-" + traceText + "-" + spanText + "-01\t", " a=1 ", with(func(c *Context) { c.State = "a=1" })},
		{"later version", "its begin is read as version 00", "cc-" + traceText + "-" + spanText + "-01-what-comes", "", known},
		{"later version, glued", "what follows must be separated", "cc-" + traceText + "-" + spanText + "-01what", "", Context{}},
		{"version 00, longer", "it has nothing more", "00-" + traceText + "-" + spanText + "-01-more", "", Context{}},
		{"version ff", "it does not exist", "ff-" + traceText + "-" + spanText + "-01", "", Context{}},
		{"zero trace", "it names none", "00-" + strings.Repeat("0", 32) + "-" + spanText + "-01", "", Context{}},
		{"zero span", "it names none", "00-" + traceText + "-" + strings.Repeat("0", 16) + "-01", "", Context{}},
		{"capitals", "hexadecimal digits are lower case", "00-" + strings.ToUpper(traceText) + "-" + spanText + "-01", "", Context{}},
		{"no hexadecimal", "a letter too far", "00-" + strings.Replace(traceText, "a", "g", 1) + "-" + spanText + "-01", "", Context{}},
		{"short", "a part is missing", "00-" + traceText + "-" + spanText, "", Context{}},
		{"empty", "nothing was sent", "", "a=1", Context{}},
		{"state too long", "nobody has to hand it on", "00-" + traceText + "-" + spanText + "-01", strings.Repeat("a", 513), known},
		{"state of control characters", "no header could carry it", "00-" + traceText + "-" + spanText + "-01", "a=\x01", known},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := Parse(tc.parent, tc.state)
			if diff := cmp.Diff(tc.want, got); diff != "" || ok != tc.want.Valid() {
				t.Errorf("%s: ok is %t (-want +got)\n%s", tc.reason, ok, diff)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	c := known
	c.State = "a=1"
	h := http.Header{StateHeader: {"old=1"}}
	c.Set(h)
	if diff := cmp.Diff(http.Header{Header: {c.String()}, StateHeader: {"a=1"}}, h); diff != "" {
		t.Errorf("headers (-want +got)\n%s", diff)
	}
	if got, ok := FromHeader(h); !ok || got != c {
		t.Errorf("they read as %+v, %t", got, ok)
	}
	h[StateHeader] = []string{"a=1", "b=2"}
	if got, _ := FromHeader(h); got.State != "a=1,b=2" {
		t.Errorf("two states read as %q", got.State)
	}
	h[Header] = append(h[Header], h[Header][0])
	if got, ok := FromHeader(h); ok {
		t.Errorf("two parents read as %+v", got)
	}
	known.Set(h)
	if diff := cmp.Diff(http.Header{Header: {known.String()}}, h); diff != "" {
		t.Errorf("headers without a state (-want +got)\n%s", diff)
	}
}

func TestNew(t *testing.T) {
	seen := map[TraceID]bool{}
	upper := byte(0)
	for range 1000 {
		c := New()
		if !c.Valid() || !c.Sampled || seen[c.TraceID] {
			t.Fatalf("a new context is %+v, seen before: %t", c, seen[c.TraceID])
		}
		seen[c.TraceID] = true
		for _, b := range c.TraceID[:8] {
			upper |= b
		}
	}
	if upper != 0xff {
		t.Errorf("the upper half of the trace ids has only the bits %#x in 1000 of them", upper)
	}
}

// FuzzParse: what is read reads the same once it is written.
func FuzzParse(f *testing.F) {
	f.Add(known.String(), "a=1")
	f.Add("cc-"+traceText+"-"+spanText+"-01-x", "")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, parent, state string) {
		c, ok := Parse(parent, state)
		if ok != c.Valid() || !ok && c != (Context{}) {
			t.Fatalf("Parse(%q, %q) is %+v, %t", parent, state, c, ok)
		}
		if !ok {
			return
		}
		if again, ok := Parse(c.String(), c.State); !ok || again != c {
			t.Errorf("Parse(%q, %q) is %+v, and what it writes reads as %+v", parent, state, c, again)
		}
	})
}
