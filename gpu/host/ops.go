package host

import (
	"math"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host/ram"
)

// ops are the kernels of the CPU. Loops over rows are shared by the pool when there is enough to do.
type ops struct {
	k    kernels
	pool *pool

	scratch scratches // of attention
}

// pieceFlops is about how much arithmetic is worth a hand-over to another goroutine.
const pieceFlops = 1 << 16

// grain gives how many of the rows to take at once when one costs flops.
func grain(flops int) int { return max(1, pieceFlops/max(1, flops)) }

func (o *ops) Gather(dst, table, ids gpu.Tensor) {
	for i, id := range ram.I32(ids) {
		copy(ram.Row(dst, i), ram.Row(table, int(id)))
	}
}

func (o *ops) RMSNorm(dst, x, weight gpu.Tensor, eps float32) {
	w := ram.Row(weight, 0)
	o.pool.run(x.Rows, grain(4*x.Cols), func(from, to int) {
		squares := make([]float32, 1)
		for i := from; i < to; i++ {
			in, out := ram.Row(x, i), ram.Row(dst, i)
			o.k.dots(squares, in, in, 0)
			scale := 1 / float32(math.Sqrt(float64(squares[0]/float32(len(in))+eps)))
			for j, v := range in {
				out[j] = v * scale * w[j]
			}
		}
	})
}

func (o *ops) RopeTable(dst, positions, invFreq gpu.Tensor) {
	freq, at := ram.Row(invFreq, 0), ram.I32(positions)
	o.pool.run(dst.Rows, grain(80*len(freq)), func(from, to int) {
		for i := from; i < to; i++ {
			out := ram.Row(dst, i)
			cos, sin := out[:len(freq)], out[len(freq):]
			for j, f := range freq {
				s, c := math.Sincos(float64(float32(at[i]) * f))
				cos[j], sin[j] = float32(c), float32(s)
			}
		}
	})
}

func (o *ops) Rope(x, table gpu.Tensor, headDim int) {
	half := headDim / 2
	o.pool.run(x.Rows, grain(3*x.Cols), func(from, to int) {
		for i := from; i < to; i++ {
			t := ram.Row(table, i)
			cos, sin := t[:half], t[half:]
			for row := ram.Row(x, i); len(row) > 0; row = row[headDim:] {
				a, b := row[:half:half], row[half:headDim:headDim]
				for j, c := range cos {
					s, u, v := sin[j], a[j], b[j]
					a[j] = float32(u*c) - float32(v*s)
					b[j] = float32(v*c) + float32(u*s)
				}
			}
		}
	})
}

func (o *ops) StoreKV(kv, k, v gpu.Tensor, at gpu.Paged) {
	positions, sequences, tables := ram.I32(at.Positions), ram.I32(at.Sequences), ram.I32(at.Tables)
	width := at.KVHeads * at.HeadDim
	for i := range k.Rows {
		position := int(positions[i])
		page := int(tables[int(sequences[i])*at.Tables.Stride+position/at.PageSize])
		slot := ram.Row(kv, page)[position%at.PageSize*width:]
		copy(slot[:width], ram.Row(k, i))
		copy(slot[at.PageSize*width:][:width], ram.Row(v, i))
	}
}

func (o *ops) SiluMul(dst, gate, up gpu.Tensor) {
	o.pool.run(dst.Rows, grain(20*dst.Cols), func(from, to int) {
		for i := from; i < to; i++ {
			o.k.siluMul(ram.Row(dst, i), ram.Row(gate, i), ram.Row(up, i))
		}
	})
}

func (o *ops) Add(dst, x gpu.Tensor) {
	o.pool.run(dst.Rows, grain(2*dst.Cols), func(from, to int) {
		for i := from; i < to; i++ {
			a := ram.Row(dst, i)
			for j, v := range ram.Row(x, i) {
				a[j] += v
			}
		}
	})
}

func (o *ops) Softmax(dst, x gpu.Tensor) {
	o.pool.run(dst.Rows, grain(20*dst.Cols), func(from, to int) {
		for i := from; i < to; i++ {
			out := ram.Row(dst, i)
			copy(out, ram.Row(x, i))
			inverse := 1 / o.k.expSum(out, largest(out))
			for j := range out {
				out[j] *= inverse
			}
		}
	})
}

func largest(x []float32) float32 {
	m := x[0]
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func (o *ops) ArgMax(dst, x gpu.Tensor) {
	out := ram.I32(dst)
	o.pool.run(x.Rows, grain(x.Cols), func(from, to int) {
		for i := from; i < to; i++ {
			row := ram.Row(x, i)
			best := 0
			for j, v := range row {
				if v > row[best] {
					best = j
				}
			}
			out[i] = int32(best)
		}
	})
}
