package gpu

import "fmt"

// Buffer is a piece of device memory. Only the device that allocated it may use it.
type Buffer interface {
	DType() DType
	Len() int // elements
}

// Tensor is a row-major view of a buffer: element (i, j) is at Off + i*Stride + j. A vector has one row. Copies of a
// Tensor share the memory.
type Tensor struct {
	Buf    Buffer
	Off    int // elements
	Rows   int
	Cols   int
	Stride int // elements, >= Cols
}

// View gives the first rows*cols elements of b as a dense matrix.
func View(b Buffer, rows, cols int) Tensor {
	if rows < 0 || cols < 0 || rows*cols > b.Len() {
		panic(&ShapeError{Op: "view", Detail: fmt.Sprintf("[%d, %d] of a buffer of %d", rows, cols, b.Len())})
	}
	return Tensor{Buf: b, Rows: rows, Cols: cols, Stride: cols}
}

// RowRange gives rows [from, to).
func (t Tensor) RowRange(from, to int) Tensor {
	if from < 0 || from > to || to > t.Rows {
		panic(&ShapeError{Op: "rows", Detail: fmt.Sprintf("[%d, %d) of %v", from, to, t)})
	}
	t.Off += from * t.Stride
	t.Rows = to - from
	return t
}

// ColumnRange gives columns [from, to) of every row.
func (t Tensor) ColumnRange(from, to int) Tensor {
	if from < 0 || from > to || to > t.Cols {
		panic(&ShapeError{Op: "columns", Detail: fmt.Sprintf("[%d, %d) of %v", from, to, t)})
	}
	t.Off += from
	t.Cols = to - from
	return t
}

// Dense reports whether the rows follow each other without gaps.
func (t Tensor) Dense() bool { return t.Stride == t.Cols || t.Rows <= 1 }

// Len is the number of elements seen through the view.
func (t Tensor) Len() int { return t.Rows * t.Cols }

func (t Tensor) String() string {
	if t.Buf == nil {
		return "no tensor"
	}
	return fmt.Sprintf("%s[%d, %d]", t.Buf.DType(), t.Rows, t.Cols)
}

// Matrix is the weight of a linear layer in the layout that its device likes best: packed, padded, later quantised.
// Only the device that made it may use it.
type Matrix interface {
	Out() int // outputs: rows of the weight as Hugging Face stores it
	In() int  // inputs
	Bytes() int64
}
