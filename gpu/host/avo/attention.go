package main

import (
	. "github.com/mmcloughlin/avo/build" //nolint:revive // avo's programs read as assembly this way
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dots writes the scores of a query: four keys at a time, then one.
func (s isa) dots() {
	TEXT("dots"+s.name, NOSPLIT, "func(dst, q, keys *float32, stride, n, d int)")
	Doc("dots" + s.name + " computes n dot products of d elements with keys that are stride bytes apart. n, d >= 1.")
	dst, q := Load(Param("dst"), GP64()), Load(Param("q"), GP64())
	keys, stride := Load(Param("keys"), GP64()), Load(Param("stride"), GP64())
	n, d := Load(Param("n"), GP64()).(reg.GPVirtual), Load(Param("d"), GP64())
	table := s.maskTable()

	rest := GP64()
	MOVQ(d, rest)
	ANDQ(operand.U32(lanes-1), rest)
	whole := GP64()
	MOVQ(d, whole)
	SHRQ(operand.U8(4), whole)
	// The mask is made before the loops, empty where it isn't needed, so that both see it.
	k := s.tail(rest, table)
	s.dotLoop("four", "one", 4, dst, q, keys, stride, n, whole, rest, k)
	s.dotLoop("one", "done", 1, dst, q, keys, stride, n, whole, rest, k)
	Label("done")
	VZEROUPPER()
	RET()
}

func (s isa) dotLoop(name, next string, width int, dst, q, keys, stride reg.Register, n, whole, rest reg.GPVirtual, k mask) {
	Label(name)
	CMPQ(n, operand.U32(uint32(width)))
	JLT(operand.LabelRef(next))
	kp, qp, c := GP64(), GP64(), GP64()
	MOVQ(keys, kp)
	MOVQ(q, qp)
	MOVQ(whole, c)
	pointers := newRowPointers(kp, stride, width)
	sums := make([]vector, width)
	for i := range sums {
		sums[i] = s.zero()
	}
	TESTQ(c, c)
	JZ(operand.LabelRef(name + "_tail"))
	Label(name + "_chunk")
	a := s.load(operand.Mem{Base: qp})
	for i, sum := range sums {
		for part, r := range sum {
			VFMADD231PS(s.part(pointers.row(i), part), a[part], r)
		}
	}
	pointers.advance(4 * lanes)
	ADDQ(operand.U32(4*lanes), qp)
	DECQ(c)
	JNZ(operand.LabelRef(name + "_chunk"))
	Label(name + "_tail")
	TESTQ(rest, rest)
	JZ(operand.LabelRef(name + "_sum"))
	a = s.loadMasked(operand.Mem{Base: qp}, k)
	for i, sum := range sums {
		b := s.loadMasked(pointers.row(i), k)
		for part, r := range sum {
			VFMADD231PS(b[part], a[part], r)
		}
	}
	Label(name + "_sum")
	for i, sum := range sums {
		VMOVSS(s.sum(sum), operand.Mem{Base: dst, Disp: 4 * i})
	}
	ADDQ(operand.U32(uint32(4*width)), dst)
	for range width {
		ADDQ(stride, keys)
	}
	SUBQ(operand.U32(uint32(width)), n)
	JMP(operand.LabelRef(name))
}

// mix writes the weighted sum of values: 64 elements at a time in registers, then 16, then the rest.
func (s isa) mix() {
	TEXT("mix"+s.name, NOSPLIT, "func(acc, p, values *float32, stride, n, d int)")
	Doc("mix" + s.name + " adds n values of d elements, stride bytes apart, each times its p, to acc. n, d >= 1.")
	acc, p := Load(Param("acc"), GP64()), Load(Param("p"), GP64())
	values, stride := Load(Param("values"), GP64()), Load(Param("stride"), GP64())
	n, d := Load(Param("n"), GP64()), Load(Param("d"), GP64()).(reg.GPVirtual)
	table := s.maskTable()

	for _, part := range []struct {
		name, next string
		vectors    int
	}{{"wide", "narrow", 4}, {"narrow", "rest", 1}} {
		bytes := uint32(4 * lanes * part.vectors)
		Label(part.name)
		CMPQ(d, operand.U32(uint32(lanes*part.vectors)))
		JLT(operand.LabelRef(part.next))
		sums := make([]vector, part.vectors)
		for i := range sums {
			sums[i] = s.load(operand.Mem{Base: acc, Disp: 4 * lanes * i})
		}
		s.mixLoop(part.name, p, values, stride, n, func(weight reg.VecVirtual, value reg.Register) {
			for i, sum := range sums {
				for j, r := range sum {
					VFMADD231PS(s.part(operand.Mem{Base: value, Disp: 4 * lanes * i}, j), weight, r)
				}
			}
		})
		for i := range sums {
			s.store(sums[i], operand.Mem{Base: acc, Disp: 4 * lanes * i})
		}
		ADDQ(operand.U32(bytes), acc)
		ADDQ(operand.U32(bytes), values)
		SUBQ(operand.U32(uint32(lanes*part.vectors)), d)
		JMP(operand.LabelRef(part.name))
	}
	Label("rest")
	TESTQ(d, d)
	JZ(operand.LabelRef("done"))
	k := s.tail(d, table)
	sum := s.loadMasked(operand.Mem{Base: acc}, k)
	s.mixLoop("rest", p, values, stride, n, func(weight reg.VecVirtual, value reg.Register) {
		v := s.loadMasked(operand.Mem{Base: value}, k)
		for j, r := range sum {
			VFMADD231PS(v[j], weight, r)
		}
	})
	s.storeMasked(sum, operand.Mem{Base: acc}, k)
	Label("done")
	VZEROUPPER()
	RET()
}

// mixLoop runs body for each weight and value.
func (s isa) mixLoop(name string, p, values, stride, n reg.Register, body func(weight reg.VecVirtual, value reg.Register)) {
	pp, vp, c := GP64(), GP64(), GP64()
	MOVQ(p, pp)
	MOVQ(values, vp)
	MOVQ(n, c)
	Label(name + "_value")
	body(s.broadcast(operand.Mem{Base: pp}), vp)
	ADDQ(operand.U32(4), pp)
	ADDQ(stride, vp)
	DECQ(c)
	JNZ(operand.LabelRef(name + "_value"))
}
