package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build" //nolint:revive // avo's programs read as assembly this way
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// exponential holds the constants of e^x: in registers where there are 32, in memory otherwise.
type exponential struct {
	lowest, highest, log2e, ln2High, ln2Low, one operand.Op
	polynomial                                   []operand.Op // from the seventh power down
	bias                                         operand.Op   // 127, as integers, where there is no instruction to scale
}

func (s isa) exponential() exponential {
	constant := func(f float32) operand.Op {
		if s.wide {
			return s.constant(f)
		}
		return repeated(math.Float32bits(f))
	}
	e := exponential{
		lowest: constant(-87), highest: constant(88),
		log2e: constant(1.44269504088896341), ln2High: constant(0.693359375), ln2Low: constant(-2.12194440e-4),
		one: constant(1),
	}
	for _, c := range []float32{1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5} {
		e.polynomial = append(e.polynomial, constant(c))
	}
	if !s.wide {
		e.bias = repeated(127)
	}
	return e
}

// exp replaces v by e^v, as the function exp of gpu/host does, with fused multiply-adds. A NaN stays one.
func (s isa) exp(v vector, e exponential) {
	for _, x := range v {
		n, y := s.vector()[0], s.vector()[0]
		VMOVUPS(e.lowest, y)
		VMAXPS(x, y, x) // the first operand wins where it is NaN
		VMOVUPS(e.highest, y)
		VMINPS(x, y, x)
		VMULPS(e.log2e, x, n)
		if s.wide {
			VRNDSCALEPS(operand.U8(8), n, n)
		} else {
			VROUNDPS(operand.U8(8), n, n)
		}
		VFNMADD231PS(e.ln2High, n, x)
		VFNMADD231PS(e.ln2Low, n, x)
		VMOVUPS(e.polynomial[0], y)
		for _, c := range e.polynomial[1:] {
			VFMADD213PS(c, x, y)
		}
		VFMADD213PS(e.one, x, y)
		VFMADD213PS(e.one, x, y)
		if s.wide {
			VSCALEFPS(n, y, x)
			continue
		}
		VCVTPS2DQ(n, n)
		VPADDD(e.bias, n, n)
		VPSLLD(operand.U8(23), n, n)
		VMULPS(n, y, x)
	}
}

// expSum writes the numerators of a softmax and their sum.
func (s isa) expSum() {
	TEXT("expSum"+s.name, NOSPLIT, "func(x *float32, n int, shift float32) float32")
	Doc("expSum" + s.name + " replaces n elements by exp(x - shift) and gives their sum. n >= 1.")
	x, n := Load(Param("x"), GP64()), Load(Param("n"), GP64()).(reg.GPVirtual)
	address, err := Param("shift").Resolve()
	if err != nil {
		panic(err)
	}
	shift := s.broadcast(address.Addr)
	table := s.maskTable()
	e := s.exponential()
	total := s.zero()
	Label("loop")
	CMPQ(n, operand.U32(lanes))
	JLT(operand.LabelRef("rest"))
	v := s.load(operand.Mem{Base: x})
	for i, r := range v {
		VSUBPS(shift, r, v[i])
	}
	s.exp(v, e)
	s.store(v, operand.Mem{Base: x})
	for i, r := range v {
		VADDPS(r, total[i], total[i])
	}
	ADDQ(operand.U32(4*lanes), x)
	SUBQ(operand.U32(lanes), n)
	JMP(operand.LabelRef("loop"))
	Label("rest")
	TESTQ(n, n)
	JZ(operand.LabelRef("done"))
	k := s.tail(n, table)
	v = s.loadMasked(operand.Mem{Base: x}, k)
	for i, r := range v {
		VSUBPS(shift, r, v[i])
	}
	s.exp(v, e)
	s.storeMasked(v, operand.Mem{Base: x}, k)
	s.clearRest(v, k)
	for i, r := range v {
		VADDPS(r, total[i], total[i])
	}
	Label("done")
	Store(s.sum(total), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// siluMul writes the gate of SwiGLU.
func (s isa) siluMul() {
	TEXT("siluMul"+s.name, NOSPLIT, "func(dst, gate, up *float32, n int)")
	Doc("siluMul" + s.name + " computes gate / (1 + exp(-gate)) * up for n elements. n >= 1.")
	dst, gate, up := Load(Param("dst"), GP64()), Load(Param("gate"), GP64()), Load(Param("up"), GP64())
	n := Load(Param("n"), GP64()).(reg.GPVirtual)
	table := s.maskTable()
	e := s.exponential()
	// y = g / (1 + exp(-g)) * u, in place of u.
	compute := func(g, u vector) {
		for i := range g {
			part := s.vector()[:1]
			s.negate(g[i], part[0])
			s.exp(part, e)
			VADDPS(e.one, part[0], part[0])
			VDIVPS(part[0], g[i], part[0])
			VMULPS(part[0], u[i], u[i])
		}
	}
	Label("loop")
	CMPQ(n, operand.U32(lanes))
	JLT(operand.LabelRef("rest"))
	g, u := s.load(operand.Mem{Base: gate}), s.load(operand.Mem{Base: up})
	compute(g, u)
	s.store(u, operand.Mem{Base: dst})
	for _, p := range []reg.Register{dst, gate, up} {
		ADDQ(operand.U32(4*lanes), p)
	}
	SUBQ(operand.U32(lanes), n)
	JMP(operand.LabelRef("loop"))
	Label("rest")
	TESTQ(n, n)
	JZ(operand.LabelRef("done"))
	k := s.tail(n, table)
	g, u = s.loadMasked(operand.Mem{Base: gate}, k), s.loadMasked(operand.Mem{Base: up}, k)
	compute(g, u)
	s.storeMasked(u, operand.Mem{Base: dst}, k)
	Label("done")
	VZEROUPPER()
	RET()
}

// negate computes to = 0 - x.
func (s isa) negate(x, to reg.VecVirtual) {
	if s.wide {
		VPXORD(to, to, to)
	} else {
		VXORPS(to, to, to)
	}
	VSUBPS(x, to, to)
}
