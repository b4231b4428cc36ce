package reference

import (
	"math"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host/ram"
)

type ops struct{}

func (ops) Gather(dst, table, ids gpu.Tensor) {
	for i, id := range ram.I32(ids) {
		copy(ram.Row(dst, i), ram.Row(table, int(id)))
	}
}

func (ops) RMSNorm(dst, x, weight gpu.Tensor, eps float32) {
	w := ram.Row(weight, 0)
	for i := range x.Rows {
		in, out := ram.Row(x, i), ram.Row(dst, i)
		var squares float64
		for _, v := range in {
			squares += float64(v) * float64(v)
		}
		scale := 1 / math.Sqrt(squares/float64(x.Cols)+float64(eps))
		for j, v := range in {
			out[j] = float32(float64(v) * scale * float64(w[j]))
		}
	}
}

func (ops) MatMul(dst, x gpu.Tensor, w gpu.Matrix) {
	m := w.(*matrix)
	for i := range x.Rows {
		in, out := ram.Row(x, i), ram.Row(dst, i)
		for o := range m.out {
			out[o] = float32(dot(in, m.w[o*m.in:(o+1)*m.in]))
		}
	}
}

func dot(a, b []float32) float64 {
	var sum float64
	for k, v := range a {
		sum += float64(v) * float64(b[k])
	}
	return sum
}

func (ops) RopeTable(dst, positions, invFreq gpu.Tensor) {
	freq := ram.Row(invFreq, 0)
	for i, position := range ram.I32(positions) {
		out := ram.Row(dst, i)
		for j, f := range freq {
			angle := float32(position) * f
			out[j] = float32(math.Cos(float64(angle)))
			out[len(freq)+j] = float32(math.Sin(float64(angle)))
		}
	}
}

func (ops) Rope(x, table gpu.Tensor, headDim int) {
	half := headDim / 2
	for i := range x.Rows {
		row, t := ram.Row(x, i), ram.Row(table, i)
		for head := 0; head < x.Cols; head += headDim {
			for j := range half {
				a, b := float64(row[head+j]), float64(row[head+half+j])
				cos, sin := float64(t[j]), float64(t[half+j])
				row[head+j] = float32(a*cos - b*sin)
				row[head+half+j] = float32(b*cos + a*sin)
			}
		}
	}
}

// slot gives the keys (0) or values (1) of one head at a position: [headDim].
func slot(kv gpu.Tensor, at gpu.Paged, sequence, position, keyOrValue, head int) []float32 {
	tables := ram.I32(at.Tables)
	page := int(tables[sequence*at.Tables.Stride+position/at.PageSize])
	from := ((keyOrValue*at.PageSize+position%at.PageSize)*at.KVHeads + head) * at.HeadDim
	return ram.Row(kv, page)[from : from+at.HeadDim]
}

func (ops) StoreKV(kv, k, v gpu.Tensor, at gpu.Paged) {
	positions, sequences := ram.I32(at.Positions), ram.I32(at.Sequences)
	for i := range k.Rows {
		for head := range at.KVHeads {
			from, to := head*at.HeadDim, (head+1)*at.HeadDim
			copy(slot(kv, at, int(sequences[i]), int(positions[i]), 0, head), ram.Row(k, i)[from:to])
			copy(slot(kv, at, int(sequences[i]), int(positions[i]), 1, head), ram.Row(v, i)[from:to])
		}
	}
}

func (ops) Attention(dst, q, kv gpu.Tensor, at gpu.Paged, scale float32, window int) {
	positions, sequences := ram.I32(at.Positions), ram.I32(at.Sequences)
	heads := q.Cols / at.HeadDim
	for i := range q.Rows {
		sequence, context := int(sequences[i]), int(positions[i])+1
		first := 0
		if window > 0 {
			first = max(0, context-window)
		}
		weights := make([]float64, context-first)
		for head := range heads {
			kvHead := head / (heads / at.KVHeads)
			query := ram.Row(q, i)[head*at.HeadDim : (head+1)*at.HeadDim]
			for p := range weights {
				weights[p] = dot(query, slot(kv, at, sequence, first+p, 0, kvHead)) * float64(scale)
			}
			softmax(weights)
			mixed := make([]float64, at.HeadDim)
			for p := range weights {
				for j, v := range slot(kv, at, sequence, first+p, 1, kvHead) {
					mixed[j] += weights[p] * float64(v)
				}
			}
			out := ram.Row(dst, i)[head*at.HeadDim : (head+1)*at.HeadDim]
			for j, v := range mixed {
				out[j] = float32(v)
			}
		}
	}
}

func softmax(x []float64) {
	largest := math.Inf(-1)
	for _, v := range x {
		largest = max(largest, v)
	}
	var sum float64
	for j, v := range x {
		x[j] = math.Exp(v - largest)
		sum += x[j]
	}
	for j := range x {
		x[j] /= sum
	}
}

func (ops) SiluMul(dst, gate, up gpu.Tensor) {
	for i := range dst.Rows {
		out, g, u := ram.Row(dst, i), ram.Row(gate, i), ram.Row(up, i)
		for j := range out {
			x := float64(g[j])
			out[j] = float32(x / (1 + math.Exp(-x)) * float64(u[j]))
		}
	}
}

func (ops) Add(dst, x gpu.Tensor) {
	for i := range dst.Rows {
		to, from := ram.Row(dst, i), ram.Row(x, i)
		for j := range to {
			to[j] += from[j]
		}
	}
}

func (ops) Softmax(dst, x gpu.Tensor) {
	for i := range dst.Rows {
		in, out := ram.Row(x, i), ram.Row(dst, i)
		wide := make([]float64, len(in))
		for j, v := range in {
			wide[j] = float64(v)
		}
		softmax(wide)
		for j, v := range wide {
			out[j] = float32(v)
		}
	}
}

func (ops) ArgMax(dst, x gpu.Tensor) {
	out := ram.I32(dst)
	for i := range x.Rows {
		row := ram.Row(x, i)
		best := 0
		for j, v := range row {
			if v > row[best] {
				best = j
			}
		}
		out[i] = int32(best)
	}
}
