package gpu

import (
	"sync/atomic"
	"time"
)

// Timer adds up how long kernels run that are done when they return: from the begin of the first one to the Sync behind the
// last, what the caller does between two of them included, as events around the work of a stream count it. So a pass of a
// hundred kernels takes two readings of the clock. Timed kernels and Sync belong to one goroutine at a time; BusyNanos may be
// asked by others.
type Timer struct {
	base  time.Time    // of Timed; what passes since then takes one reading of one clock
	began int64        // since base, when the first kernel after the last Sync began; 0: none has
	nanos atomic.Int64 // of what is over
}

// BusyNanos is the time so far, up to the last Sync.
func (t *Timer) BusyNanos() int64 { return t.nanos.Load() }

// Timed wraps kernels that are done when they return, so that the timer knows their time.
func (t *Timer) Timed(ops Ops) Ops {
	t.base = time.Now()
	return timed{ops, t}
}

// Sync says that nothing runs until the next kernel begins.
func (t *Timer) Sync() {
	if t.began != 0 {
		t.nanos.Add(t.now() - t.began)
		t.began = 0
	}
}

type timed struct {
	ops Ops
	t   *Timer
}

func (t *Timer) now() int64 { return int64(time.Since(t.base)) }

func (t *Timer) begin() {
	if t.began == 0 {
		t.began = max(1, t.now())
	}
}

func (o timed) Gather(dst, table, ids Tensor) {
	o.t.begin()
	o.ops.Gather(dst, table, ids)
}

func (o timed) RMSNorm(dst, x, weight Tensor, eps float32) {
	o.t.begin()
	o.ops.RMSNorm(dst, x, weight, eps)
}

func (o timed) MatMul(dst, x Tensor, w Matrix) {
	o.t.begin()
	o.ops.MatMul(dst, x, w)
}

func (o timed) RopeTable(dst, positions, invFreq Tensor) {
	o.t.begin()
	o.ops.RopeTable(dst, positions, invFreq)
}

func (o timed) Rope(x, table Tensor, headDim int) {
	o.t.begin()
	o.ops.Rope(x, table, headDim)
}

func (o timed) StoreKV(kv, k, v Tensor, at Paged) {
	o.t.begin()
	o.ops.StoreKV(kv, k, v, at)
}

func (o timed) Attention(dst, q, kv Tensor, at Paged, scale float32, window int) {
	o.t.begin()
	o.ops.Attention(dst, q, kv, at, scale, window)
}

func (o timed) SiluMul(dst, gate, up Tensor) {
	o.t.begin()
	o.ops.SiluMul(dst, gate, up)
}

func (o timed) Add(dst, x Tensor) {
	o.t.begin()
	o.ops.Add(dst, x)
}

func (o timed) Softmax(dst, x Tensor) {
	o.t.begin()
	o.ops.Softmax(dst, x)
}

func (o timed) ArgMax(dst, x Tensor) {
	o.t.begin()
	o.ops.ArgMax(dst, x)
}
