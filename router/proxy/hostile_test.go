package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestHalfClosed: a client that closed its sending half and still reads is told that its request has ended; it must not
// take an empty answer for success.
func TestHalfClosed(t *testing.T) {
	s := newSet(t, 1, 1, 0)
	s.decode[0].instead, s.prefill[0].instead = hang, hang
	rt := newRouter(t, routerOptions{engines: s.all})
	for _, tc := range []struct{ name, reason, request string }{
		{"body complete", "the engines are at work", "POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}"},
		{"body incomplete", "the rest never comes", "POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 200\r\n\r\n{}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(rt.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, tc.request); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			want := `{"object":"error","message":"the client closed the connection","type":"invalid_request_error","param":null,"code":499,` +
				`"error":{"message":"the client closed the connection","type":"invalid_request_error","param":null,"code":"aborted_client"}}`
			if diff := cmp.Diff([]any{499, want}, []any{resp.StatusCode, string(body)}); diff != "" || err != nil {
				t.Errorf("%s: %v (-want +got)\n%s", tc.reason, err, diff)
			}
		})
	}
	if finished, _, _ := rt.settled(); cmp.Diff([]string{"/generate 499 client_closed", "/generate 499 client_closed"}, finished) != "" {
		t.Errorf("counted %v", finished)
	}
}

// TestTooLargeIsRead: a client that writes its whole body before it reads still sees why it was refused.
func TestTooLargeIsRead(t *testing.T) {
	const limit = 4 << 20 // with all that it sends, far more than a connection buffers
	rt := newRouter(t, routerOptions{config: func(c *Config) { c.MaxBodyBytes = limit }})
	conn, err := net.Dial("tcp", strings.TrimPrefix(rt.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	req, err := http.NewRequest(http.MethodPost, rt.url+"/generate", strings.NewReader(strings.Repeat("x", 3*limit)))
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Write(conn); err != nil {
		t.Fatalf("the body was not taken: %v", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", resp.StatusCode)
	}
}

// TestStalledSender: a body that does not come ends its request, and the connection with it.
func TestStalledSender(t *testing.T) {
	s := newSet(t, 0, 0, 1)
	rt := newRouter(t, routerOptions{engines: s.all, config: func(c *Config) { c.ReadTimeout = 50 * time.Millisecond }})
	for path, want := range map[string]int{"/generate": 408, "/nothing": 404, "/v1/models": 405} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(rt.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: r\r\nContent-Length: 100\r\n\r\n{", path); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn) // ends when the router closes
		if status := fmt.Sprintf("HTTP/1.1 %d ", want); !strings.HasPrefix(string(all), status) || err != nil {
			t.Errorf("%s: %v, and the answer begins %.40q, want %q", path, err, all, status)
		}
		conn.Close()
	}
	if got := rt.post("/generate", `{}`); got.Status != 200 {
		t.Errorf("a good request after it: %d", got.Status)
	}
}

// TestStalledReader: a client that asks and asks and takes no answer loses its connection.
func TestStalledReader(t *testing.T) {
	rt := newRouter(t, routerOptions{config: func(c *Config) { c.ReadTimeout, c.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond }})
	conn, err := net.Dial("tcp", strings.TrimPrefix(rt.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	requests := []byte(strings.Repeat("GET /nothing HTTP/1.1\r\nHost: r\r\n\r\n", 1000))
	for err == nil {
		_, err = conn.Write(requests) // blocks once the buffers of both directions are full
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays")
	}
}

// trickle gives n bytes of x, then the error.
type trickle struct {
	n   int
	err error
}

func (r *trickle) Read(p []byte) (int, error) {
	n := min(r.n, len(p))
	if n == 0 {
		return 0, r.err
	}
	for i := range p[:n] {
		p[i] = 'x'
	}
	r.n -= n
	return n, nil
}

func TestReadAtMost(t *testing.T) {
	gone := errors.New("gone")
	for _, tc := range []struct {
		name, reason   string
		claimed, limit int64
		from           *trickle
		want           int // bytes
		err            error
	}{
		{"short", "the usual body", 5, 10, &trickle{5, io.EOF}, 5, nil},
		{"nothing", "a body of no bytes", 0, 10, &trickle{0, io.EOF}, 0, nil},
		{"at the limit", "is allowed", 10, 10, &trickle{10, io.EOF}, 10, nil},
		{"claims too much", "is refused before it is read", 11, 10, &trickle{11, io.EOF}, 0, errTooLarge},
		{"unknown length", "chunked", -1, 10, &trickle{10, io.EOF}, 10, nil},
		{"unknown length, too much", "chunked", -1, 10, &trickle{11, io.EOF}, 0, errTooLarge},
		{"long", "grows as it comes", 1 << 20, 1 << 20, &trickle{1 << 20, io.EOF}, 1 << 20, nil},
		{"long, too much", "grows no further than the limit", 2 << 20, 1 << 20, &trickle{2 << 20, io.EOF}, 0, errTooLarge},
		{"breaks off", "the cause is kept", 1 << 20, 1 << 20, &trickle{100, gone}, 100, gone},
		{"short breaks off", "the cause is kept", 50, 100, &trickle{10, gone}, 50, gone},
		{"largest limit", "nothing overflows", -1, maxBodyLimit, &trickle{3, io.EOF}, 3, nil},
	} {
		body, err := readAtMost(tc.from, tc.claimed, tc.limit)
		if len(body) != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: %s: %d bytes and %v, want %d and %v", tc.name, tc.reason, len(body), err, tc.want, tc.err)
		}
	}
}

// TestClaimedLength: a client that claims a long body and sends nothing costs next to no memory.
func TestClaimedLength(t *testing.T) {
	const claimed, clients = 1 << 30, 64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range clients {
		if _, err := readAtMost(&trickle{0, io.EOF}, claimed, claimed); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > clients*1<<20 {
		t.Errorf("%d clients took %d bytes", clients, got)
	}
}
