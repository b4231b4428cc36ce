package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
)

// object is a JSON object whose fields are read one at a time, so that an error names its field, a missing field, null
// and a zero differ, and fields that nobody reads are ignored. The first fault sticks: later reads give fallbacks, and the
// caller looks at fault once at the end.
type object struct {
	path  string // "" for the body, "sampling_params." for an object in it
	raw   map[string]rawMessage
	fault **apiError        // shared with the objects inside
	seen  func(path string) // told each field that is looked at, present or not; nil: nobody asks
}

// decodeObject reads a request body.
func decodeObject(body []byte) (*object, *apiError) {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 {
		return nil, failure(http.StatusBadRequest, codeInvalidJSON, "the request body is empty: send a JSON object")
	}
	o := &object{fault: new(*apiError)}
	err := json.Unmarshal(body, &o.raw)
	var syntax *json.SyntaxError
	switch {
	case err == nil && o.raw != nil:
		return o, nil
	case errors.As(err, &syntax):
		line, column := position(body, syntax.Offset)
		return nil, failure(http.StatusBadRequest, codeInvalidJSON, "the request body is not valid JSON at line %d column %d: %v", line, column, syntax)
	default:
		return nil, failure(http.StatusBadRequest, codeInvalidJSON, "the request body must be a JSON object, not %s", kindOf(trimmed))
	}
}

// position turns a decoder's offset, which counts the bytes read, into the line and column of the byte at fault.
func position(body []byte, offset int64) (line, column int) {
	at := max(0, min(int(offset)-1, len(body)))
	before := body[:at]
	return bytes.Count(before, []byte{'\n'}) + 1, at - bytes.LastIndexByte(before, '\n')
}

// kindOf names the kind of a JSON value by its first byte.
func kindOf(raw []byte) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "the number " + string(raw[:min(len(raw), 40)])
	}
}

// isEmpty reports whether a value is an object or an array without anything in it.
func isEmpty(raw rawMessage) bool {
	if len(raw) < 2 {
		return false
	}
	pair := string(raw[:1]) + string(raw[len(raw)-1:])
	return (pair == "{}" || pair == "[]") && len(bytes.TrimLeft(raw[1:len(raw)-1], " \t\r\n")) == 0
}

func isKind(raw rawMessage, first byte) bool { return len(raw) > 0 && raw[0] == first }

// fail records the first fault.
func (o *object) fail(err *apiError) {
	if *o.fault == nil {
		*o.fault = err
	}
}

func (o *object) failField(name, format string, args ...any) {
	o.fail(badField(o.path+name, format, args...))
}

// value gives a field that is present and not null.
func (o *object) value(name string) (raw rawMessage, present bool) {
	if o.seen != nil {
		o.seen(o.path + name)
	}
	raw, present = o.raw[name]
	return raw, present && !bytes.Equal(raw, []byte("null"))
}

func (o *object) has(name string) bool {
	_, present := o.value(name)
	return present
}

func (o *object) string(name, fallback string) string {
	raw, present := o.value(name)
	if !present {
		return fallback
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		o.failField(name, "must be a string, not %s", kindOf(raw))
		return fallback
	}
	return text
}

func (o *object) boolean(name string, fallback bool) bool {
	raw, present := o.value(name)
	if !present {
		return fallback
	}
	var value bool
	if json.Unmarshal(raw, &value) != nil {
		o.failField(name, "must be true or false, not %s", kindOf(raw))
		return fallback
	}
	return value
}

// integer reads a whole number; 16.0 is one too, as clients in languages without integers send it.
func (o *object) integer(name string, fallback int64) int64 {
	raw, present := o.value(name)
	if !present {
		return fallback
	}
	value, ok := parseInteger(raw)
	if !ok {
		o.failField(name, "must be an integer of 64 bits, not %s", kindOf(raw))
		return fallback
	}
	return value
}

// integerIn is integer with bounds, both allowed.
func (o *object) integerIn(name string, fallback, low, high int64) int64 {
	value := o.integer(name, fallback)
	switch {
	case !o.has(name) || *o.fault != nil:
		return fallback
	case value < low:
		o.failField(name, "must be at least %d, not %d", low, value)
		return fallback
	case value > high:
		o.failField(name, "must be at most %d, not %d", high, value)
		return fallback
	}
	return value
}

