package gpu

import "fmt"

// ShapeError is the panic of a kernel called with tensors that don't fit.
type ShapeError struct {
	Op     string
	Detail string
}

func (e *ShapeError) Error() string { return fmt.Sprintf("gpu: %s: %s", e.Op, e.Detail) }

// Checked wraps the kernels of a device with the checks of shapes and types.
func Checked(ops Ops) Ops { return checked{ops} }

type checked struct{ ops Ops }

// want panics unless t is a well-formed [rows, cols] view of dtype; -1 accepts any extent.
func want(op, name string, t Tensor, dtype DType, rows, cols int) {
	bad := t.Buf == nil || t.Buf.DType() != dtype || t.Rows < 1 || t.Cols < 1 || t.Off < 0 || t.Stride < t.Cols ||
		t.Off+(t.Rows-1)*t.Stride+t.Cols > t.Buf.Len() ||
		(rows >= 0 && t.Rows != rows) || (cols >= 0 && t.Cols != cols)
	if bad {
		panic(&ShapeError{op, fmt.Sprintf("%s is %v, want %s%s", name, t, dtype, extent(rows, cols))})
	}
}

func extent(rows, cols int) string {
	part := func(n int) string {
		if n < 0 {
			return "any"
		}
		return fmt.Sprint(n)
	}
	return "[" + part(rows) + ", " + part(cols) + "]"
}

func demand(op string, ok bool, format string, args ...any) {
	if !ok {
		panic(&ShapeError{op, fmt.Sprintf(format, args...)})
	}
}

func (c checked) Gather(dst, table, ids Tensor) {
	want("gather", "dst", dst, F32, -1, -1)
	want("gather", "table", table, F32, -1, dst.Cols)
	want("gather", "ids", ids, I32, 1, dst.Rows)
	c.ops.Gather(dst, table, ids)
}

func (c checked) RMSNorm(dst, x, weight Tensor, eps float32) {
	want("rmsnorm", "dst", dst, F32, -1, -1)
	want("rmsnorm", "x", x, F32, dst.Rows, dst.Cols)
	want("rmsnorm", "weight", weight, F32, 1, dst.Cols)
	c.ops.RMSNorm(dst, x, weight, eps)
}

func (c checked) MatMul(dst, x Tensor, w Matrix) {
	want("matmul", "dst", dst, F32, -1, w.Out())
	want("matmul", "x", x, F32, dst.Rows, w.In())
	c.ops.MatMul(dst, x, w)
}

func (c checked) RopeTable(dst, positions, invFreq Tensor) {
	want("rope table", "dst", dst, F32, -1, -1)
	demand("rope table", dst.Cols%2 == 0, "dst is %v, want an even width", dst)
	want("rope table", "positions", positions, I32, 1, dst.Rows)
	want("rope table", "invFreq", invFreq, F32, 1, dst.Cols/2)
	c.ops.RopeTable(dst, positions, invFreq)
}

func (c checked) Rope(x, table Tensor, headDim int) {
	want("rope", "x", x, F32, -1, -1)
	want("rope", "table", table, F32, x.Rows, headDim)
	demand("rope", headDim%2 == 0 && x.Cols%headDim == 0, "x is %v, want a multiple of the even head dim %d", x, headDim)
	c.ops.Rope(x, table, headDim)
}

func (c checked) paged(op string, kv Tensor, n int, at Paged) {
	demand(op, at.PageSize > 0 && at.KVHeads > 0 && at.HeadDim > 0, "page %d x %d x %d, want all above 0", at.PageSize, at.KVHeads, at.HeadDim)
	want(op, "kv", kv, F32, -1, at.PageElements())
	demand(op, kv.Dense(), "kv is %v with stride %d, want it dense", kv, kv.Stride)
	want(op, "positions", at.Positions, I32, 1, n)
	want(op, "sequences", at.Sequences, I32, 1, n)
	want(op, "tables", at.Tables, I32, -1, -1)
}

func (c checked) StoreKV(kv, k, v Tensor, at Paged) {
	want("store kv", "k", k, F32, -1, at.KVHeads*at.HeadDim)
	want("store kv", "v", v, F32, k.Rows, k.Cols)
	c.paged("store kv", kv, k.Rows, at)
	c.ops.StoreKV(kv, k, v, at)
}

func (c checked) Attention(dst, q, kv Tensor, at Paged, scale float32, window int) {
	want("attention", "dst", dst, F32, -1, -1)
	want("attention", "q", q, F32, dst.Rows, dst.Cols)
	c.paged("attention", kv, q.Rows, at)
	demand("attention", q.Cols%(at.KVHeads*at.HeadDim) == 0, "q is %v, want a multiple of %d heads of %d", q, at.KVHeads, at.HeadDim)
	demand("attention", window >= 0, "window is %d, want 0 (none) or more tokens", window)
	c.ops.Attention(dst, q, kv, at, scale, window)
}

func (c checked) SiluMul(dst, gate, up Tensor) {
	want("silu mul", "dst", dst, F32, -1, -1)
	want("silu mul", "gate", gate, F32, dst.Rows, dst.Cols)
	want("silu mul", "up", up, F32, dst.Rows, dst.Cols)
	c.ops.SiluMul(dst, gate, up)
}

func (c checked) Add(dst, x Tensor) {
	want("add", "dst", dst, F32, -1, -1)
	want("add", "x", x, F32, dst.Rows, dst.Cols)
	c.ops.Add(dst, x)
}

func (c checked) Softmax(dst, x Tensor) {
	want("softmax", "dst", dst, F32, -1, -1)
	want("softmax", "x", x, F32, dst.Rows, dst.Cols)
	c.ops.Softmax(dst, x)
}

func (c checked) ArgMax(dst, x Tensor) {
	want("argmax", "x", x, F32, -1, -1)
	want("argmax", "dst", dst, I32, 1, x.Rows)
	c.ops.ArgMax(dst, x)
}
