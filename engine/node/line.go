package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// line is a connection after the handshake: messages both ways, with pings in between. It ends once, by close.
type line struct {
	conn    net.Conn
	silence time.Duration
	send    sync.Mutex    // of writes
	stop    chan struct{} // closed by close
	over    chan struct{} // closed when nothing more is read
	once    sync.Once
	running sync.WaitGroup
}

// newLine begins to read: heard gets what is said but pings, from one goroutine, and ended is called last, with how the
// connection ended.
func newLine(conn net.Conn, silence time.Duration, heard func(message), ended func(error)) *line {
	l := &line{conn: conn, silence: silence, stop: make(chan struct{}), over: make(chan struct{})}
	l.running.Go(l.ping)
	l.running.Go(func() {
		err := l.read(heard)
		close(l.over)
		ended(err)
	})
	return l
}

func (l *line) read(heard func(message)) error {
	for {
		if err := l.conn.SetReadDeadline(time.Now().Add(l.silence)); err != nil {
			return errors.New("the connection is closed")
		}
		var m message
		if _, err := peer.ReadJSON(l.conn, maxMessageBytes, &m); err != nil {
			var timeout net.Error
			switch {
			case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
				return errors.New("the connection is closed")
			case errors.As(err, &timeout) && timeout.Timeout():
				return fmt.Errorf("nothing came for %v", l.silence)
			default:
				return err
			}
		}
		if m.Kind != kindPing {
			heard(m)
		}
	}
}

// ping says that this side lives, four times in the silence that would be its end.
func (l *line) ping() {
	t := time.NewTicker(l.silence / 4)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
			_ = l.say(message{Kind: kindPing}) // the reader learns of a break
		}
	}
}

// say sends a message. It does not wait longer than the silence.
func (l *line) say(m message) error {
	l.send.Lock()
	defer l.send.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(l.silence)); err != nil {
		return err
	}
	_, err := peer.WriteJSON(l.conn, m)
	return err
}

// farewell is how long finish waits for the other side.
const farewell = 500 * time.Millisecond

// close ends the connection at once; what was said may not arrive: see finish.
func (l *line) close() {
	l.once.Do(func() {
		close(l.stop)
		_ = l.conn.Close() // nothing is lost that matters
	})
}

// finish closes the connection once the other side has read what was said and closed it too, or the time is over.
// Nothing of the line runs afterwards. Not for heard and ended.
func (l *line) finish() {
	if half, ok := l.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		t := time.NewTimer(farewell)
		defer t.Stop()
		select {
		case <-l.over:
		case <-t.C:
		}
	}
	l.close()
	l.running.Wait()
}
