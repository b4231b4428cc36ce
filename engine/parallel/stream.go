package parallel

import (
	"context"
	"errors"
	"net"
	"time"
)

// stream is a channel to one rank over a connection of its own. What arrives goes into a ring of this process, so that
// both directions have the room that swap needs, whatever the kernel's buffers hold.
type stream struct {
	conn  net.Conn
	world *World
	peer  int
	into  *end          // the writing end of the ring
	ended chan struct{} // closed when nothing more arrives

	both [2][]byte // of send
}

// newStream gives the stream and its line. The caller runs pump.
func newStream(w *World, peer int, c channel, conn net.Conn) (*stream, *line) {
	ring := newHeapRing(c.ringBytes())
	s := &stream{
		conn: conn, world: w, peer: peer,
		into: &end{ring: ring, peer: peer, world: w}, ended: make(chan struct{}),
	}
	return s, &line{peer: peer, out: s, in: &end{ring: ring, peer: peer, world: w}}
}

// pump moves what arrives into the ring until the connection ends.
func (s *stream) pump() {
	defer close(s.ended)
	for {
		n, err := s.into.room(context.Background(), writing)
		if err != nil {
			return
		}
		n, err = s.conn.Read(s.into.segment(n))
		if n > 0 {
			s.into.moved(writing, n)
		}
		if err != nil {
			return
		}
	}
}

// send writes a and then b to the connection.
func (s *stream) send(ctx context.Context, a, b []byte) error {
	select {
	case <-s.world.stop:
		return s.world.Err()
	default:
	}
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, s.interrupt)
	}
	s.both = [2][]byte{a, b}
	pieces := net.Buffers(s.both[:])
	_, err := pieces.WriteTo(s.conn)
	stop()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// A rank that left or died closes all its connections; its wire says which of the two.
	t := time.NewTimer(drainTimeout)
	defer t.Stop()
	select {
	case <-s.world.stop:
		return s.world.Err()
	case <-t.C:
	}
	return peerErrorf(s.peer, "takes no more data: %w", err)
}

// interrupt ends a write under way, and every later one.
func (s *stream) interrupt() {
	_ = s.conn.SetWriteDeadline(time.Unix(1, 0)) // closed: nothing blocks then
}

// closeStreams ends all streams of a world; what was sent still arrives.
func closeStreams(streams []*stream) error {
	for _, s := range streams {
		if half, ok := s.conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // the peer may have closed already
		}
	}
	t := time.NewTimer(drainTimeout)
	defer t.Stop()
	late := false
	for _, s := range streams {
		if !late {
			select {
			case <-s.ended:
			case <-t.C:
				late = true
			}
		}
	}
	return closeAll(len(streams), func(i int) net.Conn { return streams[i].conn })
}

func closeAll(n int, conn func(int) net.Conn) error {
	var errs []error
	for i := range n {
		if err := conn(i).Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tune sets what every connection of a world has.
func tune(conn net.Conn) {
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)              // a connection that cannot be tuned still works
		_ = t.SetKeepAliveConfig(keepAlive) // as above
	}
}
