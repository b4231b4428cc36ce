package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// kind is a type of JSON.
type kind uint8

const (
	kindNull kind = iota
	kindFalse
	kindTrue
	kindNumber
	kindString
	kindArray
	kindObject
)

// value is JSON with the members of objects in their order, and with where each part is.
type value struct {
	kind    kind
	text    string // of a number as it was written, of a string decoded
	items   []*value
	members []member // names are unique
	at      string   // JSON pointer from the root, "" is the root
}

type member struct {
	name  string
	value *value
}

// get gives the member of a name, nil when there is none.
func (v *value) get(name string) *value {
	if v == nil {
		return nil
	}
	for _, m := range v.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// place is at, readable for the root too.
func (v *value) place() string {
	if v.at == "" {
		return "the root"
	}
	return v.at
}

// escapePointer writes a name as part of a JSON pointer.
func escapePointer(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// parseValue reads one JSON value of at most depth levels.
func parseValue(source string, depth int) (*value, error) {
	d := json.NewDecoder(strings.NewReader(source))
	d.UseNumber()
	v, err := readValue(d, "", depth)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, &InvalidError{"something follows the schema", fmt.Sprintf("byte %d", d.InputOffset())}
	}
	return v, nil
}

func readValue(d *json.Decoder, at string, depth int) (*value, error) {
	if depth == 0 {
		return nil, &InvalidError{"is nested too deeply", at}
	}
	token, err := d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, &InvalidError{"the schema is not JSON: " + err.Error(), fmt.Sprintf("byte %d", d.InputOffset())}
	}
	v := &value{at: at}
	switch t := token.(type) {
	case nil:
		v.kind = kindNull
	case bool:
		v.kind = kindFalse
		if t {
			v.kind = kindTrue
		}
	case json.Number:
		v.kind, v.text = kindNumber, t.String()
	case string:
		v.kind, v.text = kindString, t
	case json.Delim:
		if t == '[' {
			v.kind = kindArray
			return v, v.readItems(d, depth)
		}
		v.kind = kindObject
		return v, v.readMembers(d, depth)
	}
	return v, nil
}

func (v *value) readItems(d *json.Decoder, depth int) error {
	for d.More() {
		item, err := readValue(d, v.at+"/"+strconv.Itoa(len(v.items)), depth-1)
		if err != nil {
			return err
		}
		v.items = append(v.items, item)
	}
	return closing(d)
}

func (v *value) readMembers(d *json.Decoder, depth int) error {
	seen := map[string]bool{}
	for d.More() {
		name, err := readValue(d, v.at, depth)
		if err != nil {
			return err
		}
		at := v.at + "/" + escapePointer(name.text)
		if seen[name.text] {
			return &InvalidError{"the name comes twice", at}
		}
		seen[name.text] = true
		val, err := readValue(d, at, depth-1)
		if err != nil {
			return err
		}
		v.members = append(v.members, member{name.text, val})
	}
	return closing(d)
}

func closing(d *json.Decoder) error {
	if _, err := d.Token(); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return &InvalidError{"the schema is not JSON: " + err.Error(), fmt.Sprintf("byte %d", d.InputOffset())}
	}
	return nil
}

// encode writes the value without spaces: strings with the escapes that JSON demands and no others, numbers as they
// were written.
func (v *value) encode() string {
	var out bytes.Buffer
	v.write(&out)
	return out.String()
}

func (v *value) write(out *bytes.Buffer) {
	switch v.kind {
	case kindNull:
		out.WriteString("null")
	case kindFalse:
		out.WriteString("false")
	case kindTrue:
		out.WriteString("true")
	case kindNumber:
		out.WriteString(v.text)
	case kindString:
		out.WriteString(quote(v.text))
	case kindArray:
		out.WriteByte('[')
		for i, item := range v.items {
			if i > 0 {
				out.WriteByte(',')
			}
			item.write(out)
		}
		out.WriteByte(']')
	case kindObject:
		out.WriteByte('{')
		for i, m := range v.members {
			if i > 0 {
				out.WriteByte(',')
			}
			out.WriteString(quote(m.name))
			out.WriteByte(':')
			m.value.write(out)
		}
		out.WriteByte('}')
	}
}

// quote writes a string as JSON.
func quote(s string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range s {
		out.WriteString(escapeRune(r))
	}
	out.WriteByte('"')
	return out.String()
}

// escapeRune writes a code point as it stands in a JSON string.
func escapeRune(r rune) string {
	switch r {
	case '"':
		return `\"`
	case '\\':
		return `\\`
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	if r < ' ' {
		return fmt.Sprintf(`\u%04x`, r)
	}
	return string(utf8.AppendRune(nil, r))
}
