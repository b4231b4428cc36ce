package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/sluice-dev/sluice/gpu"
)

// memory checks copies and that pages may be moved beside each other.
func memory(b *bench) {
	for _, dtype := range []gpu.DType{gpu.F32, gpu.I32} {
		whole := gpu.View(b.alloc(b.got, dtype, 64), 16, 4)
		zero := make([]byte, 256)
		read := make([]byte, 256)
		if err := b.got.Read(read, whole); err != nil || !bytes.Equal(read, zero) {
			b.Fatalf("%s: fresh memory reads %v, %v: want zeros", dtype, read, err)
		}
		var movers sync.WaitGroup
		for i := range 16 {
			movers.Go(func() {
				row := whole.RowRange(i, i+1)
				src := bytes.Repeat([]byte{byte(i)}, 16)
				dst := make([]byte, 16)
				if err := errors.Join(b.got.Write(row, src), b.got.Read(dst, row)); err != nil || !bytes.Equal(src, dst) {
					b.Errorf("%s: row %d reads %v, %v: want %v", dtype, i, dst, err, src)
				}
			})
		}
		movers.Wait()
		if err := b.got.Write(whole, zero[:255]); err == nil {
			b.Errorf("%s: write of 255 bytes into 256: want an error", dtype)
		}
		if err := b.got.Read(read[:252], whole); err == nil {
			b.Errorf("%s: read of 252 bytes from 256: want an error", dtype)
		}
		if err := b.got.Write(whole.ColumnRange(0, 2), zero[:128]); err == nil {
			b.Errorf("%s: write into a view with gaps: want an error", dtype)
		}
	}
}

func gather(b *bench) {
	for range rounds {
		n, rows, width := b.between(1, 40), b.between(1, 50), b.between(1, 70)
		table, dst := b.floats(rows, width), b.floats(n, width)
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(b.rand.IntN(rows))
		}
		at := b.ints(1, n, ids)
		b.got.Ops().Gather(dst.got, table.got, at.got)
		b.want.Ops().Gather(dst.want, table.want, at.want)
		b.compare("gather", dst, 0)
	}
}

func rmsNorm(b *bench) {
	for range rounds {
		n, width := b.between(1, 20), b.between(1, 300)
		x, dst, weight := b.floats(n, width), b.floats(n, width), b.floats(1, width)
		b.got.Ops().RMSNorm(dst.got, x.got, weight.got, 1e-5)
		b.want.Ops().RMSNorm(dst.want, x.want, weight.want, 1e-5)
		b.compare("rmsnorm", dst, Tolerance)
		b.got.Ops().RMSNorm(x.got, x.got, weight.got, 1e-5)
		b.want.Ops().RMSNorm(x.want, x.want, weight.want, 1e-5)
		b.compare("rmsnorm in place", x, Tolerance)
	}
}

// matrix gives a random weight of about unit gain on both devices.
func (b *bench) matrix(out, in int) (got, want gpu.Matrix) {
	b.Helper()
	w := make([]float32, out*in)
	for i := range w {
		w[i] = float32(b.rand.NormFloat64() / math.Sqrt(float64(in)))
	}
	make := func(d gpu.Device) gpu.Matrix {
		m, err := d.Matrix(out, in, w)
		if err != nil {
			b.Fatalf("matrix [%d, %d]: %v", out, in, err)
		}
		if m.Out() != out || m.In() != in || m.Bytes() < int64(out*in)/8 {
			b.Fatalf("matrix [%d, %d] says [%d, %d] of %d bytes", out, in, m.Out(), m.In(), m.Bytes())
		}
		return m
	}
	return make(b.got), make(b.want)
}

func matMul(b *bench) {
	for range rounds {
		n, in, out := b.between(1, 40), b.between(1, 300), b.between(1, 200)
		switch b.rand.IntN(4) {
		case 0: // decode
			n = 1
		case 1: // more than a block of rows
			n = b.between(60, 150)
		}
		x, dst := b.floats(n, in), b.floats(n, out)
		got, want := b.matrix(out, in)
		b.got.Ops().MatMul(dst.got, x.got, got)
		b.want.Ops().MatMul(dst.want, x.want, want)
		b.compare(fmt.Sprintf("matmul [%d, %d] by [%d, %d]", n, in, out, in), dst, Tolerance)
	}
	if _, err := b.got.Matrix(2, 3, make([]float32, 5)); err == nil {
		b.Error("matrix [2, 3] from 5 elements: want an error")
	}
}