// number reads a finite number with bounds, both allowed.
func (o *object) number(name string, fallback, low, high float64) float64 {
	raw, present := o.value(name)
	if !present {
		return fallback
	}
	var value float64
	if isKind(raw, '"') || json.Unmarshal(raw, &value) != nil {
		o.failField(name, "must be a number, not %s", kindOf(raw))
		return fallback
	}
	if value < low || value > high {
		o.failField(name, "must be %s, not %v", boundsText(low, high), value)
		return fallback
	}
	return value
}

// positive reads a number greater than 0 and at most high. What is too small for a float32 is still more than 0.
func (o *object) positive(name string, fallback, high float64) float64 {
	value := o.number(name, fallback, math.Inf(-1), math.Inf(1))
	if !(value > 0 && value <= high) {
		o.failField(name, "must be greater than 0 and at most %v, not %v", high, value)
		return fallback
	}
	return max(value, math.SmallestNonzeroFloat32)
}

func boundsText(low, high float64) string {
	if math.IsInf(high, 1) {
		return fmt.Sprintf("at least %v", low)
	}
	return fmt.Sprintf("from %v to %v", low, high)
}

// strings reads a string or an array of strings; nil when absent.
func (o *object) strings(name string) []string {
	raw, present := o.value(name)
	if !present {
		return nil
	}
	if isKind(raw, '"') {
		return []string{o.string(name, "")}
	}
	items, ok := array(raw)
	if !ok {
		o.failField(name, "must be a string or an array of strings, not %s", kindOf(raw))
		return nil
	}
	list := make([]string, len(items))
	for i, item := range items {
		if !isKind(item, '"') || json.Unmarshal(item, &list[i]) != nil {
			o.failField(fmt.Sprintf("%s[%d]", name, i), "must be a string, not %s", kindOf(item))
			return nil
		}
	}
	return list
}

// integers reads an integer or an array of integers; nil when absent.
func (o *object) integers(name string) []int64 {
	raw, present := o.value(name)
	if !present {
		return nil
	}
	if !isKind(raw, '[') {
		return []int64{o.integer(name, 0)}
	}
	items, _ := array(raw)
	list := make([]int64, len(items))
	for i, item := range items {
		value, ok := parseInteger(item)
		if !ok {
			o.failField(fmt.Sprintf("%s[%d]", name, i), "must be an integer, not %s", kindOf(item))
			return nil
		}
		list[i] = value
	}
	return list
}

// object reads a nested object; an absent one is empty.
func (o *object) object(name string) *object {
	inner := &object{path: o.path + name + ".", fault: o.fault, seen: o.seen}
	raw, present := o.value(name)
	if !present {
		return inner
	}
	if !isKind(raw, '{') || json.Unmarshal(raw, &inner.raw) != nil {
		o.failField(name, "must be an object, not %s", kindOf(raw))
	}
	return inner
}

// objects reads an array of objects; nil when absent.
func (o *object) objects(name string) []*object {
	raw, present := o.value(name)
	if !present {
		return nil
	}
	items, ok := array(raw)
	if !ok {
		o.failField(name, "must be an array, not %s", kindOf(raw))
		return nil
	}
	return o.elements(name, items)
}

// elements reads the values of an array, which must be objects.
func (o *object) elements(name string, items []rawMessage) []*object {
	list := make([]*object, len(items))
	for i, item := range items {
		list[i] = &object{path: fmt.Sprintf("%s%s[%d].", o.path, name, i), fault: o.fault, seen: o.seen}
		if !isKind(item, '{') || json.Unmarshal(item, &list[i].raw) != nil {
			o.failField(fmt.Sprintf("%s[%d]", name, i), "must be an object, not %s", kindOf(item))
			return nil
		}
	}
	return list
}

// array splits an array into its values.
func array(raw rawMessage) (items []rawMessage, ok bool) {
	if !isKind(raw, '[') || json.Unmarshal(raw, &items) != nil {
		return nil, false
	}
	return items, true
}

// parseInteger reads a JSON number that is whole and fits 64 bits. Integers are read exactly, not through a float.
func parseInteger(raw rawMessage) (value int64, ok bool) {
	value, err := strconv.ParseInt(string(raw), 10, 64)
	if err == nil {
		return value, true
	}
	if !slices.ContainsFunc(raw, func(b byte) bool { return b == '.' || b == 'e' || b == 'E' }) || isKind(raw, '"') {
		return 0, false
	}
	float, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || float != math.Trunc(float) || math.Abs(float) > 1<<53 {
		return 0, false
	}
	return int64(float), true
}

// rawMessage is a JSON value as it came.
type rawMessage = json.RawMessage
