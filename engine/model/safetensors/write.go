package safetensors

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Source is a tensor to write as F32. Fill puts its elements, as many as the shape's product, into dst, and is called
// once, when the tensor's turn comes, so that no two tensors need to be in memory.
type Source struct {
	Name  string
	Shape []int64
	Fill  func(dst []float32)
}

// Write writes the sources as one file, in the order given.
func Write(w io.Writer, sources []Source) error {
	header, sizes, err := encodeHeader(sources)
	if err != nil {
		return fmt.Errorf("write weights: %w", err)
	}
	out := bufio.NewWriterSize(w, readBytes)
	prefix := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	if _, err := out.Write(append(prefix, header...)); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	var elements []float32
	var word [4]byte
	for i, s := range sources {
		elements = slices.Grow(elements[:0], int(sizes[i]))[:sizes[i]]
		s.Fill(elements)
		for _, v := range elements {
			binary.LittleEndian.PutUint32(word[:], math.Float32bits(v))
			if _, err := out.Write(word[:]); err != nil {
				return fmt.Errorf("write tensor %q: %w", s.Name, err)
			}
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write weights: %w", err)
	}
	return nil
}

// encodeHeader gives the header, padded with spaces so that the data starts at a multiple of 8 bytes, and the number of
// elements of each source.
func encodeHeader(sources []Source) (header []byte, elements []int64, err error) {
	type entry struct {
		DType   DType    `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	entries := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var at int64
	for _, s := range sources {
		if _, twice := entries[s.Name]; twice || s.Name == "" {
			return nil, nil, fmt.Errorf("tensor %q: want names that differ from each other and from __metadata__", s.Name)
		}
		n := int64(1)
		for _, d := range s.Shape {
			if d < 1 || n > math.MaxInt32/d {
				return nil, nil, fmt.Errorf("tensor %q: shape is %v: want extents above 0 and fewer than 2^31 elements", s.Name, s.Shape)
			}
			n *= d
		}
		entries[s.Name] = entry{F32, s.Shape, [2]int64{at, at + 4*n}}
		elements = append(elements, n)
		at += 4 * n
	}
	if len(sources) == 0 {
		return nil, nil, errors.New("no tensors")
	}
	if header, err = json.Marshal(entries); err != nil {
		return nil, nil, err
	}
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	return header, elements, nil
}