// matMulInvariance computes rows together, alone and in pairs.
func matMulInvariance(b *bench) {
	for range rounds / 4 {
		n, in, out := b.between(2, 90), b.between(1, 300), b.between(1, 200)
		x, dst := b.floats(n, in), b.floats(n, out)
		m, _ := b.matrix(out, in)
		b.got.Ops().MatMul(dst.got, x.got, m)
		want := b.download(b.got, dst.got)
		for from := 0; from < n; {
			to := min(n, from+b.between(1, 9))
			b.got.Ops().MatMul(dst.got.RowRange(from, to), x.got.RowRange(from, to), m)
			from = to
		}
		b.equal(fmt.Sprintf("matmul [%d, %d] by [%d, %d] in parts", n, in, out, in), b.download(b.got, dst.got), want)
	}
}

func rope(b *bench) {
	for range rounds {
		n, heads, half := b.between(1, 20), b.between(1, 6), b.between(1, 40)
		freq := make([]float32, half)
		for j := range freq {
			freq[j] = float32(math.Pow(10000, -float64(j)/float64(half)))
		}
		positions := make([]int32, n)
		for i := range positions {
			positions[i] = int32(b.rand.IntN(100000))
		}
		invFreq, at, table := b.tensor(freq, 1, half, half), b.ints(1, n, positions), b.floats(n, 2*half)
		b.got.Ops().RopeTable(table.got, at.got, invFreq.got)
		b.want.Ops().RopeTable(table.want, at.want, invFreq.want)
		b.compare("rope table", table, Tolerance)
		x := b.floats(n, heads*2*half)
		b.got.Ops().Rope(x.got, table.got, 2*half)
		b.want.Ops().Rope(x.want, table.want, 2*half)
		b.compare("rope", x, Tolerance)
	}
}

func siluMul(b *bench) {
	for range rounds {
		n, width := b.between(1, 20), b.between(1, 300)
		gate, up, dst := b.floats(n, width), b.floats(n, width), b.floats(n, width)
		b.got.Ops().SiluMul(dst.got, gate.got, up.got)
		b.want.Ops().SiluMul(dst.want, gate.want, up.want)
		b.compare("silu mul", dst, Tolerance)
	}
	// Far from 0 on both sides nothing may overflow.
	extremes := []float32{0, -1e-6, 1e-6, -20, 20, -80, 80, -89, 89, -200, 200, -1e30, 1e30}
	n := len(extremes)
	ones := make([]float32, n)
	for i := range ones {
		ones[i] = 1
	}
	gate, up, dst := b.tensor(extremes, 1, n, n), b.tensor(ones, 1, n, n), b.floats(1, n)
	b.got.Ops().SiluMul(dst.got, gate.got, up.got)
	b.want.Ops().SiluMul(dst.want, gate.want, up.want)
	b.compare("silu mul of extremes", dst, Tolerance)
}

func add(b *bench) {
	for range rounds {
		n, width := b.between(1, 20), b.between(1, 300)
		dst, x := b.floats(n, width), b.floats(n, width)
		b.got.Ops().Add(dst.got, x.got)
		b.want.Ops().Add(dst.want, x.want)
		b.compare("add", dst, 0)
	}
}

func softmax(b *bench) {
	for round := range rounds {
		n, width := b.between(1, 20), b.between(1, 300)
		x, dst := b.floats(n, width), b.floats(n, width)
		if round == 0 { // far apart
			x = b.tensor([]float32{-1e30, 0, 200, 199, -50, 1e4, 1e4}, 1, 7, 7)
			dst = b.floats(1, 7)
		}
		b.got.Ops().Softmax(dst.got, x.got)
		b.want.Ops().Softmax(dst.want, x.want)
		b.compare("softmax", dst, Tolerance)
		b.got.Ops().Softmax(x.got, x.got)
		b.want.Ops().Softmax(x.want, x.want)
		b.compare("softmax in place", x, Tolerance)
	}
}

