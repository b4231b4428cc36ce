package host

// kernels is a set of inner loops. Every loop's sum over an index runs in an order that depends on the index's extent
// alone, so that an element is the same whichever tile computed it.
type kernels struct {
	name  string
	panel int // outputs per panel of a matrix
	flat  int // most panels that tile takes at once with one row
	tall  int // most panels that tile takes at once with more rows
	rows  int // most rows that tile takes at once

	// tile computes rows x (panels*panel) sums, k ascending:
	// dst[r*dstStride+o] = sum_k x[r*xStride+k] * w[o/panel][k, o%panel], for r in [0, rows) and o in [0, panels*panel).
	// w holds the panels one behind the other, each [k, panel].
	tile func(dst []float32, dstStride int, x []float32, xStride int, w []float32, rows, panels, k int)

	// dots computes dst[j] = sum_d q[d] * keys[j*stride+d] for all j of dst and d of q.
	dots func(dst, q, keys []float32, stride int)

	// mix adds weighted values: acc[d] += sum_j p[j] * values[j*stride+d], j ascending.
	mix func(acc, p, values []float32, stride int)

	// expSum replaces x[j] by exp(x[j] - shift) and gives the sum. x[j] <= shift.
	expSum func(x []float32, shift float32) float32

	// siluMul computes dst[j] = gate[j] / (1 + exp(-gate[j])) * up[j].
	siluMul func(dst, gate, up []float32)
}
