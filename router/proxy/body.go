package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// span is the half-open range [from, to) of a body.
type span struct{ from, to int }

// layout is where the members of a JSON object lie in its text.
type layout struct {
	open, end int    // of { and }
	members   []span // each from the key's quote to the end of the value
	keys      []span // each with its quotes
}

// objectLayout finds the members of the object that is body's only value. It checks just enough to know where each begins
// and ends; the values are for the engine to check.
func objectLayout(body []byte) (layout, error) {
	var l layout
	i := skipSpace(body, 0)
	if i == len(body) || body[i] != '{' {
		return l, errors.New("the body is not a JSON object")
	}
	l.open = i
	i = skipSpace(body, i+1)
	if i < len(body) && body[i] == '}' {
		l.end = i
		return l, onlySpace(body, i+1)
	}
	for {
		if i == len(body) || body[i] != '"' {
			return l, fmt.Errorf("the body is not valid JSON: a key in quotes is missing at byte %d", i)
		}
		key := span{from: i}
		var err error
		if i, err = skipString(body, i); err != nil {
			return l, err
		}
		key.to = i
		if i = skipSpace(body, i); i == len(body) || body[i] != ':' {
			return l, fmt.Errorf("the body is not valid JSON: a colon is missing at byte %d", i)
		}
		if i, err = skipValue(body, skipSpace(body, i+1)); err != nil {
			return l, err
		}
		l.keys = append(l.keys, key)
		l.members = append(l.members, span{key.from, i})
		if i = skipSpace(body, i); i == len(body) {
			return l, errors.New("the body is not valid JSON: it ends in the middle of an object")
		}
		switch body[i] {
		case ',':
			i = skipSpace(body, i+1)
		case '}':
			l.end = i
			return l, onlySpace(body, i+1)
		default:
			return l, fmt.Errorf("the body is not valid JSON: a comma or a brace is missing at byte %d", i)
		}
	}
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

func onlySpace(b []byte, i int) error {
	if i = skipSpace(b, i); i != len(b) {
		return fmt.Errorf("the body is not valid JSON: something follows the object at byte %d", i)
	}
	return nil
}

// skipString goes from the opening quote to behind the closing one.
func skipString(b []byte, i int) (int, error) {
	from, quote := i+1, -1 // quote is the first one at or after from, when it is not before
	for {
		if quote < from {
			n := -1
			if from < len(b) {
				n = bytes.IndexByte(b[from:], '"')
			}
			if n < 0 {
				return 0, fmt.Errorf("the body is not valid JSON: the string at byte %d does not end", i)
			}
			quote = from + n
		}
		escape := bytes.IndexByte(b[from:quote], '\\')
		if escape < 0 {
			return quote + 1, nil
		}
		from += escape + 2
	}
}

// skipValue goes behind the value that begins at i.
func skipValue(b []byte, i int) (int, error) {
	if i == len(b) {
		return 0, errors.New("the body is not valid JSON: a value is missing at its end")
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		from, depth := i, 0
		for i < len(b) {
			switch b[i] {
			case '"':
				var err error
				if i, err = skipString(b, i); err != nil {
					return 0, err
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1, nil
				}
			}
			i++
		}
		return 0, fmt.Errorf("the body is not valid JSON: what opens at byte %d does not close", from)
	}
	from := i
	for i < len(b) && b[i] != ',' && b[i] != '}' && b[i] != ']' && b[i] != ' ' && b[i] != '\n' && b[i] != '\t' && b[i] != '\r' {
		i++
	}
	if from == i {
		return 0, fmt.Errorf("the body is not valid JSON: a value is missing at byte %d", i)
	}
	return i, nil
}

// meeting is where the two engines of a request meet.
type meeting struct {
	host string
	port int
	room int64
}

// bootstrapKeys are the fields that only the router may set.
var bootstrapKeys = map[string]bool{"bootstrap_host": true, "bootstrap_port": true, "bootstrap_room": true, "bootstrap_pair_key": true}

// withMeeting adds the meeting to a body as its last members. What the client wrote stays as it is, byte for byte, but
// for bootstrap fields, which are the router's to choose.
func withMeeting(body []byte, l layout, m meeting) []byte {
	host, _ := json.Marshal(m.host) //nolint:errchkjson // a string
	out := make([]byte, 0, len(body)+len(host)+96)
	if l.ownsBootstrap(body) {
		out = append(out, '{')
		for i, member := range l.members {
			if isBootstrapKey(body[l.keys[i].from:l.keys[i].to]) {
				continue
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, body[member.from:member.to]...)
		}
	} else {
		out = append(out, body[l.open:l.end]...)
	}
	if last := bytes.TrimRight(out, " \n\t\r"); last[len(last)-1] != '{' || len(last) > 1 {
		out = append(out, ',')
	}
	out = append(out, `"bootstrap_host":`...)
	out = append(out, host...)
	out = append(out, `,"bootstrap_port":`...)
	out = strconv.AppendInt(out, int64(m.port), 10)
	out = append(out, `,"bootstrap_room":`...)
	out = strconv.AppendInt(out, m.room, 10)
	return append(out, '}')
}

func (l layout) ownsBootstrap(body []byte) bool {
	for _, k := range l.keys {
		if isBootstrapKey(body[k.from:k.to]) {
			return true
		}
	}
	return false
}

// isBootstrapKey reads a key with its quotes, escapes included.
func isBootstrapKey(quoted []byte) bool {
	var key string
	if bytes.IndexByte(quoted, '\\') < 0 {
		key = string(quoted[1 : len(quoted)-1])
	} else if json.Unmarshal(quoted, &key) != nil {
		return false
	}
	return bootstrapKeys[key]
}
