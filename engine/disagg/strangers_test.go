package disagg

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// TestStrangers keeps a prefill rank busy with peers that never prove the secret; honest ones must get through.
func TestStrangers(t *testing.T) {
	p := newPair(t, pairOptions{prefill: func(c *Config) { c.MaxHandshakes = 4; c.HandshakeTimeout = time.Hour }})
	var loris []net.Conn
	defer func() {
		for _, c := range loris {
			c.Close()
		}
	}()
	for range 50 {
		c, err := net.Dial("tcp", p.prefill.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte{byte(frameHello)}) // one byte, and then nothing
		loris = append(loris, c)
	}
	p.poll("at most four handshakes", func() bool {
		p.prefill.mu.Lock()
		defer p.prefill.mu.Unlock()
		return p.prefill.fresh.Len() == 4 && len(p.prefill.links) == 4
	})
	s, r := p.open(1, 9)
	p.transfer(s, r, seq(0, 3), seq(4, 3), First{Token: 1})

	for _, tc := range []struct {
		name   string
		bytes  string
		reason Reason
	}{
		{"http", "GET /route HTTP/1.1\r\nHost: x\r\n\r\n", ReasonProtocol},
		{"huge hello", string([]byte{byte(frameHello), 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}), ReasonProtocol},
		{"page", string(page(0, 0, make([]byte, 96))), ReasonProtocol},
		{"hello is not JSON", string(control(frameHello, []byte("{"))), ReasonProtocol},
		{"unknown field", string(control(frameHello, []byte(`{"version":3,"nonce":"","has_secret":true,"x":1}`))), ReasonProtocol},
		{"other version", string(control(frameHello, []byte(`{"version":1,"nonce":"","has_secret":true}`))), ReasonMismatch},
		{"short nonce", string(control(frameHello, []byte(`{"version":3,"nonce":"00","has_secret":true}`))), ReasonProtocol},
		{"skips the proof", string(control(frameHello, mustJSON(hello{protocolVersion, peer.Nonce(), true}))) + string(control(frameAllocated, nil)), ReasonProtocol},
		{"empty proof", string(control(frameHello, mustJSON(hello{protocolVersion, peer.Nonce(), true}))) + string(control(frameJoin, nil)), ReasonProtocol},
		{"wrong proof", string(control(frameHello, mustJSON(hello{protocolVersion, peer.Nonce(), true}))) + string(control(frameJoin, make([]byte, 32))), ReasonAuth},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := p.prefill.Open(77, 9)
			if err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("tcp", p.prefill.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			l := newLink(c, patience)
			defer l.close()
			l.write([]byte(tc.bytes))
			for err == nil {
				var h header
				var payload []byte
				if h, payload, err = l.next(time.Time{}); err == nil && h.typ == frameError {
					err = decodeError(payload)
				}
			}
			if got := ReasonOf(err); got != tc.reason && got != ReasonPeerDied { // the error frame may be lost in a reset
				t.Errorf("the stranger heard %v, want reason %s", err, tc.reason)
			}
			if s.State() != Bootstrapping {
				t.Errorf("the stranger moved the room to %v: %v", s.State(), s.Err())
			}
			s.Abort(nil)
			waitFor(t, "the end", s.Settled())
		})
	}
}

// TestHandshakeBurst lets more decode ranks come at once than there are places for handshakes, among strangers that say
// nothing: those whose handshake gave way come again until all have met.
func TestHandshakeBurst(t *testing.T) {
	p := newPair(t, pairOptions{prefill: func(c *Config) { c.MaxHandshakes = 2; c.HandshakeTimeout = time.Hour }})
	for range 20 {
		c, err := net.Dial("tcp", p.prefill.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	var all sync.WaitGroup
	for room := range int64(40) {
		all.Go(func() {
			s, err := p.prefill.Open(room, 9)
			if err != nil {
				t.Error(err)
				return
			}
			r, err := p.decode.Open(p.bootstrap(room), 9)
			if err != nil {
				t.Error(err)
				return
			}
			p.transfer(s, r, seq(int(room)*3, 3), seq(1000+int(room)*3, 3), First{Token: int32(room)})
		})
	}
	all.Wait()
}

// TestGreetAgain cuts the first connections of a decode rank off before and after the challenge, as a busy prefill rank may.
func TestGreetAgain(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	p := newPair(t, pairOptions{})
	r, err := p.decode.Open(register(t, ln.Addr(), "busy"), 9)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l := newLink(c, patience)
		switch i {
		case 0, 2: // nothing was read: the decode rank sees a reset, or the end
		case 1:
			if _, err := l.expect(frameHello, time.Time{}); err != nil {
				t.Fatal(err)
			}
			l.write(control(frameChallenge, mustJSON(challenge{protocolVersion, peer.Nonce(), "busy", true})))
			if _, err := l.expect(frameJoin, time.Time{}); err != nil {
				t.Fatal(err)
			}
		case 3: // and now a word, which is final
			if _, err := l.expect(frameHello, time.Time{}); err != nil {
				t.Fatal(err)
			}
			l.farewell(faultf(ReasonOverload, "no more"))
		}
		l.close()
	}
	p.failed(r, Bootstrapping, ReasonOverload, "no more")
}
