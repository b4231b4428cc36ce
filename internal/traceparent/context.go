package traceparent

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"strings"
)

// The names of the headers.
const (
	Header      = "Traceparent"
	StateHeader = "Tracestate"
)

// TraceID names a trace. Zero is none.
type TraceID [16]byte

// SpanID names a span of a trace. Zero is none.
type SpanID [8]byte

// String gives 32 hexadecimal digits.
func (t TraceID) String() string { return hex.EncodeToString(t[:]) }

// String gives 16 hexadecimal digits.
func (s SpanID) String() string { return hex.EncodeToString(s[:]) }

// Context is a span that others may have for a parent. The zero value is none.
type Context struct {
	TraceID TraceID
	SpanID  SpanID
	Sampled bool   // who made the span records it, and asks others to do the same
	State   string // tracestate, at most maxStateBytes; empty: none
}

const (
	textBytes     = 55  // of version 00: 2 + 32 + 16 + 2 digits and 3 dashes
	maxStateBytes = 512 // that everybody must hand on; a longer one is dropped
	sampledFlag   = 1
)

// Valid reports whether the context names a span.
func (c Context) Valid() bool { return c.TraceID != TraceID{} && c.SpanID != SpanID{} }

// String gives the value of traceparent.
func (c Context) String() string {
	b := make([]byte, 0, textBytes)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, c.TraceID[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, c.SpanID[:])
	if c.Sampled {
		return string(append(b, "-01"...))
	}
	return string(append(b, "-00"...))
}

// Parse reads the two values; ok is false for a parent that the specification refuses, and then there is no state either. A
// state that is no text of at most 512 bytes is left out.
func Parse(parent, state string) (c Context, ok bool) {
	parent = strings.TrimSpace(parent)
	if len(parent) < textBytes || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' {
		return Context{}, false
	}
	var version, flags [1]byte
	for _, part := range []struct {
		to   []byte
		text string
	}{{version[:], parent[:2]}, {c.TraceID[:], parent[3:35]}, {c.SpanID[:], parent[36:52]}, {flags[:], parent[53:55]}} {
		if strings.ContainsFunc(part.text, func(r rune) bool { return r >= 'A' && r <= 'F' }) {
			return Context{}, false
		}
		if _, err := hex.Decode(part.to, []byte(part.text)); err != nil {
			return Context{}, false
		}
	}
	switch rest := parent[textBytes:]; {
	case version[0] == 0xff, version[0] == 0 && rest != "", rest != "" && rest[0] != '-', !c.Valid():
		return Context{}, false
	}
	c.Sampled = flags[0]&sampledFlag != 0
	if state = strings.TrimSpace(state); len(state) <= maxStateBytes && printable(state) {
		c.State = state
	}
	return c, true
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// FromHeader reads a request's headers. Several traceparents are as bad as none; several tracestates are one list.
func FromHeader(h http.Header) (c Context, ok bool) {
	if len(h[Header]) != 1 {
		return Context{}, false
	}
	return Parse(h[Header][0], strings.Join(h[StateHeader], ","))
}

// Set writes the headers of a context, and nothing of one before it stays.
func (c Context) Set(h http.Header) {
	h[Header] = []string{c.String()}
	delete(h, StateHeader)
	if c.State != "" {
		h[StateHeader] = []string{c.State}
	}
}

// New makes a context of a new trace, sampled, with a parent that nobody has recorded.
func New() Context { return Context{TraceID: NewTraceID(), SpanID: NewSpanID(), Sampled: true} }

// NewTraceID gives 128 random bits, not all zero. Safe for concurrent use.
func NewTraceID() (t TraceID) {
	for t == (TraceID{}) {
		binary.BigEndian.PutUint64(t[:8], rand.Uint64())
		binary.BigEndian.PutUint64(t[8:], rand.Uint64())
	}
	return t
}

// NewSpanID gives 64 random bits, not all zero. Safe for concurrent use.
func NewSpanID() (s SpanID) {
	for s == (SpanID{}) {
		binary.BigEndian.PutUint64(s[:], rand.Uint64())
	}
	return s
}
