package safetensors

import (
	"encoding/binary"
	"math"
)

// DType is the stored type of a tensor, spelled as in the file.
type DType string

// The stored types that can be read as float32.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
)

// sizes holds the bytes of an element of every type that the format has; types below a byte aren't among them.
var sizes = map[DType]int64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
	"I16": 2, "U16": 2, F16: 2, BF16: 2,
	"I32": 4, "U32": 4, F32: 4,
	"I64": 8, "U64": 8, "F64": 8, "C64": 8,
}

// widen converts len(dst) stored elements to float32. It reports false for a type that has no such conversion.
func widen(dst []float32, src []byte, dtype DType) (ok bool) {
	switch dtype {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = half(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		return false
	}
	return true
}

// half converts an IEEE 754 binary16 number: 1 bit of sign, 5 of exponent, 10 of fraction.
func half(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exponent := uint32(h >> 10 & 0x1f)
	fraction := uint32(h & 0x3ff)
	switch exponent {
	case 0: // zero and subnormals: fraction * 2^-24
		v := float32(fraction) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 0x1f: // infinity and NaN
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	default:
		return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
	}
}
