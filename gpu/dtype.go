package gpu

import "unsafe"

// DType is the type of a buffer's elements.
type DType uint8

const (
	// F32 is an IEEE 754 binary32 number.
	F32 DType = iota + 1
	// I32 is a signed 32-bit integer: token ids, positions, page tables.
	I32
)

// Bytes is the size of one element.
func (d DType) Bytes() int { return 4 }

func (d DType) String() string {
	switch d {
	case F32:
		return "float32"
	case I32:
		return "int32"
	default:
		return "invalid"
	}
}

// Bytes views s as bytes in the host's order, which is little-endian. The view shares s's memory.
func Bytes[T float32 | int32](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}
