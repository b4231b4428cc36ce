package reference

import (
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host/ram"
)

// Device computes on the calling goroutine.
type Device struct{}

// New gives a device; it holds nothing.
func New() *Device { return &Device{} }

// Info names the device.
func (*Device) Info() gpu.Info {
	total, free := ram.Memory()
	return gpu.Info{Name: "cpu", Kernels: "reference", Threads: 1, MemoryBytes: total, MemoryFreeBytes: free}
}

// Alloc gives zeroed memory.
func (*Device) Alloc(dtype gpu.DType, n int) (gpu.Buffer, error) { return ram.Alloc(dtype, n) }

type matrix struct {
	out, in int
	w       []float32 // [out, in]
}

func (m *matrix) Out() int     { return m.out }
func (m *matrix) In() int      { return m.in }
func (m *matrix) Bytes() int64 { return int64(len(m.w)) * 4 }

// Matrix copies src as it is.
func (*Device) Matrix(out, in int, src []float32) (gpu.Matrix, error) {
	if out < 1 || in < 1 || len(src) != out*in {
		return nil, fmt.Errorf("matrix [%d, %d] from %d elements: the sizes disagree", out, in, len(src))
	}
	return &matrix{out: out, in: in, w: slices.Clone(src)}, nil
}

// Write copies src into dst.
func (*Device) Write(dst gpu.Tensor, src []byte) error { return ram.Write(dst, src) }

// Read copies src into dst.
func (*Device) Read(dst []byte, src gpu.Tensor) error { return ram.Read(dst, src) }

// Ops gives the kernels.
func (*Device) Ops() gpu.Ops { return gpu.Checked(ops{}) }

// BusyNanos is 0: there is no timer.
func (*Device) BusyNanos() int64 { return 0 }

// Sync has nothing to wait for.
func (*Device) Sync() error { return nil }

// Close has nothing to free.
func (*Device) Close() error { return nil }
