package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build" //nolint:revive // avo's programs read as assembly this way
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tiles writes one function per shape of a tile, named tile<rows>x<panels><isa>.
func (s isa) tiles() {
	for panels := 1; panels <= s.flatPanels; panels++ {
		s.tile(1, panels)
	}
	for rows := 2; rows <= s.rows; rows++ {
		for panels := 1; panels <= s.tallPanels; panels++ {
			s.tile(rows, panels)
		}
	}
}

// rowPointers addresses up to 8 rows that are a stride apart with two base registers.
type rowPointers struct {
	low, high       reg.GPVirtual // rows 0 to 3, rows 4 to 7
	stride, stride3 reg.GPVirtual
}

func newRowPointers(base, stride reg.Register, rows int) rowPointers {
	p := rowPointers{low: base.(reg.GPVirtual), stride: stride.(reg.GPVirtual)}
	if rows > 3 {
		p.stride3 = GP64()
		LEAQ(operand.Mem{Base: p.stride, Index: p.stride, Scale: 2}, p.stride3)
	}
	if rows > 4 {
		p.high = GP64()
		LEAQ(operand.Mem{Base: p.low, Index: p.stride, Scale: 4}, p.high)
	}
	return p
}

// row is the memory of row i.
func (p rowPointers) row(i int) operand.Mem {
	m := operand.Mem{Base: p.low}
	if i >= 4 {
		m.Base = p.high
	}
	switch i % 4 {
	case 1:
		m.Index, m.Scale = p.stride, 1
	case 2:
		m.Index, m.Scale = p.stride, 2
	case 3:
		m.Index, m.Scale = p.stride3, 1
	}
	return m
}

// advance moves all rows by bytes.
func (p rowPointers) advance(bytes uint32) {
	ADDQ(operand.U32(bytes), p.low)
	if p.high != nil {
		ADDQ(operand.U32(bytes), p.high)
	}
}

// tile keeps the sums of rows x panels in registers while it goes through k.
func (s isa) tile(rows, panels int) {
	TEXT(fmt.Sprintf("tile%dx%d%s", rows, panels, s.name), NOSPLIT, "func(dst *float32, dstStride int, x *float32, xStride int, w *float32, wStride int, k int)")
	Doc(fmt.Sprintf("tile%dx%d%s computes %d rows of %d panels. Strides are in bytes, wStride is that of panels; k >= 1.", rows, panels, s.name, rows, panels))
	x := newRowPointers(Load(Param("x"), GP64()), Load(Param("xStride"), GP64()), rows)
	w := newRowPointers(Load(Param("w"), GP64()), Load(Param("wStride"), GP64()), panels)
	k := Load(Param("k"), GP64())

	sums := make([][]vector, rows)
	for r := range sums {
		for range panels {
			sums[r] = append(sums[r], s.zero())
		}
	}
	loop := "loop"
	Label(loop)
	if rows == 1 {
		a := s.broadcast(x.row(0))
		for p := range panels {
			for i, sum := range sums[0][p] {
				VFMADD231PS(s.part(w.row(p), i), a, sum)
			}
		}
	} else {
		weights := make([]vector, panels)
		for p := range panels {
			weights[p] = s.load(w.row(p))
		}
		for r := range rows {
			a := s.broadcast(x.row(r))
			for p := range panels {
				for i, sum := range sums[r][p] {
					VFMADD231PS(weights[p][i], a, sum)
				}
			}
		}
	}
	x.advance(4)
	w.advance(4 * lanes)
	DECQ(k)
	JNZ(operand.LabelRef(loop))

	dst := newRowPointers(Load(Param("dst"), GP64()), Load(Param("dstStride"), GP64()), rows)
	for r := range rows {
		for p := range panels {
			s.store(sums[r][p], dst.row(r).Offset(p*4*lanes))
		}
	}
	VZEROUPPER()
	RET()
}
