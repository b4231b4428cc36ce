package gpu

import (
	"sync/atomic"
	"time"
)

// Timer adds up how long kernels run that are done when they return. Readers may be on other goroutines than the kernels.
type Timer struct {
	base  time.Time // of Timed; what passes since then takes one reading of one clock
	nanos atomic.Int64
}

// BusyNanos is the time so far.
func (t *Timer) BusyNanos() int64 { return t.nanos.Load() }

// Timed wraps kernels that are done when they return, so that the timer knows their time.
func (t *Timer) Timed(ops Ops) Ops {
	t.base = time.Now()
	return timed{ops, t}
}

type timed struct {
	ops Ops
	t   *Timer
}

func (t *Timer) now() int64 { return int64(time.Since(t.base)) }

// end counts a kernel that began then. One that panics does not count: the rank ends with it.
func (t *Timer) end(began int64) { t.nanos.Add(t.now() - began) }

func (o timed) Gather(dst, table, ids Tensor) {
	began := o.t.now()
	o.ops.Gather(dst, table, ids)
	o.t.end(began)
}

func (o timed) RMSNorm(dst, x, weight Tensor, eps float32) {
	began := o.t.now()
	o.ops.RMSNorm(dst, x, weight, eps)
	o.t.end(began)
}

func (o timed) MatMul(dst, x Tensor, w Matrix) {
	began := o.t.now()
	o.ops.MatMul(dst, x, w)
	o.t.end(began)
}

func (o timed) RopeTable(dst, positions, invFreq Tensor) {
	began := o.t.now()
	o.ops.RopeTable(dst, positions, invFreq)
	o.t.end(began)
}

func (o timed) Rope(x, table Tensor, headDim int) {
	began := o.t.now()
	o.ops.Rope(x, table, headDim)
	o.t.end(began)
}

func (o timed) StoreKV(kv, k, v Tensor, at Paged) {
	began := o.t.now()
	o.ops.StoreKV(kv, k, v, at)
	o.t.end(began)
}

func (o timed) Attention(dst, q, kv Tensor, at Paged, scale float32, window int) {
	began := o.t.now()
	o.ops.Attention(dst, q, kv, at, scale, window)
	o.t.end(began)
}

func (o timed) SiluMul(dst, gate, up Tensor) {
	began := o.t.now()
	o.ops.SiluMul(dst, gate, up)
	o.t.end(began)
}

func (o timed) Add(dst, x Tensor) {
	began := o.t.now()
	o.ops.Add(dst, x)
	o.t.end(began)
}

func (o timed) Softmax(dst, x Tensor) {
	began := o.t.now()
	o.ops.Softmax(dst, x)
	o.t.end(began)
}

func (o timed) ArgMax(dst, x Tensor) {
	began := o.t.now()
	o.ops.ArgMax(dst, x)
	o.t.end(began)
}
