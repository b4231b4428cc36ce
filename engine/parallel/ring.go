package parallel

import (
	"context"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// ring is bytes on their way from one writer to one reader, in shared memory or on the heap.
type ring struct {
	marks *marks
	data  []byte // its length is a power of two
	park  parker
}

// marks are the positions of a ring, in bytes modulo 2^32: 0 <= written - read <= len(data). Each is stored by one side
// only, on a cache line of its own. The sides keep their own position to themselves too and check the other's: it may
// come from a peer that is out of its mind.
type marks struct {
	written     atomic.Uint32
	_           [60]byte
	read        atomic.Uint32
	_           [60]byte
	readerWaits atomic.Uint32 // 1 while the reader is parked until written changes
	_           [60]byte
	writerWaits atomic.Uint32 // 1 while the writer is parked until read changes
	_           [60]byte
}

const marksBytes = int(unsafe.Sizeof(marks{}))

// parker puts a side of a ring to sleep.
type parker interface {
	// wait returns once word may have another value than old, once stop or done is closed, or now and then for no reason.
	wait(side side, word *atomic.Uint32, old uint32, stop, done <-chan struct{})
	// wake ends a wait for word.
	wake(side side, word *atomic.Uint32)
	// looks is how often to look at the word again before a wait.
	looks() int
}

type side uint8

const (
	reading side = iota
	writing
)

func newHeapRing(bytes int) *ring {
	return &ring{marks: &marks{}, data: make([]byte, bytes), park: newSleeper()}
}

// sleeper parks goroutines of one process.
type sleeper [2]chan struct{} // by side, each with room for one signal

func newSleeper() *sleeper { return &sleeper{make(chan struct{}, 1), make(chan struct{}, 1)} }

func (s *sleeper) wait(side side, _ *atomic.Uint32, _ uint32, stop, done <-chan struct{}) {
	select {
	case <-s[side]:
	case <-stop:
	case <-done:
	}
}

func (s *sleeper) wake(side side, _ *atomic.Uint32) {
	select {
	case s[side] <- struct{}{}:
	default:
	}
}

// looks is few: whoever fills the ring needs this process's threads for it.
func (s *sleeper) looks() int { return 8 }

// end is one side of a ring as a rank holds it. One goroutine at a time uses it.
type end struct {
	ring  *ring
	peer  int    // the rank on the other side
	place uint32 // own position, the true one
	world *World // whose end ends waits
}

// space gives how many bytes the side may move, or what is wrong with the peer's mark.
func (e *end) space(side side) (n int, mark uint32, err error) {
	size := uint32(len(e.ring.data))
	var used uint32 // written - read
	if side == reading {
		mark = e.ring.marks.written.Load()
		used = mark - e.place
	} else {
		mark = e.ring.marks.read.Load()
		used = e.place - mark
	}
	if used > size {
		return 0, 0, peerErrorf(e.peer, "left a mark %d bytes off in a ring of %d: its memory is damaged", used, size)
	}
	if side == reading {
		return int(used), mark, nil
	}
	return int(size - used), mark, nil
}

// segment gives up to n bytes at the side's position, as far as they are in one piece.
func (e *end) segment(n int) []byte {
	at := int(e.place) & (len(e.ring.data) - 1)
	return e.ring.data[at:min(len(e.ring.data), at+n)]
}

// moved publishes the side's position after n bytes and wakes the other side.
func (e *end) moved(side side, n int) {
	e.place += uint32(n)
	m := e.ring.marks
	if side == reading {
		m.read.Store(e.place)
		if m.writerWaits.Load() != 0 {
			e.ring.park.wake(writing, &m.read)
		}
		return
	}
	m.written.Store(e.place)
	if m.readerWaits.Load() != 0 {
		e.ring.park.wake(reading, &m.written)
	}
}

// room waits until the side can move a byte.
func (e *end) room(ctx context.Context, side side) (int, error) {
	m := e.ring.marks
	word, waits := &m.written, &m.readerWaits
	if side == writing {
		word, waits = &m.read, &m.writerWaits
	}
	for i := 0; ; i++ {
		n, mark, err := e.space(side)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-e.world.stop:
			// What came before the end counts, and the peer may have written it and left since the look above.
			if n, _, err := e.space(side); n > 0 && err == nil {
				return n, nil
			}
			return 0, e.world.Err()
		case <-ctx.Done():
			return 0, ctx.Err()
		default:
		}
		if i < e.ring.park.looks() {
			runtime.Gosched()
			continue
		}
		waits.Store(1)
		if word.Load() == mark {
			e.ring.park.wait(side, word, mark, e.world.stop, ctx.Done())
		}
		waits.Store(0)
	}
}

// recv fills p.
func (e *end) recv(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		n, err := e.room(ctx, reading)
		if err != nil {
			return err
		}
		n = copy(p, e.segment(n))
		e.moved(reading, n)
		p = p[n:]
	}
	return nil
}

// send writes a, then b. What fits is published at once, so that the reader wakes once.
func (e *end) send(ctx context.Context, a, b []byte) error {
	for len(a)+len(b) > 0 {
		room, err := e.room(ctx, writing)
		if err != nil {
			return err
		}
		moved := 0
		for _, p := range []*[]byte{&a, &b} {
			for moved < room && len(*p) > 0 {
				at := int(e.place+uint32(moved)) & (len(e.ring.data) - 1)
				n := copy(e.ring.data[at:min(len(e.ring.data), at+room-moved)], *p)
				*p = (*p)[n:]
				moved += n
			}
		}
		e.moved(writing, moved)
	}
	return nil
}
