package disagg

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// scripted is a connection whose reading end is given, in pieces of any size.
type scripted struct {
	net.Conn
	r     io.Reader
	chunk int
}

func (s *scripted) Read(b []byte) (int, error) {
	return s.r.Read(b[:min(len(b), s.chunk)])
}
func (s *scripted) SetReadDeadline(time.Time) error { return nil }

// FuzzFrames feeds any bytes, in any fragmentation, to the reader of frames: it must end with an error that has a
// reason, take no more memory than the largest frame allows, and give every frame that was accepted back byte for byte.
func FuzzFrames(f *testing.F) {
	f.Add(control(framePing, nil), uint8(1))
	f.Add(append(page(1, 2, bytes.Repeat([]byte{7}, 96)), control(frameFirst, encodeFirst(First{Token: 5, Seed: 9}))...), uint8(17))
	f.Add(control(frameHello, mustJSON(hello{1, randomHex(), true})), uint8(255))
	f.Add(control(frameError, encodeError(ReasonTimeout, "late")), uint8(3))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(5))
	f.Add([]byte{byte(framePage), 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, uint8(16))
	f.Fuzz(func(t *testing.T, in []byte, chunk uint8) {
		l := newLink(&scripted{r: bytes.NewReader(in), chunk: int(chunk) + 1}, time.Second)
		l.pageBytes = 96
		var out []byte
		for {
			h, payload, err := l.next(time.Time{})
			if err != nil {
				var fault *fault
				if !errors.As(err, &fault) {
					t.Fatalf("error without a reason: %v", err)
				}
				if strings.ContainsAny(err.Error(), "\n\x00") {
					t.Fatalf("error is not one line: %q", err)
				}
				break
			}
			if h.length != len(payload) || len(payload) > h.typ.maxPayload(96) {
				t.Fatalf("%v frame with %d bytes of payload", h.typ, len(payload))
			}
			b := make([]byte, headerBytes+len(payload))
			copy(b[headerBytes:], payload)
			putHeader(b, h.typ, h.layer, h.ordinal, b[headerBytes:])
			out = append(out, b...)
			switch h.typ {
			case frameError:
				if e := decodeError(payload); !e.fromPeer || strings.ContainsAny(e.Error(), "\n\x00\x1b") {
					t.Fatalf("error frame gives %q", e)
				}
			case frameFirst:
				if first, err := decodeFirst(payload, 1000); err == nil && !bytes.Equal(encodeFirst(first), payload) {
					t.Fatalf("first frame %x reads as %+v, which writes %x", payload, first, encodeFirst(first))
				}
			case frameHello:
				var h hello
				_ = parseMessage(frameHello, payload, &h)
			case frameJoin:
				var j join
				_ = parseMessage(frameJoin, payload, &j)
			}
		}
		if !bytes.HasPrefix(in, out) {
			t.Fatalf("accepted frames write back as %x, which the input does not start with", out)
		}
		if len(l.buf) > smallBuffer {
			t.Fatalf("the buffer grew to %d bytes for frames of at most %d", len(l.buf), smallBuffer)
		}
	})
}
