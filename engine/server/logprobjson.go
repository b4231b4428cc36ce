package server

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Answers with logprobs can be hundreds of megabytes of short entries. Each list of entries is written here as a whole,
// by appending, in the bytes that encoding/json writes for the same values.

// appendLogprob appends a logprob.
func appendLogprob(b []byte, value float32) []byte {
	form := byte('f')
	if size := float32(math.Abs(float64(value))); size != 0 && (size < 1e-6 || size >= 1e21) {
		form = 'e'
	}
	b = strconv.AppendFloat(b, float64(value), form, -1, 32)
	if n := len(b); form == 'e' && n >= 4 && b[n-4] == 'e' && b[n-3] == '-' && b[n-2] == '0' { // e-09 is e-9
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b
}

// checkLogprob refuses what JSON has no number for; logprob leaves +Inf alone, which is none.
func checkLogprob(value float32) error {
	if math.IsInf(float64(value), 0) || value != value {
		return fmt.Errorf("a logprob is %v, which is no probability's", value)
	}
	return nil
}

// appendText appends a string.
func appendText(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(text) // of a string there is no error
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"')
}

// appendList appends an array; a nil one is null.
func appendList[T any](b []byte, list []T, one func(b []byte, value T) []byte) []byte {
	if list == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, value := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, value)
	}
	return append(b, ']')
}

// nativeLogprob is written as [logprob, token id, text].
type nativeLogprob struct {
	token   int32
	unknown bool // the logprob is null
	named   bool // text is not null: return_text_in_logprobs
	logprob float32
	text    string
}

func (l nativeLogprob) append(b []byte) []byte {
	b = append(b, '[')
	if l.unknown {
		b = append(b, "null"...)
	} else {
		b = appendLogprob(b, l.logprob)
	}
	b = append(b, ',')
	b = strconv.AppendInt(b, int64(l.token), 10)
	b = append(b, ',')
	if l.named {
		b = appendText(b, l.text)
	} else {
		b = append(b, "null"...)
	}
	return append(b, ']')
}

// nativeList is what is known of some tokens; nil is null.
type nativeList []nativeLogprob

// entryBytes is about what an entry of most lists takes.
const entryBytes = 32

func (l nativeList) append(b []byte) []byte { return appendList(b, l, nativeBytes) }

func nativeBytes(b []byte, one nativeLogprob) []byte { return one.append(b) }

func (l nativeList) check() error {
	for _, one := range l {
		if err := checkLogprob(one.logprob); err != nil {
			return err
		}
	}
	return nil
}

func (l nativeList) size() int { return entryBytes*len(l) + 8 }

// MarshalJSON writes the list.
func (l nativeList) MarshalJSON() ([]byte, error) { return marshal(l) }

// nativeRows has a list for each position.
type nativeRows []nativeList

func (r nativeRows) append(b []byte) []byte {
	return appendList(b, r, func(b []byte, l nativeList) []byte { return l.append(b) })
}

func (r nativeRows) check() error {
	for _, l := range r {
		if err := l.check(); err != nil {
			return err
		}
	}
	return nil
}

func (r nativeRows) size() int {
	size := 8
	for _, l := range r {
		size += l.size()
	}
	return size
}

// MarshalJSON writes the lists.
func (r nativeRows) MarshalJSON() ([]byte, error) { return marshal(r) }

// namedLogprob is a token by its name.
type namedLogprob struct {
	name    string
	logprob float32
}

// topLogprobs is written as an object by name; nil is null.
type topLogprobs []namedLogprob

// newTopLogprobs gives the object of some tokens, of which the first of the same name stays.
func newTopLogprobs(list []namedLogprob) topLogprobs {
	slices.SortStableFunc(list, func(a, b namedLogprob) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(list, func(a, b namedLogprob) bool { return a.name == b.name })
}

func (l topLogprobs) append(b []byte) []byte {
	if l == nil {
		return append(b, "null"...)
	}
	b = append(b, '{')
	for i, one := range l {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, one.name)
		b = append(b, ':')
		b = appendLogprob(b, one.logprob)
	}
	return append(b, '}')
}

func (l completionLogprobs) check() error {
	for _, value := range l.TokenLogprobs {
		if value != nil {
			if err := checkLogprob(*value); err != nil {
				return err
			}
		}
	}
	for _, tops := range l.TopLogprobs {
		for _, one := range tops {
			if err := checkLogprob(one.logprob); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l completionLogprobs) size() int {
	size := 128 + entryBytes*len(l.Tokens)
	for _, tops := range l.TopLogprobs {
		size += entryBytes * len(tops)
	}
	return size
}

func (l completionLogprobs) append(b []byte) []byte {
	b = append(b, `{"text_offset":`...)
	b = appendList(b, l.TextOffset, func(b []byte, at int) []byte { return strconv.AppendInt(b, int64(at), 10) })
	b = append(b, `,"token_logprobs":`...)
	b = appendList(b, l.TokenLogprobs, func(b []byte, value *float32) []byte {
		if value == nil {
			return append(b, "null"...)
		}
		return appendLogprob(b, *value)
	})
	b = append(b, `,"tokens":`...)
	b = appendList(b, l.Tokens, appendText)
	b = append(b, `,"top_logprobs":`...)
	b = appendList(b, l.TopLogprobs, func(b []byte, tops topLogprobs) []byte { return tops.append(b) })
	return append(b, '}')
}

// MarshalJSON writes the parallel lists.
func (l completionLogprobs) MarshalJSON() ([]byte, error) { return marshal(l) }

// append appends the fields, without braces.
func (l chatTopLogprob) append(b []byte) []byte {
	b = append(b, `"token":`...)
	b = appendText(b, l.Token)
	b = append(b, `,"bytes":[`...)
	for i := range len(l.Bytes) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(l.Bytes[i]), 10)
	}
	b = append(b, `],"logprob":`...)
	return appendLogprob(b, l.Logprob)
}

func (l chatLogprobs) check() error {
	for _, one := range l.Content {
		if err := checkLogprob(one.Logprob); err != nil {
			return err
		}
		for _, top := range one.TopLogprobs {
			if err := checkLogprob(top.Logprob); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l chatLogprobs) size() int {
	entries := len(l.Content)
	for _, one := range l.Content {
		entries += len(one.TopLogprobs)
	}
	return 64 + 2*entryBytes*entries
}

// append appends the answer's tokens; there is no refusal.
func (l chatLogprobs) append(b []byte) []byte {
	b = append(b, `{"content":`...)
	b = appendList(b, l.Content, func(b []byte, one chatTokenLogprob) []byte {
		b = one.append(append(b, '{'))
		b = append(b, `,"top_logprobs":`...)
		b = appendList(b, one.TopLogprobs, func(b []byte, top chatTopLogprob) []byte { return append(top.append(append(b, '{')), '}') })
		return append(b, '}')
	})
	return append(b, `,"refusal":null}`...)
}

// MarshalJSON writes the object.
func (l chatLogprobs) MarshalJSON() ([]byte, error) { return marshal(l) }

// marshal writes a value that appends itself.
func marshal(l interface {
	check() error
	size() int
	append(b []byte) []byte
}) ([]byte, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	return l.append(make([]byte, 0, l.size())), nil
}
