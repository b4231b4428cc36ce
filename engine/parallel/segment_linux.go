package parallel

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapShared maps bytes of the file at path, which it makes when nobody has, zeroed. Every process of a host calls it.
func mapShared(path string, bytes int) (memory []byte, unmap func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(int64(bytes)); err != nil {
		return nil, nil, fmt.Errorf("shared memory %s: %w", path, err)
	}
	// A full file system must be an error here, not a fault at the first touch of a page. Some can't reserve.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(bytes)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil, fmt.Errorf("shared memory %s: reserve %d bytes: %w: free space there or choose another folder with TMPDIR", path, bytes, err)
	}
	memory, err = unix.Mmap(int(f.Fd()), 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map shared memory %s: %w", path, err)
	}
	return memory, func() error { return unix.Munmap(memory) }, nil
}

// futex parks threads of any process on a word of shared memory. The kernel can't be told of stop and done, so that a
// wait looks after them as often as napNanos says.
type futex struct{}

const napNanos = 50_000_000

const (
	futexWait = 0
	futexWake = 1
)

func (futex) wait(_ side, word *atomic.Uint32, old uint32, stop, done <-chan struct{}) {
	select {
	case <-stop:
		return
	case <-done:
		return
	default:
	}
	nap := unix.NsecToTimespec(napNanos)
	// Any return is a reason to look again: the word changed, a wake, a signal or the time is over.
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(old), uintptr(unsafe.Pointer(&nap)), 0, 0)
}

func (futex) wake(_ side, word *atomic.Uint32) {
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1, 0, 0, 0)
}

// looks is about what a peer that computes the same needs to answer, some microseconds.
func (futex) looks() int { return 200 }

func sharedParker() parker { return futex{} }
