package host

import "math"

// portable gives the kernels written in Go. Products are rounded before they are added (the conversions forbid fusing),
// so that every architecture gives the same numbers.
func portable() kernels {
	return kernels{
		name: "go", panel: 4, flat: 4, tall: 4, rows: 8,
		tile: tileGo, dots: dotsGo, mix: mixGo, expSum: expSumGo, siluMul: siluMulGo,
	}
}

func tileGo(dst []float32, dstStride int, x []float32, xStride int, w []float32, rows, panels, k int) {
	for p := range panels {
		panel := w[p*k*4 : (p+1)*k*4]
		r := 0
		for ; r+1 < rows; r += 2 {
			tile2x4(dst[r*dstStride+p*4:], dst[(r+1)*dstStride+p*4:], x[r*xStride:r*xStride+k], x[(r+1)*xStride:(r+1)*xStride+k], panel)
		}
		if r < rows {
			tile1x4(dst[r*dstStride+p*4:], x[r*xStride:r*xStride+k], panel)
		}
	}
}

func tile1x4(dst, x, w []float32) {
	var s0, s1, s2, s3 float32
	for _, a := range x {
		b := w[:4:4]
		s0 += float32(a * b[0])
		s1 += float32(a * b[1])
		s2 += float32(a * b[2])
		s3 += float32(a * b[3])
		w = w[4:]
	}
	d := dst[:4:4]
	d[0], d[1], d[2], d[3] = s0, s1, s2, s3
}

func tile2x4(dst, dst2, x, x2, w []float32) {
	var s0, s1, s2, s3, t0, t1, t2, t3 float32
	x2 = x2[:len(x)]
	for i, a := range x {
		b := w[:4:4]
		c := x2[i]
		s0 += float32(a * b[0])
		s1 += float32(a * b[1])
		s2 += float32(a * b[2])
		s3 += float32(a * b[3])
		t0 += float32(c * b[0])
		t1 += float32(c * b[1])
		t2 += float32(c * b[2])
		t3 += float32(c * b[3])
		w = w[4:]
	}
	d := dst[:4:4]
	d[0], d[1], d[2], d[3] = s0, s1, s2, s3
	d = dst2[:4:4]
	d[0], d[1], d[2], d[3] = t0, t1, t2, t3
}

func dotsGo(dst, q, keys []float32, stride int) {
	for j := range dst {
		dst[j] = dotGo(q, keys[j*stride:j*stride+len(q)])
	}
}

func dotGo(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	for len(a) >= 4 {
		c, d := a[:4:4], b[:4:4]
		s0 += float32(c[0] * d[0])
		s1 += float32(c[1] * d[1])
		s2 += float32(c[2] * d[2])
		s3 += float32(c[3] * d[3])
		a, b = a[4:], b[4:]
	}
	for i, v := range a {
		s0 += float32(v * b[i])
	}
	return (s0 + s1) + (s2 + s3)
}

func mixGo(acc, p, values []float32, stride int) {
	for j, weight := range p {
		for d, v := range values[j*stride : j*stride+len(acc)] {
			acc[d] += float32(weight * v)
		}
	}
}

func expSumGo(x []float32, shift float32) float32 {
	var sum float32
	for j, v := range x {
		e := exp(v - shift)
		x[j] = e
		sum += e
	}
	return sum
}

func siluMulGo(dst, gate, up []float32) {
	for j, g := range gate {
		dst[j] = g / (1 + exp(-g)) * up[j]
	}
}

// The constants of exp: x is split as n*ln2 + r with |r| <= ln2/2, ln2 being held in two parts so that n*ln2High is
// exact, and e^r is a polynomial whose coefficients are those of the Taylor series to the seventh power.
const (
	expLowest  = -87.0 // below, the result is that of -87: about 1.6e-38
	expHighest = 88.0  // above, the result is that of 88: about 1.65e38
	log2e      = 1.44269504088896341
	ln2High    = 0.693359375
	ln2Low     = -2.12194440e-4
)

// exp is e^x to about 2 units in the last place, for x in [expLowest, expHighest].
func exp(x float32) float32 {
	x = min(max(x, expLowest), expHighest)
	n := float32(math.RoundToEven(float64(x * log2e)))
	r := x - float32(n*ln2High)
	r -= float32(n * ln2Low)
	y := float32(1.0 / 5040)
	y = float32(y*r) + 1.0/720
	y = float32(y*r) + 1.0/120
	y = float32(y*r) + 1.0/24
	y = float32(y*r) + 1.0/6
	y = float32(y*r) + 0.5
	y = float32(y*r) + 1
	y = float32(y*r) + 1
	return y * math.Float32frombits(uint32(int32(n)+127)<<23)
}
