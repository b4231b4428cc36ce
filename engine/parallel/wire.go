package parallel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
)

// A notice on a wire: 1 byte of kind, 1 byte 0, 2 bytes of length, big-endian, and the payload. Its sender is dead, or as
// good as that, when the wire ends without one.
const (
	noticeHeaderBytes = 4
	maxNoticeBytes    = 1024
)

type noticeKind uint8

const (
	noticeLeave noticeKind = iota + 1 // the sender leaves in order; no payload
	noticeEnd                         // the world ended: the rank that is the cause, 4 bytes, and what it says
)

const (
	tellTimeout  = 100 * time.Millisecond // for a notice to a peer that may not read any more
	drainTimeout = 250 * time.Millisecond // for bytes on their way when their sender left or died
)

// keepAlive lets the kernel notice a machine that is gone without a word.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: 2 * time.Second, Count: 3}

// connWire is a connection to another rank on which nothing is said until the end.
type connWire struct {
	world *World
	rank  int
	conn  net.Conn

	streams []*stream // from the same rank: what they carry was sent before the end

	mu   sync.Mutex
	said bool // guarded by mu: nothing follows a notice
}

func encodeNotice(cause *PeerError) []byte {
	if cause == nil {
		return []byte{byte(noticeLeave), 0, 0, 0}
	}
	payload := binary.BigEndian.AppendUint32(nil, uint32(cause.Rank))
	payload = append(payload, cause.Err.Error()...)
	payload = payload[:min(len(payload), maxNoticeBytes)]
	return append(binary.BigEndian.AppendUint16([]byte{byte(noticeEnd), 0}, uint16(len(payload))), payload...)
}

// readNotice gives the end that rank from tells, in a world of that many ranks.
func readNotice(r io.Reader, from, world int) (*PeerError, error) {
	var head [noticeHeaderBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(head[2:]))
	switch k := noticeKind(head[0]); {
	case head[1] != 0 || n > maxNoticeBytes:
		return nil, fmt.Errorf("sent a notice that is none: % x", head)
	case k == noticeLeave && n == 0:
		return &PeerError{Rank: from, Err: ErrLeft}, nil
	case k != noticeEnd || n < 4:
		return nil, fmt.Errorf("sent a notice that is none: % x", head)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, err
	}
	rank := binary.BigEndian.Uint32(payload)
	if rank >= uint32(world) {
		return nil, fmt.Errorf("sent a notice about rank %d of %d", rank, world)
	}
	text := strings.Map(func(r rune) rune { // it may end in a log
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, string(payload[4:]))
	return &PeerError{Rank: int(rank), Err: errors.New(text)}, nil
}

func (c *connWire) tell(cause *PeerError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said {
		return
	}
	c.said = true
	if c.conn.SetWriteDeadline(time.Now().Add(tellTimeout)) == nil {
		_, _ = c.conn.Write(encodeNotice(cause)) // a dead peer needs no notice
	}
}

// watch ends the world when the peer says so, or dies.
func (c *connWire) watch() {
	cause, err := readNotice(c.conn, c.rank, c.world.place.World())
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
			err = errors.New("is gone: its connection closed")
		} else {
			err = fmt.Errorf("is gone: %w", err)
		}
		cause = &PeerError{Rank: c.rank, Err: err}
	}
	c.drain()
	c.world.end(cause, err != nil)
}

// drain waits until everything that the peer sent has arrived, at most for drainTimeout.
func (c *connWire) drain() {
	if len(c.streams) == 0 {
		return
	}
	t := time.NewTimer(drainTimeout)
	defer t.Stop()
	for _, s := range c.streams {
		select {
		case <-s.ended:
		case <-t.C:
			return
		case <-c.world.stop:
			return
		}
	}
}
