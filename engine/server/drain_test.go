package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// stubbornRank ends when it is killed and not before.
type stubbornRank struct{ *scriptedRank }

func (r stubbornRank) AbortAll(string) error { return nil }

func (r stubbornRank) Done() <-chan struct{} { return nil }
func (r stubbornRank) Err() error            { return nil }

func (r stubbornRank) Close(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   chan net.Conn // capacity 1
	closed chan struct{}
}

func (l oneConn) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conn:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l oneConn) Close() error {
	close(l.closed)
	return nil
}

func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestDrainIsBounded: with a request that ignores its abort, a client that does not read and a rank that does not end, the
// drain is over at the end of the time that DrainOverrun promises.
func TestDrainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config, _ *scriptedRank) { c.DrainAccept, c.DrainTimeout = time.Second, 20*time.Second })
		rank := stubbornRank{b.rank}
		release := make(chan struct{})
		server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })}
		ours, theirs := net.Pipe()
		socket := oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
		socket.conn <- theirs
		served := make(chan error, 1)
		go func() { served <- server.Serve(socket) }()
		if _, err := io.WriteString(ours, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.mu.Lock()
		b.inFlight++
		b.mu.Unlock()

		began := time.Now() // of the bubble's clock
		if err := b.drain(rank, &listener{server: server, socket: socket}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the drain gives %v, want the rank's failure to end", err)
		}
		if took := time.Since(began); took != 20*time.Second+endGrace {
			t.Errorf("the drain took %v, want %v", took, 20*time.Second+endGrace)
		}
		b.mu.Lock()
		b.inFlight--
		b.mu.Unlock()
		close(release)
		_ = server.Close()
		_ = ours.Close()
		<-served
		synctest.Wait()
	})
}