func argMax(b *bench) {
	for range rounds {
		n, width := b.between(1, 20), b.between(1, 300)
		data := make([]float32, n*width)
		for i := range data {
			data[i] = float32(b.rand.IntN(8)) - 8 // ties, all below 0
		}
		x, dst := b.tensor(data, n, width, width), b.ints(1, n, make([]int32, n))
		b.got.Ops().ArgMax(dst.got, x.got)
		b.want.Ops().ArgMax(dst.want, x.want)
		got, want := make([]int32, n), make([]int32, n)
		if err := errors.Join(b.got.Read(gpu.Bytes(got), dst.got), b.want.Read(gpu.Bytes(want), dst.want)); err != nil {
			b.Fatal(err)
		}
		for i := range want {
			if got[i] != want[i] {
				b.Fatalf("argmax of row %d is %d, want %d", i, got[i], want[i])
			}
		}
	}
}

// shapes calls kernels with tensors that don't fit.
func shapes(b *bench) {
	f := func(rows, cols int) gpu.Tensor { return gpu.View(b.alloc(b.got, gpu.F32, rows*cols), rows, cols) }
	i := func(n int) gpu.Tensor { return gpu.View(b.alloc(b.got, gpu.I32, n), 1, n) }
	m, _ := b.matrix(4, 3)
	at := gpu.Paged{Positions: i(2), Sequences: i(2), Tables: i(1), PageSize: 2, KVHeads: 2, HeadDim: 4}
	ops := b.got.Ops()
	tests := []struct {
		name, reason string
		call         func()
	}{
		{"gather", "ids are floats", func() { ops.Gather(f(2, 3), f(5, 3), f(1, 2)) }},
		{"gather", "the widths differ", func() { ops.Gather(f(2, 3), f(5, 4), i(2)) }},
		{"rmsnorm", "the weight is short", func() { ops.RMSNorm(f(2, 3), f(2, 3), f(1, 2), 1) }},
		{"matmul", "x is too narrow", func() { ops.MatMul(f(2, 4), f(2, 2), m) }},
		{"matmul", "dst has a row less", func() { ops.MatMul(f(1, 4), f(2, 3), m) }},
		{"rope table", "dst is odd", func() { ops.RopeTable(f(2, 3), i(2), f(1, 1)) }},
		{"rope", "x isn't whole heads", func() { ops.Rope(f(2, 6), f(2, 4), 4) }},
		{"store kv", "a page is smaller than it says", func() { ops.StoreKV(f(3, 31), f(2, 8), f(2, 8), at) }},
		{"store kv", "v is narrower than k", func() { ops.StoreKV(f(3, 32), f(2, 8), f(2, 4), at) }},
		{"attention", "q isn't whole groups", func() { ops.Attention(f(2, 12), f(2, 12), f(3, 32), at, 1, 0) }},
		{"attention", "the window is negative", func() { ops.Attention(f(2, 16), f(2, 16), f(3, 32), at, 1, -1) }},
		{"attention", "more tokens than positions", func() { ops.Attention(f(3, 16), f(3, 16), f(3, 32), at, 1, 0) }},
		{"silu mul", "up is narrower", func() { ops.SiluMul(f(2, 3), f(2, 3), f(2, 2)) }},
		{"add", "a row less", func() { ops.Add(f(2, 3), f(1, 3)) }},
		{"softmax", "dst is integers", func() { ops.Softmax(i(3), f(1, 3)) }},
		{"argmax", "dst is floats", func() { ops.ArgMax(f(1, 2), f(2, 3)) }},
	}
	for _, test := range tests {
		func() {
			defer func() {
				if _, ok := recover().(*gpu.ShapeError); !ok {
					b.Errorf("%s where %s: want a panic with *gpu.ShapeError", test.name, test.reason)
				}
			}()
			test.call()
		}()
	}
}

// busy: the busy time never falls, and without a timer stays 0.
func busy(b *bench) {
	before := b.got.BusyNanos()
	last := before
	for range rounds {
		dst, x := b.floats(20, 300), b.floats(20, 300)
		b.got.Ops().Add(dst.got, x.got)
		if err := b.got.Sync(); err != nil {
			b.Fatal(err)
		}
		now := b.got.BusyNanos()
		if now < last || before == 0 && now > 0 {
			b.Fatalf("busy for %d ns, then for %d", last, now)
		}
		last = now
	}
}
