package disagg

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/peer"
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
	f.Add(append(page(1, 2, bytes.Repeat([]byte{7}, 96)), control(frameFirst, mustFirst(First{Token: 5, Seed: 9}))...), uint8(17))
	f.Add(control(frameFirst, mustFirst(exampleFirst())), uint8(40))
	f.Add(control(frameHello, mustJSON(hello{protocolVersion, peer.Nonce(), true})), uint8(255))
	f.Add(control(frameError, encodeError(ReasonTimeout, request.OutcomeTimeout, "late")), uint8(3))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(5))
	f.Add([]byte{byte(framePage), 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, uint8(16))
	f.Fuzz(func(t *testing.T, in []byte, chunk uint8) {
		l := newLink(&scripted{r: bytes.NewReader(in), chunk: int(chunk) + 1}, time.Second)
		l.limits = limits{page: 96, first: 1024}
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
			if h.length != len(payload) || len(payload) > h.typ.maxPayload(l.limits) {
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
				if first, sent, err := decodeFirst(payload, 1000); err == nil && !bytes.Equal(firstFrame(mustFirst(first), sent)[headerBytes:], payload) {
					t.Fatalf("first frame %x reads as %+v, which writes %x", payload, first, mustFirst(first))
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

func mustFirst(f First) []byte {
	b, err := encodeFirst(f)
	if err != nil {
		panic(err)
	}
	return b
}

// exampleFirst has a different value in every field.
func exampleFirst() First {
	one := func(token int32, logprob float32) request.TokenLogprob {
		return request.TokenLogprob{Token: token, Logprob: logprob}
	}
	return First{
		Token: 3, Logprob: -0.5, CachedTokens: 4, Seed: 1 << 60,
		Logprobs: &request.TokenLogprobs{TokenLogprob: one(3, -0.5), Top: []request.TokenLogprob{one(9, -0.25), one(3, -0.5)}, Asked: []request.TokenLogprob{one(7, -8)}},
		Prompt:   []request.TokenLogprobs{{TokenLogprob: one(1, -1)}, {TokenLogprob: one(2, -2), Top: []request.TokenLogprob{one(5, -1.5)}}},
	}
}

func TestFirst(t *testing.T) {
	for _, want := range []First{{}, {Token: 1, Seed: 1}, exampleFirst(), {Token: 2, Logprobs: &request.TokenLogprobs{}}} {
		payload := mustFirst(want)
		got, sent, err := decodeFirst(firstFrame(payload, 1<<40+7)[headerBytes:], 10)
		if diff := cmp.Diff(want, got); diff != "" || err != nil || sent != 1<<40+7 {
			t.Errorf("%d bytes sent, error %v (-want +got):\n%s", sent, err, diff)
		}
	}
	whole := mustFirst(exampleFirst())
	for n := range whole {
		if n == firstBytes {
			continue // a first token without logprobs
		}
		if _, _, err := decodeFirst(whole[:n], 10); ReasonOf(err) != ReasonProtocol {
			t.Errorf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
	for _, tc := range []struct {
		name, want   string
		payload      []byte
		promptTokens int
	}{
		{name: "more positions than tokens", payload: whole, promptTokens: 2, want: "first frame claims 4 cached tokens"},
		{name: "positions", payload: mustFirst(First{Logprobs: &request.TokenLogprobs{}, Prompt: make([]request.TokenLogprobs, 5)}), promptTokens: 5, want: "logprobs of 6 positions of a prompt of 5"},
		{name: "tail", payload: append(whole, 0), promptTokens: 10, want: "1 bytes too many"},
	} {
		if _, _, err := decodeFirst(tc.payload, tc.promptTokens); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.want)
		}
	}
	many := make([]request.TokenLogprob, 1<<17)
	for _, f := range []First{
		{Logprobs: &request.TokenLogprobs{Top: many}},
		{Logprobs: &request.TokenLogprobs{}, Prompt: slices.Repeat([]request.TokenLogprobs{{Top: many[:1<<15]}}, 300)},
		{Prompt: make([]request.TokenLogprobs, 1)},
	} {
		if _, err := encodeFirst(f); err == nil {
			t.Error("what a peer would not take is encoded")
		}
	}
}
