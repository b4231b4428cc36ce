package disagg

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	farewellTimeout = 250 * time.Millisecond // for the error frame to a peer that may not read any more
	smallBuffer     = maxControlBytes + headerBytes
	pageBuffer      = 128 << 10 // read buffer while pages arrive; larger when one page frame is larger
)

// errClosed is how a connection ends whose other side closed it.
var errClosed = errors.New("the peer closed the connection")

// wasClosed reports whether err says that the other side closed the connection, without a word about why.
func wasClosed(err error) bool {
	return errors.Is(err, errClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// link is one TCP connection that carries frames. One goroutine reads; any may write.
type link struct {
	conn net.Conn
	idle time.Duration // longest silence of the peer

	fresh *list.Element // prefill: place in the list of handshakes, guarded by Prefill.mu

	limits limits // what the peer may send besides control frames; zero until the handshake is over (prefill: always)

	// exact makes fill read no more than it must: pages go to their place, not through buf.
	exact bool

	// buf[r:w] was read and not consumed; 0 <= r <= w <= len(buf).
	buf  []byte
	r, w int

	interrupted atomic.Bool // no read may block from now on

	wmu     sync.Mutex
	broken  bool        // guarded by wmu: a write failed or a farewell was said: nothing may follow
	closing atomic.Bool // a farewell is due: no write may take longer than farewellTimeout from now on
}

func newLink(conn net.Conn, idle time.Duration) *link {
	return &link{conn: conn, idle: idle, buf: make([]byte, smallBuffer)}
}

// keepAlive lets the kernel notice a dead machine even when this process is stopped for a while.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

func tune(conn net.Conn) {
	if t, ok := conn.(*net.TCPConn); ok {
		t.SetNoDelay(true)              //nolint:errcheck // a connection that cannot be tuned still works
		t.SetKeepAliveConfig(keepAlive) //nolint:errcheck // as above
	}
}

// growFor makes room for frames with n bytes of payload.
func (l *link) growFor(n int) {
	size := max(pageBuffer, n+headerBytes)
	if size <= len(l.buf) {
		return
	}
	bigger := make([]byte, size)
	l.w = copy(bigger, l.buf[l.r:l.w])
	l.r, l.buf = 0, bigger
}

// fill reads until buf[r:w] holds n bytes; n <= len(buf).
func (l *link) fill(n int) error {
	if l.w-l.r >= n {
		return nil
	}
	if len(l.buf)-l.r < n {
		l.w = copy(l.buf, l.buf[l.r:l.w])
		l.r = 0
	}
	for l.w-l.r < n {
		if l.r == l.w {
			l.r, l.w = 0, 0
		}
		most := len(l.buf)
		if l.exact {
			most = l.r + n
		}
		m, err := l.conn.Read(l.buf[l.w:most])
		l.w += m
		if err != nil && l.w-l.r < n {
			return err
		}
	}
	return nil
}

// next returns the next frame with its checksum verified. The payload is valid until the following call. Each frame
// must begin within the idle time and be complete within another; deadline, when not zero, bounds both.
func (l *link) next(deadline time.Time) (header, []byte, error) {
	h, err := l.header(deadline)
	if err != nil {
		return header{}, nil, err
	}
	payload, err := l.payload(h, deadline)
	if err != nil {
		return header{}, nil, err
	}
	return h, payload, nil
}

// header reads the next frame's header; payload or payloadInto must follow.
func (l *link) header(deadline time.Time) (header, error) {
	if l.w-l.r < headerBytes {
		if err := l.armRead(deadline); err != nil {
			return header{}, l.readFault(err, 0)
		}
		if err := l.fill(headerBytes); err != nil {
			return header{}, l.readFault(err, l.w-l.r)
		}
	}
	h, err := parseHeader(l.buf[l.r:], l.limits)
	if err != nil {
		return header{}, err
	}
	l.r += headerBytes
	return h, nil
}

// payload reads what follows a header and verifies the checksum.
func (l *link) payload(h header, deadline time.Time) ([]byte, error) {
	l.growForFrame(h.length)
	if l.w-l.r < h.length {
		if err := l.armRead(deadline); err != nil {
			return nil, l.readFault(err, headerBytes+l.w-l.r)
		}
		if err := l.fill(h.length); err != nil {
			return nil, l.readFault(err, headerBytes+l.w-l.r)
		}
	}
	payload := l.buf[l.r : l.r+h.length]
	l.r += h.length
	if err := h.check(payload); err != nil {
		return nil, err
	}
	return payload, nil
}

// payloadInto is payload without a copy: into dst, [h.length]. With the last piece comes the following header.
func (l *link) payloadInto(dst []byte, h header, deadline time.Time) error {
	n := copy(dst, l.buf[l.r:l.w])
	l.r += n
	if n < len(dst) {
		if err := l.armRead(deadline); err != nil {
			return l.readFault(err, headerBytes+n)
		}
	}
	for n < len(dst) {
		l.r, l.w = 0, 0
		m, err := readVector(l.conn, dst[n:], l.buf[:headerBytes])
		if err != nil {
			return l.readFault(err, headerBytes+n)
		}
		l.w = max(0, m-(len(dst)-n))
		n = min(len(dst), n+m)
	}
	return h.check(dst)
}

// armRead sets the deadline of the next reads.
func (l *link) armRead(deadline time.Time) error {
	if err := l.conn.SetReadDeadline(l.readBy(deadline)); err != nil {
		return err
	}
	if l.interrupted.Load() { // interrupt's deadline may just have been overwritten
		return l.conn.SetReadDeadline(time.Unix(1, 0))
	}
	return nil
}

// interrupt ends a read that blocks, and every later one; the connection can still be written to.
func (l *link) interrupt() {
	l.interrupted.Store(true)
	l.conn.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // closed: nothing blocks then
}

func (l *link) readBy(deadline time.Time) time.Time {
	by := time.Now().Add(l.idle)
	if !deadline.IsZero() && deadline.Before(by) {
		return deadline
	}
	return by
}

// growForFrame grows the buffer for a page or first frame that does not fit; control frames always do.
func (l *link) growForFrame(n int) {
	if n+headerBytes > len(l.buf) {
		l.growFor(n)
	}
}

func (l *link) readFault(err error, have int) error {
	part := ""
	if have > 0 {
		part = fmt.Sprintf(" in the middle of a frame, after %d bytes", have)
	}
	switch {
	case errors.Is(err, io.EOF):
		return &fault{reason: ReasonPeerDied, err: fmt.Errorf("%w%s", errClosed, part)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &fault{reason: ReasonPeerDied, err: fmt.Errorf("no sign of life of the peer for %v%s: %w", l.idle, part, err)}
	default:
		return &fault{reason: ReasonPeerDied, err: fmt.Errorf("read from the peer%s: %w", part, err)}
	}
}

// write sends whole frames. It blocks while the peer does not read, at most for the idle time.
func (l *link) write(frames []byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	return l.writeLocked(frames)
}

// writeLast is write for a frame that nothing may follow.
func (l *link) writeLast(frame []byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	err := l.writeLocked(frame)
	l.broken = true
	return err
}

// answerPing shows the peer that this side lives, unless the last frame was written. A failure is for the reader to find.
func (l *link) answerPing() {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if !l.broken {
		l.writeLocked(control(framePing, nil)) //nolint:errcheck // see above
	}
}

// writeVector is write for frames in pieces, which it uses up.
func (l *link) writeVector(pieces *net.Buffers) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	return l.sendLocked(func() error {
		_, err := pieces.WriteTo(l.conn)
		return err
	})
}

func (l *link) writeLocked(frames []byte) error {
	return l.sendLocked(func() error {
		_, err := l.conn.Write(frames)
		return err
	})
}

func (l *link) sendLocked(send func() error) error {
	if l.broken {
		return faultf(ReasonPeerDied, "write to the peer: the connection is closed")
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(l.idle)); err != nil {
		l.broken = true
		return &fault{reason: ReasonPeerDied, err: fmt.Errorf("write to the peer: %w", err)}
	}
	if l.closing.Load() { // farewell's deadline may just have been overwritten
		return faultf(ReasonPeerDied, "write to the peer: the connection is closing")
	}
	if err := send(); err != nil {
		l.broken = true
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return faultf(ReasonPeerDied, "the peer took no data for %v", l.idle)
		}
		return &fault{reason: ReasonPeerDied, err: fmt.Errorf("write to the peer: %w", err)}
	}
	return nil
}

// hurry ends a write that blocks: a farewell is due.
func (l *link) hurry() {
	l.closing.Store(true)
	l.conn.SetWriteDeadline(time.Now().Add(farewellTimeout)) //nolint:errcheck // closed: nothing blocks then
}

// farewell tells the peer why the connection ends, if it still listens, and closes. It takes at most farewellTimeout,
// also when another goroutine is in the middle of a write.
func (l *link) farewell(err error) {
	var f *fault
	if !errors.As(err, &f) {
		f = &fault{reason: ReasonLocal, err: err}
	}
	if f.told || !f.fromPeer && f.reason != ReasonPeerDied {
		l.hurry()
		l.wmu.Lock()
		if !l.broken {
			l.broken = true
			l.conn.SetWriteDeadline(time.Now().Add(farewellTimeout))                       //nolint:errcheck // as above
			l.conn.Write(control(frameError, encodeError(f.reason, f.outcome, f.Error()))) //nolint:errcheck // as above
		}
		l.wmu.Unlock()
	}
	l.close()
}

func (l *link) close() { l.conn.Close() }

func (l *link) peer() string { return l.conn.RemoteAddr().String() }
