package trace

import (
	"fmt"

	"github.com/sluice-dev/sluice/internal/traceparent"
)

// span is a finished span as plain data. Times are Unix nanoseconds. It does not change once it is in the queue, and its
// lists may be shared with other spans.
type span struct {
	name         string
	trace        traceparent.TraceID
	id           traceparent.SpanID
	state        string             // tracestate of the trace
	parent       traceparent.SpanID // zero: none
	parentRemote bool               // another process made it
	start, end   int64              // start <= end

	link       traceparent.SpanID // of the same trace; zero: none
	linkRemote bool               // another process made it

	attributes [2][]attribute // one after the other; the first is shared by the spans of a thread
	events     []event
	failure    string // not empty: the status is an error, with this description
}

// event is something that happened at a moment.
type event struct {
	name string
	at   int64

	// Of a batch, when mode is not empty: its number, its requests, and what it does.
	batch int64
	size  int
	mode  string
}

// attributes gives what describes the event; the number of a batch is shown in 8 hexadecimal digits.
func (e event) attributes() []attribute {
	if e.mode == "" {
		return nil
	}
	return []attribute{text("bid", fmt.Sprintf("%08x", uint32(e.batch))), integer("batch_size", int64(e.size)), text("forward_mode", e.mode)}
}

// kind is the type of an attribute's value.
type kind uint8

const (
	kindText kind = iota
	kindInteger
	kindNumber
)

// attribute is a key with a value of one kind.
type attribute struct {
	key     string
	kind    kind
	text    string
	integer int64
	number  float64
}

func text(key, value string) attribute { return attribute{key: key, kind: kindText, text: value} }

func integer(key string, value int64) attribute {
	return attribute{key: key, kind: kindInteger, integer: value}
}

func number(key string, value float64) attribute {
	return attribute{key: key, kind: kindNumber, number: value}
}
