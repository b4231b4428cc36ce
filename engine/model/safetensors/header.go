package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// maxHeaderBytes bounds the header, as the format's first implementation does.
const maxHeaderBytes = 100_000_000

// Tensor is one entry of a header.
type Tensor struct {
	Name  string
	DType DType
	Shape []int64
	// Begin and End are offsets in bytes from the end of the header, half-open:
	// End - Begin = product of Shape * size of DType.
	Begin, End int64
}

// Elements is the product of the shape.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// parseHeader reads the JSON header of a file whose data part has dataBytes. The tensors come back in the order of their
// data, which they cover without a gap or an overlap.
func parseHeader(header []byte, dataBytes int64) ([]Tensor, error) {
	entries, err := splitObject(header)
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	tensors := make([]Tensor, 0, len(entries))
	for _, e := range entries {
		if e.key == "__metadata__" {
			var metadata map[string]string
			if err := json.Unmarshal(e.value, &metadata); err != nil {
				return nil, fmt.Errorf("header: __metadata__: %w", err)
			}
			continue
		}
		t, err := parseTensor(e.key, e.value)
		if err != nil {
			return nil, fmt.Errorf("header: tensor %q: %w", e.key, err)
		}
		tensors = append(tensors, t)
	}
	slices.SortFunc(tensors, func(a, b Tensor) int {
		if a.Begin != b.Begin {
			return int(min(max(a.Begin-b.Begin, -1), 1))
		}
		return int(min(max(a.End-b.End, -1), 1))
	})
	var end int64
	for _, t := range tensors {
		if t.Begin != end {
			return nil, fmt.Errorf("header: tensor %q begins at byte %d: want %d, right after the tensor before it", t.Name, t.Begin, end)
		}
		end = t.End
	}
	if end != dataBytes {
		return nil, fmt.Errorf("header: the tensors end at byte %d, but the file holds %d bytes of data", end, dataBytes)
	}
	return tensors, nil
}

func parseTensor(name string, value json.RawMessage) (Tensor, error) {
	var e struct {
		DType   DType    `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets *[]int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(value, &e); err != nil {
		return Tensor{}, err
	}
	size, ok := sizes[e.DType]
	if !ok {
		return Tensor{}, fmt.Errorf("dtype is %q: want one of the format's types", e.DType)
	}
	if e.Offsets == nil || len(*e.Offsets) != 2 {
		return Tensor{}, errors.New("data_offsets: want [begin, end]")
	}
	t := Tensor{Name: name, DType: e.DType, Shape: e.Shape, Begin: (*e.Offsets)[0], End: (*e.Offsets)[1]}
	if t.Begin < 0 || t.Begin > t.End {
		return Tensor{}, fmt.Errorf("data_offsets are [%d, %d]: want 0 <= begin <= end", t.Begin, t.End)
	}
	bytes := size
	for _, d := range e.Shape {
		if d < 0 || (d > 0 && bytes > math.MaxInt64/d) {
			return Tensor{}, fmt.Errorf("shape is %v: want extents of at least 0 whose product fits in 63 bits", e.Shape)
		}
		bytes *= d
	}
	if bytes != t.End-t.Begin {
		return Tensor{}, fmt.Errorf("shape %v of %s takes %d bytes, data_offsets give %d", e.Shape, e.DType, bytes, t.End-t.Begin)
	}
	return t, nil
}

type entry struct {
	key   string
	value json.RawMessage
}

// splitObject gives the entries of a JSON object and refuses a key that comes twice, which encoding/json would not.
func splitObject(b []byte) ([]entry, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	open, err := d.Token()
	if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if open != json.Delim('{') {
		return nil, fmt.Errorf("is %v: want an object", open)
	}
	var entries []entry
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		key, ok := token.(string)
		if !ok {
			return nil, fmt.Errorf("key is %v: want a string", token)
		}
		if seen[key] {
			return nil, fmt.Errorf("tensor %q comes twice", key)
		}
		seen[key] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("value of %q: %w", key, err)
		}
		entries = append(entries, entry{key, value})
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if token, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%v follows the object: want nothing but spaces", token)
	}
	return entries, nil
}
