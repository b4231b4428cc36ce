package rank

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// newLink makes the connection between this process and a rank that is about to be started: own stays here, theirs goes
// to the child. It has no name, so nothing of it can be left behind, and nobody else can connect.
func newLink() (own net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make its sockets: %w", os.NewSyscallError("socketpair", err))
	}
	theirs = os.NewFile(uintptr(fds[1]), "rank link")
	f := os.NewFile(uintptr(fds[0]), "rank link")
	own, err = net.FileConn(f) // a copy
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("use its socket: %w", err), theirs.Close())
	}
	return own, theirs, nil
}

// once dials a connection that is there already. There is no second one: the rank's end is the end of the first.
func once(conn net.Conn) func(context.Context) (net.Conn, error) {
	unused := make(chan net.Conn, 1)
	unused <- conn
	return func(context.Context) (net.Conn, error) {
		select {
		case c := <-unused:
			return c, nil
		default:
			return nil, errors.New("the connection to the rank is lost")
		}
	}
}

// linkListener gives the parent's connection to a server, once.
type linkListener struct {
	conn   chan net.Conn // capacity 1
	addr   net.Addr
	closed chan struct{}
	close  func()
}

// listenLink serves the parent at the other end of link, which it takes: the parent sees the end of the connection when
// the server closes it.
func listenLink(link *os.File) (net.Listener, error) {
	conn, err := net.FileConn(link) // a copy
	_ = link.Close()                // the copy is the one that counts
	if err != nil {
		return nil, fmt.Errorf("use the socket of the API process: %w: a rank is started by serve, not by hand", err)
	}
	l := &linkListener{conn: make(chan net.Conn, 1), addr: conn.LocalAddr(), closed: make(chan struct{})}
	l.conn <- conn
	l.close = sync.OnceFunc(func() {
		close(l.closed)
		select {
		case c := <-l.conn:
			_ = c.Close() // nobody has used it
		default:
		}
	})
	return l, nil
}

func (l *linkListener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case c := <-l.conn:
		return c, nil
	default:
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *linkListener) Close() error {
	l.close()
	return nil
}

func (l *linkListener) Addr() net.Addr { return l.addr }
