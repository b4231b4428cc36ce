package host

import (
	"math"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/cpu"
)

// available gives every set of kernels that this CPU can run.
func available() []kernels {
	sets := []kernels{portable()}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		sets = append(sets, kernelsAVX2())
	}
	if cpu.X86.HasAVX512F && cpu.X86.HasBMI2 {
		sets = append(sets, kernelsAVX512())
	}
	return sets
}

// TestVectorSetsAgree checks that AVX2 and AVX-512 give the same bits, so that the two halves of a request may be computed
// on CPUs of different age.
func TestVectorSetsAgree(t *testing.T) {
	if !cpu.X86.HasAVX512F || !cpu.X86.HasAVX2 {
		t.Skip("this CPU has no AVX-512 to compare with AVX2")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	floats := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(random.NormFloat64() * 3)
		}
		return v
	}
	a, b := kernelsAVX512(), kernelsAVX2()
	for range 300 {
		n, d := 1+random.IntN(80), 1+random.IntN(140)
		stride := d + random.IntN(20)
		keys, q, p := floats(n*stride), floats(d), floats(n)
		outA, outB := make([]float32, n), make([]float32, n)
		a.dots(outA, q, keys, stride)
		b.dots(outB, q, keys, stride)
		same(t, "dots", outA, outB)

		accA := floats(d)
		accB := append([]float32(nil), accA...)
		a.mix(accA, p, keys, stride)
		b.mix(accB, p, keys, stride)
		same(t, "mix", accA, accB)

		outA, outB = make([]float32, d), make([]float32, d)
		up := floats(d)
		a.siluMul(outA, q, up)
		b.siluMul(outB, q, up)
		same(t, "siluMul", outA, outB)

		shift := largest(q)
		copy(outA, q)
		copy(outB, q)
		sums := [2][]float32{{a.expSum(outA, shift)}, {b.expSum(outB, shift)}}
		same(t, "expSum", outA, outB)
		same(t, "sum of expSum", sums[0], sums[1])

		w, x := floats(2*16*d), floats(8*stride)
		rows := 1 + random.IntN(6)
		tileA, tileB := make([]float32, 8*16), make([]float32, 8*16)
		a.tile(tileA, 16, x, stride, w, rows, 1, d)
		b.tile(tileB, 16, x, stride, w, rows, 1, d)
		same(t, "tile", tileA, tileB)
	}
}

func same(t *testing.T, what string, a, b []float32) {
	t.Helper()
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("%s: element %d of %d is %g with AVX-512 and %g with AVX2", what, i, len(a), a[i], b[i])
		}
	}
}

func TestVectorSetsKeepNaN(t *testing.T) {
	nan := float32(math.NaN())
	for _, k := range available() {
		x := []float32{0, nan, 0}
		sum := k.expSum(x, 0)
		if sum == sum || x[1] == x[1] {
			t.Errorf("%s: exp(NaN) is %g, the sum %g", k.name, x[1], sum)
		}
		out := make([]float32, 1)
		k.siluMul(out, []float32{nan}, []float32{1})
		if out[0] == out[0] {
			t.Errorf("%s: silu(NaN) is %g", k.name, out[0])
		}
	}
}
