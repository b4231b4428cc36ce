package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	constants "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/streaming/pkg/httpstream"
)

// tunnel is one port-forward to a pod. Streams of it are connections to ports of the pod. Safe for concurrent use.
type tunnel struct {
	conn httpstream.Connection

	mu   sync.Mutex
	next int // request id of the next stream
}

// open makes a tunnel. A dial that outlives ctx is closed when it is done.
func open(ctx context.Context, dialer httpstream.Dialer) (*tunnel, error) {
	type result struct {
		conn     httpstream.Connection
		protocol string
		err      error
	}
	done := make(chan result, 1)
	go func() {
		conn, protocol, err := dialer.Dial(constants.PortForwardV1Name)
		done <- result{conn, protocol, err}
	}()
	select {
	case r := <-done:
		switch {
		case r.err != nil:
			return nil, r.err
		case r.protocol != constants.PortForwardV1Name:
			return nil, errors.Join(fmt.Errorf("the API server speaks %q, want %s", r.protocol, constants.PortForwardV1Name), r.conn.Close())
		}
		return &tunnel{conn: r.conn}, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				_ = r.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func (t *tunnel) close() { _ = t.conn.Close() }

// connect opens a connection to a port of the pod. The caller closes it.
func (t *tunnel) connect(port int32) (net.Conn, error) {
	t.mu.Lock()
	id := t.next
	t.next++
	t.mu.Unlock()
	header := http.Header{}
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	header.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(id))
	failures, err := t.conn.CreateStream(header)
	if err != nil {
		return nil, fmt.Errorf("open a stream to port %d: %w", port, err)
	}
	_ = failures.Close() // nothing is written to it
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := t.conn.CreateStream(header)
	if err != nil {
		t.conn.RemoveStreams(failures)
		return nil, fmt.Errorf("open a stream to port %d: %w", port, err)
	}
	s := &stream{tunnel: t, data: data, failures: failures, failed: make(chan struct{})}
	go s.watch()
	return s, nil
}

// stream is a connection to a port of a pod. Deadlines are not kept: who waits closes it.
type stream struct {
	tunnel         *tunnel
	data, failures httpstream.Stream

	heard bool // some data came

	failed  chan struct{} // closed when the other side has said all about failures
	failure error         // valid once failed is closed

	closing sync.Once
}

// watch waits for what the node says of the connection; what it says is the reason why the data ends.
func (s *stream) watch() {
	defer close(s.failed)
	text, err := io.ReadAll(s.failures)
	if err == nil && len(text) > 0 {
		s.failure = errors.New(strings.TrimSpace(string(text)))
		_ = s.data.Reset()
	}
}

// reasonWait is how long the reason of an end may come after it: they are two streams.
const reasonWait = time.Second

// Read gives the reason that the node told instead of the end of a stream that never had data. One goroutine reads.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.data.Read(p)
	s.heard = s.heard || n > 0
	if err == nil || s.heard {
		return n, err
	}
	wait := time.NewTimer(reasonWait)
	defer wait.Stop()
	select {
	case <-s.failed:
		if s.failure != nil {
			return n, s.failure
		}
	case <-wait.C:
	}
	return n, err
}

func (s *stream) Write(p []byte) (int, error) { return s.data.Write(p) }

func (s *stream) Close() error {
	s.closing.Do(func() {
		_ = s.data.Reset()
		_ = s.failures.Reset()
		s.tunnel.conn.RemoveStreams(s.data, s.failures)
	})
	return nil
}

func (s *stream) LocalAddr() net.Addr              { return address{} }
func (s *stream) RemoteAddr() net.Addr             { return address{} }
func (s *stream) SetDeadline(time.Time) error      { return nil }
func (s *stream) SetReadDeadline(time.Time) error  { return nil }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }

type address struct{}

func (address) Network() string { return "portforward" }
func (address) String() string  { return "pod" }
