package host

import (
	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host/ram"
)

// rowBlock is how many rows go over a group of panels while it is in the cache.
const rowBlock = 64

// MatMul cuts the result into blocks of rowBlock rows by one group of panels. A group's weights are read from memory
// once a block, and a tile of rows stays in the first cache while the group's panels go by.
func (o *ops) MatMul(dst, x gpu.Tensor, w gpu.Matrix) {
	m := w.(*matrix)
	group := o.k.flat
	if x.Rows > 1 {
		group = o.k.tall
	}
	groups := (m.panels + group - 1) / group
	blocks := (x.Rows + rowBlock - 1) / rowBlock
	flops := 2 * min(x.Rows, rowBlock) * m.in * group * m.width
	o.pool.run(groups*blocks, grain(flops), func(from, to int) {
		for item := from; item < to; item++ {
			g, b := item%groups, item/groups
			o.matmulBlock(dst, x, m, g*group, min((g+1)*group, m.panels), b*rowBlock, min((b+1)*rowBlock, x.Rows))
		}
	})
}

// matmulBlock computes rows [fromRow, toRow) of the outputs of panels [fromPanel, toPanel).
func (o *ops) matmulBlock(dst, x gpu.Tensor, m *matrix, fromPanel, toPanel, fromRow, toRow int) {
	in, out := ram.F32(x), ram.F32(dst)
	weights := m.from(fromPanel)
	column, width := fromPanel*m.width, (toPanel-fromPanel)*m.width
	var sums []float32 // of a tile whose last panel is padded
	if column+width > m.out {
		sums = make([]float32, o.k.rows*width)
	}
	for row := fromRow; row < toRow; row += o.k.rows {
		rows := min(o.k.rows, toRow-row)
		if sums == nil {
			o.k.tile(out[row*dst.Stride+column:], dst.Stride, in[row*x.Stride:], x.Stride, weights, rows, toPanel-fromPanel, m.in)
			continue
		}
		o.k.tile(sums, width, in[row*x.Stride:], x.Stride, weights, rows, toPanel-fromPanel, m.in)
		for r := range rows {
			copy(out[(row+r)*dst.Stride+column:(row+r)*dst.Stride+m.out], sums[r*width:])
		}
	}
}
