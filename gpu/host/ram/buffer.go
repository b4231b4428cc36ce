package ram

import (
	"fmt"

	"github.com/sluice-dev/sluice/gpu"
)

// Buffer is memory of the Go heap. Exactly one of the two slices is set.
type Buffer struct {
	f32 []float32
	i32 []int32
}

// Alloc gives a buffer of n zeroed elements.
func Alloc(dtype gpu.DType, n int) (gpu.Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("allocate %d elements of %s: want at least 0", n, dtype)
	}
	switch dtype {
	case gpu.F32:
		return &Buffer{f32: make([]float32, n)}, nil
	case gpu.I32:
		return &Buffer{i32: make([]int32, n)}, nil
	default:
		return nil, fmt.Errorf("allocate %d elements: the host has no dtype %d", n, dtype)
	}
}

// DType is the type of the elements.
func (b *Buffer) DType() gpu.DType {
	if b.i32 != nil {
		return gpu.I32
	}
	return gpu.F32
}

// Len is the number of elements.
func (b *Buffer) Len() int { return len(b.f32) + len(b.i32) }

// F32 gives t's elements from its first to its last, row gaps included. It panics when t is of another device or type.
func F32(t gpu.Tensor) []float32 {
	return t.Buf.(*Buffer).f32[t.Off : t.Off+span(t)]
}

// I32 is F32 for integers.
func I32(t gpu.Tensor) []int32 {
	return t.Buf.(*Buffer).i32[t.Off : t.Off+span(t)]
}

func span(t gpu.Tensor) int {
	if t.Rows == 0 {
		return 0
	}
	return (t.Rows-1)*t.Stride + t.Cols
}

// Row gives row i of t.
func Row(t gpu.Tensor, i int) []float32 {
	from := t.Off + i*t.Stride
	return t.Buf.(*Buffer).f32[from : from+t.Cols : from+t.Cols]
}

// Write copies src into dst.
func Write(dst gpu.Tensor, src []byte) error {
	to, err := view(dst, len(src))
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	copy(to, src)
	return nil
}

// Read copies src into dst.
func Read(dst []byte, src gpu.Tensor) error {
	from, err := view(src, len(dst))
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	copy(dst, from)
	return nil
}

func view(t gpu.Tensor, n int) ([]byte, error) {
	b, ok := t.Buf.(*Buffer)
	if !ok {
		return nil, fmt.Errorf("%v is not in the host's memory", t)
	}
	if !t.Dense() || t.Len()*b.DType().Bytes() != n {
		return nil, fmt.Errorf("%v, dense %t, does not hold %d bytes", t, t.Dense(), n)
	}
	if b.i32 != nil {
		return gpu.Bytes(b.i32[t.Off : t.Off+t.Len()]), nil
	}
	return gpu.Bytes(b.f32[t.Off : t.Off+t.Len()]), nil
}
