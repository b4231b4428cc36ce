package host

import (
	"fmt"
	"runtime"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host/ram"
)

// Config is what a caller may choose.
type Config struct {
	// Threads is the number of goroutines that compute, the caller's included, at most maxThreads; 0 means GOMAXPROCS. The
	// results don't depend on it.
	Threads int
	// Portable forces the kernels written in Go where the CPU has faster ones.
	Portable bool
	// Timer lets BusyNanos know how long kernels run.
	Timer bool
}

// Device is the CPU. Create it with New and end it with Close.
type Device struct {
	kernels kernels
	pool    *pool
	ops     gpu.Ops
	timer   gpu.Timer
}

// maxThreads is more than any machine has; each thread is a goroutine from the start.
const maxThreads = 4096

// New starts the pool.
func New(cfg Config) (*Device, error) {
	if cfg.Threads < 0 || cfg.Threads > maxThreads {
		return nil, fmt.Errorf("threads is %d: want 0 (one per CPU) to %d", cfg.Threads, maxThreads)
	}
	if cfg.Threads == 0 {
		cfg.Threads = runtime.GOMAXPROCS(0)
	}
	k := fastest()
	if cfg.Portable {
		k = portable()
	}
	d := start(k, cfg.Threads)
	if cfg.Timer {
		d.ops = gpu.Checked(d.timer.Timed(&ops{k: d.kernels, pool: d.pool}))
	}
	return d, nil
}

func start(k kernels, threads int) *Device {
	d := &Device{kernels: k, pool: newPool(threads)}
	d.ops = gpu.Checked(&ops{k: k, pool: d.pool})
	return d
}

// Info names the device and its kernels.
func (d *Device) Info() gpu.Info {
	total, free := ram.Memory()
	return gpu.Info{Name: "cpu", Kernels: d.kernels.name, Threads: d.pool.threads, MemoryBytes: total, MemoryFreeBytes: free}
}

// Alloc gives zeroed memory of the Go heap.
func (d *Device) Alloc(dtype gpu.DType, n int) (gpu.Buffer, error) { return ram.Alloc(dtype, n) }

// Matrix packs src into panels.
func (d *Device) Matrix(out, in int, src []float32) (gpu.Matrix, error) {
	return pack(d.kernels.panel, out, in, src)
}

// Write copies src into dst.
func (d *Device) Write(dst gpu.Tensor, src []byte) error { return ram.Write(dst, src) }

// Read copies src into dst.
func (d *Device) Read(dst []byte, src gpu.Tensor) error { return ram.Read(dst, src) }

// Ops gives the kernels. They are done when they return.
func (d *Device) Ops() gpu.Ops { return d.ops }

// BusyNanos is the time in kernels and between those of a pass, see gpu.Timer; 0 without Config.Timer.
func (d *Device) BusyNanos() int64 { return d.timer.BusyNanos() }

// Sync has nothing to wait for, and tells the timer so.
func (d *Device) Sync() error {
	d.timer.Sync()
	return nil
}

// Close ends the pool's goroutines.
func (d *Device) Close() error {
	d.pool.close()
	return nil
}
