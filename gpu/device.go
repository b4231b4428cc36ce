package gpu

// Device is one accelerator with its memory. Alloc, Matrix, Read and Write may be called from any goroutine; the Ops
// from one at a time.
type Device interface {
	Info() Info

	// Alloc gives n zeroed elements. The memory lives until the buffer is unreachable or the device is closed.
	Alloc(dtype DType, n int) (Buffer, error)

	// Matrix takes a weight src, [out, in] row-major, into the device's own layout. src is not kept.
	Matrix(out, in int, src []float32) (Matrix, error)

	// Write copies src into dst, a dense tensor of exactly len(src) bytes. It is safe beside running Ops that don't
	// touch dst.
	Write(dst Tensor, src []byte) error
	// Read copies src, a dense tensor of exactly len(dst) bytes, into dst, after the Ops issued so far by the same
	// goroutine. It is safe beside running Ops that don't write src.
	Read(dst []byte, src Tensor) error

	Ops() Ops

	// BusyNanos is how long Ops have kept the device busy since it was made, from the first one after a Sync to the next Sync,
	// up to the last Sync: it never falls. It is 0 on a device that was made without a timer. It may be called from any goroutine.
	BusyNanos() int64

	// Sync waits for all Ops issued so far, and belongs to the goroutine that issues them. It must follow the last ones of a
	// pass, and go before waits for others: until then the device counts as busy. Devices that run behind the caller report
	// their errors here.
	Sync() error

	// Close frees everything; no other call may follow or be under way.
	Close() error
}

// Info says what a device is.
type Info struct {
	Name    string // for people and for the accelerator field of /v1/loads
	Kernels string // which set of kernels was chosen
	Threads int    // host threads that run kernels, 0 on devices with their own

	MemoryBytes     int64 // all there is
	MemoryFreeBytes int64 // what was free when asked, or MemoryBytes where that can't be known
}
