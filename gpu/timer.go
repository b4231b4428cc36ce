package gpu

import (
	"sync/atomic"
	"time"
)

// Timer adds up how long kernels run that are done when they return. Readers may be on other goroutines than the kernels.
type Timer struct{ nanos atomic.Int64 }

// BusyNanos is the time so far.
func (t *Timer) BusyNanos() int64 { return t.nanos.Load() }

// Timed wraps kernels that are done when they return, so that the timer knows their time.
func (t *Timer) Timed(ops Ops) Ops { return timed{ops, t} }

type timed struct {
	ops Ops
	t   *Timer
}

func (o timed) since(began time.Time) { o.t.nanos.Add(int64(time.Since(began))) }

func (o timed) Gather(dst, table, ids Tensor) {
	defer o.since(time.Now())
	o.ops.Gather(dst, table, ids)
}

func (o timed) RMSNorm(dst, x, weight Tensor, eps float32) {
	defer o.since(time.Now())
	o.ops.RMSNorm(dst, x, weight, eps)
}

func (o timed) MatMul(dst, x Tensor, w Matrix) {
	defer o.since(time.Now())
	o.ops.MatMul(dst, x, w)
}

func (o timed) RopeTable(dst, positions, invFreq Tensor) {
	defer o.since(time.Now())
	o.ops.RopeTable(dst, positions, invFreq)
}

func (o timed) Rope(x, table Tensor, headDim int) {
	defer o.since(time.Now())
	o.ops.Rope(x, table, headDim)
}

func (o timed) StoreKV(kv, k, v Tensor, at Paged) {
	defer o.since(time.Now())
	o.ops.StoreKV(kv, k, v, at)
}

func (o timed) Attention(dst, q, kv Tensor, at Paged, scale float32, window int) {
	defer o.since(time.Now())
	o.ops.Attention(dst, q, kv, at, scale, window)
}

func (o timed) SiluMul(dst, gate, up Tensor) {
	defer o.since(time.Now())
	o.ops.SiluMul(dst, gate, up)
}

func (o timed) Add(dst, x Tensor) {
	defer o.since(time.Now())
	o.ops.Add(dst, x)
}

func (o timed) Softmax(dst, x Tensor) {
	defer o.since(time.Now())
	o.ops.Softmax(dst, x)
}

func (o timed) ArgMax(dst, x Tensor) {
	defer o.since(time.Now())
	o.ops.ArgMax(dst, x)
}
