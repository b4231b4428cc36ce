package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build" //nolint:revive // avo's programs read as assembly this way
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set.
type isa struct {
	name string
	wide bool // registers of 16 lanes; otherwise of 8, two to a vector

	// The tiles of a matrix product: rows by panels, for one row and for more.
	rows, tallPanels, flatPanels int
}

var (
	avx512 = isa{name: "AVX512", wide: true, rows: 8, tallPanels: 2, flatPanels: 4}
	avx2   = isa{name: "AVX2", rows: 6, tallPanels: 1, flatPanels: 4}
)

// lanes is the number of elements of a vector.
const lanes = 16

// vector is 16 lanes: one register or two.
type vector []reg.VecVirtual

func (s isa) vector() vector {
	if s.wide {
		return vector{ZMM()}
	}
	return vector{YMM(), YMM()}
}

func (s isa) zero() vector {
	v := s.vector()
	for _, r := range v {
		if s.wide {
			VPXORD(r, r, r)
			continue
		}
		VXORPS(r, r, r)
	}
	return v
}

// part is the memory of the i-th register of a vector at m.
func (s isa) part(m operand.Mem, i int) operand.Mem { return m.Offset(i * 32) }

func (s isa) load(m operand.Mem) vector {
	v := s.vector()
	for i, r := range v {
		VMOVUPS(s.part(m, i), r)
	}
	return v
}

func (s isa) store(v vector, m operand.Mem) {
	for i, r := range v {
		VMOVUPS(r, s.part(m, i))
	}
}

// broadcast fills one register with the element at m; it serves for both parts of a vector.
func (s isa) broadcast(m operand.Op) reg.VecVirtual {
	r := s.vector()[0]
	VBROADCASTSS(m, r)
	return r
}

// constant fills one register with a number.
func (s isa) constant(f float32) reg.VecVirtual {
	g, x := GP32(), XMM()
	MOVL(operand.U32(math.Float32bits(f)), g)
	VMOVD(g, x)
	return s.broadcast(x)
}

// mask selects the first lanes of a vector.
type mask struct {
	k reg.OpmaskVirtual // wide
	v vector            // otherwise: all bits set in the selected lanes
}

// tail makes the mask of the first count lanes; count is in [0, 15].
func (s isa) tail(count reg.GPVirtual, table operand.Mem) mask {
	if s.wide {
		ones, k := GP32(), K()
		MOVL(operand.U32(math.MaxUint32), ones)
		BZHIL(count.As32(), ones, ones)
		KMOVW(ones, k)
		return mask{k: k}
	}
	base, index := GP64(), GP64()
	LEAQ(table, base)
	MOVQ(operand.U32(lanes), index)
	SUBQ(count, index)
	return mask{v: s.load(operand.Mem{Base: base, Index: index, Scale: 4})}
}

// loadMasked loads the selected lanes and zeroes the others without touching their memory.
func (s isa) loadMasked(m operand.Mem, k mask) vector {
	v := s.vector()
	for i, r := range v {
		if s.wide {
			VMOVUPS_Z(m, k.k, r)
			continue
		}
		VMASKMOVPS(s.part(m, i), k.v[i], r)
	}
	return v
}

func (s isa) storeMasked(v vector, m operand.Mem, k mask) {
	for i, r := range v {
		if s.wide {
			VMOVUPS(r, k.k, m)
			continue
		}
		VMASKMOVPS(r, k.v[i], s.part(m, i))
	}
}

// clearRest zeroes the lanes that aren't selected.
func (s isa) clearRest(v vector, k mask) {
	for i, r := range v {
		if s.wide {
			VMOVAPS_Z(r, k.k, r)
			continue
		}
		VANDPS(r, k.v[i], r)
	}
}

// sum adds the lanes by halves: 16 to 8, to 4, to 2, to 1.
func (s isa) sum(v vector) reg.VecVirtual {
	half := YMM()
	if s.wide {
		VEXTRACTF64X4(operand.U8(1), v[0], half)
		VADDPS(v[0].AsY(), half, half)
	} else {
		VADDPS(v[0], v[1], half)
	}
	x := XMM()
	VEXTRACTF128(operand.U8(1), half, x)
	VADDPS(half.AsX(), x, x)
	y := XMM()
	VPERMILPS(operand.U8(0x0e), x, y) // lanes 2 and 3
	VADDPS(x, y, y)
	z := XMM()
	VPERMILPS(operand.U8(0x01), y, z)
	VADDSS(y, z, z)
	return z
}

// masks is 16 set lanes followed by 16 clear ones. It is written once, for the narrow set.
var masks operand.Mem

func (s isa) maskTable() operand.Mem {
	if s.wide || masks.Base != nil {
		return masks
	}
	masks = GLOBL("masks", attr.NOPTR|attr.RODATA)
	for i := range lanes {
		DATA(4*i, operand.U32(math.MaxUint32))
	}
	for i := range lanes {
		DATA(4*(lanes+i), operand.U32(0))
	}
	return masks
}

// constants are the tables of repeated, by their bits.
var constants = map[uint32]operand.Mem{}

// repeated is memory that holds 8 times the same bits.
func repeated(bits uint32) operand.Mem {
	m, ok := constants[bits]
	if !ok {
		m = GLOBL(fmt.Sprintf("constant%08x", bits), attr.NOPTR|attr.RODATA)
		for i := range 8 {
			DATA(4*i, operand.U32(bits))
		}
		constants[bits] = m
	}
	return m
}
