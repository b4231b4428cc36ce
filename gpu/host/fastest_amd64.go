package host

import "golang.org/x/sys/cpu"

//go:generate go run -C avo . -pkg host -out ../kernels_amd64.s -stubs ../kernels_amd64.go

// fastest gives the best kernels for this CPU.
func fastest() kernels {
	switch x := cpu.X86; {
	case x.HasAVX512F && x.HasBMI2:
		return kernelsAVX512()
	case x.HasAVX2 && x.HasFMA:
		return kernelsAVX2()
	default:
		return portable()
	}
}

// The two sets add in the same order and fuse the same products, so they give the same bits.

func kernelsAVX512() kernels {
	return kernels{
		name: "avx512", panel: 16, flat: 4, tall: 2, rows: 8,
		tile: func(dst []float32, dstStride int, x []float32, xStride int, w []float32, rows, panels, k int) {
			callTile(tilesAVX512[rows-1][panels-1], dst, dstStride, x, xStride, w, rows, panels, k)
		},
		dots: func(dst, q, keys []float32, stride int) {
			if checkStrided(len(dst), len(q), keys, stride) {
				dotsAVX512(&dst[0], &q[0], &keys[0], 4*stride, len(dst), len(q))
			}
		},
		mix: func(acc, p, values []float32, stride int) {
			if checkStrided(len(p), len(acc), values, stride) {
				mixAVX512(&acc[0], &p[0], &values[0], 4*stride, len(p), len(acc))
			}
		},
		expSum: func(x []float32, shift float32) float32 { return expSumAVX512(&x[0], len(x), shift) },
		siluMul: func(dst, gate, up []float32) {
			siluMulAVX512(&dst[0], &gate[:len(dst)][0], &up[:len(dst)][0], len(dst))
		},
	}
}

func kernelsAVX2() kernels {
	return kernels{
		name: "avx2", panel: 16, flat: 4, tall: 1, rows: 6,
		tile: func(dst []float32, dstStride int, x []float32, xStride int, w []float32, rows, panels, k int) {
			callTile(tilesAVX2[rows-1][panels-1], dst, dstStride, x, xStride, w, rows, panels, k)
		},
		dots: func(dst, q, keys []float32, stride int) {
			if checkStrided(len(dst), len(q), keys, stride) {
				dotsAVX2(&dst[0], &q[0], &keys[0], 4*stride, len(dst), len(q))
			}
		},
		mix: func(acc, p, values []float32, stride int) {
			if checkStrided(len(p), len(acc), values, stride) {
				mixAVX2(&acc[0], &p[0], &values[0], 4*stride, len(p), len(acc))
			}
		},
		expSum:  func(x []float32, shift float32) float32 { return expSumAVX2(&x[0], len(x), shift) },
		siluMul: func(dst, gate, up []float32) { siluMulAVX2(&dst[0], &gate[:len(dst)][0], &up[:len(dst)][0], len(dst)) },
	}
}

// tileFunc is a tile in assembly: strides are in bytes.
type tileFunc func(dst *float32, dstStride int, x *float32, xStride int, w *float32, wStride int, k int)

// The tiles by rows - 1 and panels - 1.
var (
	tilesAVX512 = [8][4]tileFunc{
		{tile1x1AVX512, tile1x2AVX512, tile1x3AVX512, tile1x4AVX512},
		{tile2x1AVX512, tile2x2AVX512}, {tile3x1AVX512, tile3x2AVX512}, {tile4x1AVX512, tile4x2AVX512}, {tile5x1AVX512, tile5x2AVX512},
		{tile6x1AVX512, tile6x2AVX512}, {tile7x1AVX512, tile7x2AVX512}, {tile8x1AVX512, tile8x2AVX512},
	}
	tilesAVX2 = [6][4]tileFunc{
		{tile1x1AVX2, tile1x2AVX2, tile1x3AVX2, tile1x4AVX2},
		{tile2x1AVX2}, {tile3x1AVX2}, {tile4x1AVX2}, {tile5x1AVX2}, {tile6x1AVX2},
	}
)

// callTile checks that the tile stays inside its slices.
func callTile(f tileFunc, dst []float32, dstStride int, x []float32, xStride int, w []float32, rows, panels, k int) {
	const panel = 16
	_ = dst[(rows-1)*dstStride+panels*panel-1]
	_ = x[(rows-1)*xStride+k-1]
	_ = w[panels*panel*k-1]
	f(&dst[0], 4*dstStride, &x[0], 4*xStride, &w[0], 4*panel*k, k)
}

// checkStrided panics unless n vectors of d elements, stride apart, are inside v. It gives false when there are none.
func checkStrided(n, d int, v []float32, stride int) (some bool) {
	if n == 0 || d == 0 {
		return false
	}
	_ = v[(n-1)*stride+d-1]
	return true
}
