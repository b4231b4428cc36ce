package disagg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/peer"
)

// wire is a TCP hop between a decode and a prefill rank that can be cut like the death of a process, silenced like a
// lost machine, or made to damage what passes.
type wire struct {
	ln     net.Listener
	target string
	damage func(b []byte) // on bytes from prefill to decode

	mu     sync.Mutex
	conns  []net.Conn
	silent bool
	wg     sync.WaitGroup
}

func newWire(t *testing.T, p *pair, damage func([]byte)) (*wire, request.Bootstrap) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{ln: ln, target: p.prefill.Addr().String(), damage: damage}
	w.wg.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", w.target)
			if err != nil {
				near.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			w.wg.Go(func() { w.pump(far, near, nil) })
			w.wg.Go(func() { w.pump(near, far, w.damage) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		w.cut()
		w.wg.Wait()
	})
	return w, register(t, ln.Addr(), p.prefill.incarnation)
}

// register makes a bootstrap server that knows one rank.
func register(t *testing.T, addr net.Addr, incarnation string) request.Bootstrap {
	t.Helper()
	bs := NewBootstrap(BootstrapConfig{})
	bs.store(registration{AttnTPSize: 1, AttnCPSize: 1, AttnDPSize: 1, PPSize: 1, SystemDPSize: 1, RankIP: "127.0.0.1", RankPort: addr.(*net.TCPAddr).Port, PageSize: 4, Incarnation: incarnation})
	srv := httptest.NewServer(bs)
	t.Cleanup(srv.Close)
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(srv.URL, "http://"))
	n, _ := strconv.Atoi(port)
	return request.Bootstrap{Host: host, Port: n, Room: 1}
}

func (w *wire) pump(dst, src net.Conn, damage func([]byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			w.mu.Lock()
			silent := w.silent
			w.mu.Unlock()
			if silent {
				continue
			}
			if damage != nil {
				damage(buf[:n])
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			dst.(*net.TCPConn).CloseWrite()
			return
		}
	}
}

// cut resets both halves, as the kernel does for a process that is killed with data unread.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	w.conns = nil
}

func (w *wire) silence() {
	w.mu.Lock()
	w.silent = true
	w.mu.Unlock()
}

// TestDeath ends the connection in every phase, by reset and by silence: both sides must fail and leave the pages alone.
func TestDeath(t *testing.T) {
	type phase struct {
		name         string
		stepP, stepD State
		reach        func(p *pair, b request.Bootstrap) (*Sender, *Receiver)
	}
	open := func(p *pair, b request.Bootstrap) (*Sender, *Receiver) {
		s, err := p.prefill.Open(1, 9)
		if err != nil {
			p.t.Fatal(err)
		}
		r, err := p.decode.Open(b, 9)
		if err != nil {
			p.t.Fatal(err)
		}
		p.until(r, WaitingPages)
		return s, r
	}
	allocate := func(p *pair, s *Sender, r *Receiver) {
		r.Allocate(seq(4, 3), nil)
		p.until(s, Ready)
	}
	phases := []phase{
		{"met", Bootstrapping, WaitingPages, open},
		{"ready", Ready, Transferring, func(p *pair, b request.Bootstrap) (*Sender, *Receiver) {
			s, r := open(p, b)
			allocate(p, s, r)
			return s, r
		}},
		{"some pages", Sending, Transferring, func(p *pair, b request.Bootstrap) (*Sender, *Receiver) {
			s, r := open(p, b)
			allocate(p, s, r)
			for i := range 3 {
				s.Send(0, i, int32(i))
			}
			p.poll("three pages at the decode rank", func() bool {
				p.dm.mu.Lock()
				defer p.dm.mu.Unlock()
				return len(p.dm.data) == 3
			})
			return s, r
		}},
	}
	for _, ph := range phases {
		for _, how := range []string{"reset", "silence"} {
			t.Run(ph.name+"/"+how, func(t *testing.T) {
				idle := func(c *Config) {
					if how == "silence" {
						c.IdleTimeout = 200 * time.Millisecond
					}
				}
				p := newPair(t, pairOptions{prefill: idle, decode: idle})
				w, b := newWire(t, p, nil)
				p.pm.own(seq(0, 3), true)
				p.dm.own(seq(4, 3), true)
				s, r := ph.reach(p, b)
				if how == "reset" {
					w.cut()
				} else {
					w.silence()
				}
				waitFor(t, "prefill's end", s.Settled())
				p.pm.own(seq(0, 3), false)
				waitFor(t, "decode's end", r.Settled())
				p.dm.own(seq(4, 3), false)
				p.failed(s, ph.stepP, ReasonPeerDied)
				p.failed(r, ph.stepD, ReasonPeerDied)
				s.Send(1, 0, 0) // a scheduler that has not looked yet: ignored
				s.Finish(First{})
				r.Allocate(nil, nil)
			})
		}
	}
	t.Run("decode dies before its room is open", func(t *testing.T) {
		p := newPair(t, pairOptions{})
		w, b := newWire(t, p, nil)
		r, err := p.decode.Open(b, 9)
		if err != nil {
			t.Fatal(err)
		}
		p.untilParked(1)
		p.poll("the decode rank has the proof, and does not come again", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.fetches) == 1 && r.fetches[0].hasMet()
		})
		w.cut()
		p.failed(r, Bootstrapping, ReasonPeerDied)
		p.poll("the doomed room", func() bool {
			p.prefill.mu.Lock()
			defer p.prefill.mu.Unlock()
			return p.prefill.parked[visit{room: 1}].fault != nil
		})
		s, err := p.prefill.Open(1, 9)
		if err != nil {
			t.Fatal(err)
		}
		p.failed(s, Bootstrapping, ReasonPeerDied)
	})
	t.Run("the prefill rank closes", func(t *testing.T) {
		p := newPair(t, pairOptions{})
		s, r := p.open(1, 9)
		p.until(r, WaitingPages)
		parked, _ := p.decode.Open(p.bootstrap(2), 9)
		p.untilParked(1)
		p.prefill.Close()
		p.failed(s, Bootstrapping, ReasonAborted, "closing")
		p.failed(r, WaitingPages, ReasonPeerAborted, "closing")
		p.failed(parked, Bootstrapping, ReasonPeerDied)
		if _, err := p.prefill.Open(3, 9); err == nil {
			t.Error("Open after Close gave no error")
		}
	})
	t.Run("the decode rank closes", func(t *testing.T) {
		p := newPair(t, pairOptions{})
		s, r := p.open(1, 9)
		p.until(r, WaitingPages)
		p.decode.Close()
		p.failed(r, WaitingPages, ReasonAborted, "closing")
		p.failed(s, Bootstrapping, ReasonPeerAborted, "closing")
		if _, err := p.decode.Open(p.bootstrap(3), 9); err == nil {
			t.Error("Open after Close gave no error")
		}
	})
}

// TestAbort ends one side in each phase and expects the other to hear the reason.
func TestAbort(t *testing.T) {
	gone := &Ended{Outcome: request.OutcomeAbortedOperator, Text: "the operator ends it"}
	for _, side := range []string{"prefill", "decode"} {
		for _, phase := range []State{Bootstrapping, WaitingPages, Ready, Sending} {
			t.Run(side+"/"+phase.String(), func(t *testing.T) {
				p := newPair(t, pairOptions{})
				s, err := p.prefill.Open(1, 9)
				if err != nil {
					t.Fatal(err)
				}
				r := &Receiver{}
				if phase != Bootstrapping {
					if r, err = p.decode.Open(p.bootstrap(1), 9); err != nil {
						t.Fatal(err)
					}
					p.until(r, WaitingPages)
				}
				if phase == Ready || phase == Sending {
					r.Allocate(seq(0, 3), nil)
					p.until(s, Ready)
				}
				if phase == Sending {
					s.Send(0, 0, 1)
				}
				if phase == Bootstrapping && side == "decode" {
					s.Abort(nil)
					r, _ = p.decode.Open(p.bootstrap(2), 9)
					p.untilParked(1)
					r.Abort(gone)
					p.failed(r, Bootstrapping, ReasonAborted, gone.Error())
					p.poll("the doomed room", func() bool {
						p.prefill.mu.Lock()
						defer p.prefill.mu.Unlock()
						return p.prefill.parked[visit{room: 2}].fault != nil
					})
					s, _ = p.prefill.Open(2, 9)
					p.failed(s, Bootstrapping, ReasonPeerAborted, gone.Error())
					endedIn(t, s, gone.Outcome)
					return
				}
				if side == "prefill" {
					s.Abort(gone)
					waitFor(t, "prefill's end", s.Settled())
					if ReasonOf(s.Err()) != ReasonAborted {
						t.Errorf("prefill: %v", s.Err())
					}
					if phase == Bootstrapping {
						r, _ = p.decode.Open(p.bootstrap(1), 9)
						p.failed(r, Bootstrapping, ReasonStale, gone.Error())
						endedIn(t, r, gone.Outcome)
						return
					}
					waitFor(t, "decode's end", r.Settled())
					if ReasonOf(r.Err()) != ReasonPeerAborted || !strings.Contains(r.Err().Error(), gone.Error()) {
						t.Errorf("decode: %v", r.Err())
					}
					endedIn(t, r, gone.Outcome)
					return
				}
				r.Abort(gone)
				r.Abort(errors.New("a second abort changes nothing"))
				waitFor(t, "decode's end", r.Settled())
				if ReasonOf(r.Err()) != ReasonAborted || !strings.Contains(r.Err().Error(), gone.Error()) {
					t.Errorf("decode: %v", r.Err())
				}
				waitFor(t, "prefill's end", s.Settled())
				if ReasonOf(s.Err()) != ReasonPeerAborted || !strings.Contains(s.Err().Error(), gone.Error()) {
					t.Errorf("prefill: %v", s.Err())
				}
				endedIn(t, s, gone.Outcome)
			})
		}
	}
}

// TestAbortBeforeThePeersMet: a decode rank that gives up before it has met its prefill rank goes there to say so, whether the
// room is open or will be.
func TestAbortBeforeThePeersMet(t *testing.T) {
	gone := &Ended{Outcome: request.OutcomeAbortedOperator, Text: "the operator ends it"}
	p := newPair(t, pairOptions{prefill: func(c *Config) { c.MaxParked = 1 }})
	doomed := func(room int64) {
		t.Helper()
		r, err := p.decode.Open(p.bootstrap(room), 9)
		if err != nil {
			t.Fatal(err)
		}
		r.Abort(gone)
		p.failed(r, Bootstrapping, ReasonAborted, gone.Error())
	}
	s, err := p.prefill.Open(1, 9)
	if err != nil {
		t.Fatal(err)
	}
	doomed(1)
	p.failed(s, Bootstrapping, ReasonPeerAborted, gone.Error())
	endedIn(t, s, gone.Outcome)

	for _, room := range []int64{2, 3} { // the second takes the place of the first among those that wait
		doomed(room)
		p.poll("the doomed room", func() bool {
			p.prefill.mu.Lock()
			defer p.prefill.mu.Unlock()
			a := p.prefill.parked[visit{room: room}]
			return a != nil && a.fault != nil
		})
	}
	if s, err = p.prefill.Open(3, 9); err != nil {
		t.Fatal(err)
	}
	p.failed(s, Bootstrapping, ReasonPeerAborted, gone.Error())
	endedIn(t, s, gone.Outcome)

	// Who really comes is not kept out by those that are gone.
	doomed(4)
	r, err := p.decode.Open(p.bootstrap(5), 9)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = p.prefill.Open(5, 9); err != nil {
		t.Fatal(err)
	}
	p.transfer(s, r, seq(0, 3), seq(4, 3), First{Token: 1})
}

// TestAbortBeforeTheRoomIsKnown: so does one whose bootstrap server does not know yet which replica has the room.
func TestAbortBeforeTheRoomIsKnown(t *testing.T) {
	p := newPair(t, pairOptions{prefill: func(c *Config) { c.DPSize = 2 }})
	gone := &Ended{Outcome: request.OutcomeAbortedOperator, Text: "the operator ends it"}
	r, err := p.decode.Open(p.bootstrap(1), 9)
	if err != nil {
		t.Fatal(err)
	}
	r.Abort(gone)
	p.failed(r, Bootstrapping, ReasonAborted, gone.Error())
	p.registry.Assign(1, 0)
	s, err := p.prefill.Open(1, 9)
	if err != nil {
		t.Fatal(err)
	}
	p.failed(s, Bootstrapping, ReasonPeerAborted, gone.Error())
	endedIn(t, s, gone.Outcome)
}

// endedIn checks what the peer said of the request.
func endedIn(t *testing.T, h interface{ Err() error }, want request.Outcome) {
	t.Helper()
	var e *Error
	if !errors.As(h.Err(), &e) || e.Outcome != want {
		t.Errorf("the outcome is not %q: %v", want, h.Err())
	}
}

// TestOutcomesOfOneSide: what a request ends in on one engine alone is not said of the other half.
func TestOutcomesOfOneSide(t *testing.T) {
	for _, outcome := range request.Outcomes() {
		p := newPair(t, pairOptions{})
		s, r := p.open(1, 9)
		p.until(r, WaitingPages)
		s.Abort(&Ended{Outcome: outcome, Text: "stop\x00here"})
		p.failed(r, WaitingPages, ReasonPeerAborted, "stop?here")
		waitFor(t, "prefill's end", s.Settled())
		want := outcome
		if !outcome.Common() {
			want = ""
		}
		endedIn(t, s, want)
		endedIn(t, r, want)
	}
}

// TestPagesAreLeftAlone holds a page read while the session is aborted: it must not settle before the read is over.
func TestPagesAreLeftAlone(t *testing.T) {
	p := newPair(t, pairOptions{})
	p.pm.slow = make(chan struct{})
	s, r := p.open(1, 9)
	p.until(r, WaitingPages)
	r.Allocate(seq(0, 3), nil)
	p.until(s, Ready)
	p.pm.own(seq(0, 3), true)
	for i := range 3 {
		s.Send(0, i, int32(i))
	}
	p.pm.slow <- struct{}{} // the sender is in the middle of its batch
	s.Abort(errors.New("stop"))
	select {
	case <-s.Settled():
		t.Fatal("settled while a page was being read")
	default:
	}
	if s.State() != Sending {
		t.Fatalf("state is %v while a page is being read, want Sending", s.State())
	}
	close(p.pm.slow)
	waitFor(t, "prefill's end", s.Settled())
	p.pm.own(seq(0, 3), false)
	p.failed(s, Sending, ReasonAborted, "stop")
	p.failed(r, Transferring, ReasonPeerAborted, "stop")
}

// TestAbortWhileThePeerDoesNotRead must settle soon although a write is blocked by the peer's full buffers.
func TestAbortWhileThePeerDoesNotRead(t *testing.T) {
	l := Layout{Layers: 64, PageSize: 4, PageBytesPerLayer: 1 << 20}
	p := newPair(t, pairOptions{layoutP: l, prefill: func(c *Config) { c.IdleTimeout = time.Hour }})
	s, err := p.prefill.Open(1, 8)
	if err != nil {
		t.Fatal(err)
	}
	conn := p.join(t, join{Room: 1, PromptTokens: 8, Layout: l, TPSize: 1, PPSize: 1})
	defer conn.close()
	if _, err := conn.expect(frameAccept, time.Time{}); err != nil {
		t.Fatal(err)
	}
	conn.write(control(frameAllocated, nil))
	p.until(s, Ready)
	for layer := range 64 {
		for i := range 2 {
			s.Send(layer, i, int32(i))
		}
	}
	var before int64 = -1
	p.poll("a blocked write", func() bool { // no progress between two looks, with megabytes still queued
		now := s.Stats().TotalBytes
		stuck := now == before && now > 0
		before = now
		return stuck
	})
	s.Abort(errors.New("stop"))
	p.failed(s, Sending, ReasonAborted, "stop")
}

// join dials the prefill rank and shakes hands like an honest decode rank.
func (p *pair) join(t *testing.T, j join) *link {
	t.Helper()
	c, err := net.Dial("tcp", p.prefill.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l := newLink(c, patience)
	if err := l.greetPrefill([]byte("s3cret"), p.prefill.incarnation, j, time.Time{}); err != nil {
		t.Fatal(err)
	}
	return l
}

// page makes a page frame for tests.
func page(layer, ordinal int, payload []byte) []byte {
	b := make([]byte, headerBytes+len(payload))
	copy(b[headerBytes:], payload)
	putHeader(b, framePage, layer, ordinal, b[headerBytes:])
	return b
}

// TestHostilePrefill lets a prefill rank that knows the secret send what it must not.
func TestHostilePrefill(t *testing.T) {
	full := make([]byte, testLayout.PageBytesPerLayer)
	all := func(skip int) (b []byte) {
		for i := range 9 {
			if i != skip {
				b = append(b, page(i/3, i%3, full)...)
			}
		}
		return b
	}
	damaged := page(1, 2, full)
	damaged[headerBytes+5] ^= 4
	damagedHeader := page(1, 2, full)
	damagedHeader[7] = 1 // ordinal 2 becomes 1
	huge := make([]byte, headerBytes)
	putHeader(huge, framePage, 0, 0, nil)
	binary.BigEndian.PutUint32(huge[8:], 1<<31)
	for _, tc := range []struct {
		name   string
		early  bool // before Allocate
		bytes  []byte
		hangUp bool
		reason Reason
		text   string
	}{
		{name: "damaged page", bytes: damaged, reason: ReasonDamaged, text: "page 2 of layer 1: checksum"},
		{name: "damaged header", bytes: damagedHeader, reason: ReasonDamaged, text: "page 1 of layer 1: checksum"},
		{name: "ordinal out of range", bytes: page(0, 3, full), reason: ReasonProtocol, text: "the prompt has pages 0 to 2"},
		{name: "layer out of range", bytes: page(3, 0, full), reason: ReasonProtocol, text: "the model has layers 0 to 2"},
		{name: "duplicate", bytes: append(page(0, 0, full), page(0, 0, full)...), reason: ReasonProtocol, text: "page 0 of layer 0: a duplicate"},
		{name: "short page", bytes: page(0, 0, full[:95]), reason: ReasonProtocol, text: "has 95 bytes, want 96"},
		{name: "long page", bytes: page(0, 0, append(full, 0)), reason: ReasonProtocol, text: "page frame of 97 bytes, at most 96"},
		{name: "huge page", bytes: huge, reason: ReasonProtocol, text: "at most 96 are allowed"},
		{name: "missing page", bytes: append(all(4), control(frameFirst, mustFirst(First{Token: 1}))...), reason: ReasonProtocol, text: "1 of 9 pages are missing, first page 1 of layer 1"},
		{name: "negative token", bytes: append(all(-1), control(frameFirst, mustFirst(First{Token: -1}))...), reason: ReasonProtocol, text: "token -1"},
		{name: "too many cached tokens", bytes: append(all(-1), control(frameFirst, mustFirst(First{CachedTokens: 10}))...), reason: ReasonProtocol, text: "10 cached tokens of a prompt of 9"},
		{name: "short first frame", bytes: append(all(-1), control(frameFirst, []byte{1})...), reason: ReasonProtocol, text: "first frame has 1 bytes, want at least 32"},
		{name: "page before allocate", early: true, bytes: page(0, 0, full), reason: ReasonProtocol, text: "a page frame from the prefill rank in state WaitingPages"},
		{name: "first before allocate", early: true, bytes: control(frameFirst, mustFirst(First{})), reason: ReasonProtocol, text: "a first frame"},
		{name: "second accept", bytes: control(frameAccept, nil), reason: ReasonProtocol, text: "a accept frame"},
		{name: "garbage", bytes: []byte(strings.Repeat("GET / HTTP/1.1\r\n", 4)), reason: ReasonProtocol, text: "unknown frame type 71"},
		{name: "death in the middle of a frame", bytes: page(0, 0, full)[:50], hangUp: true, reason: ReasonPeerDied, text: "in the middle of a frame, after 50 bytes"},
		{name: "error frame", bytes: control(frameError, encodeError(ReasonLocal, "", "out of\nmemory")), reason: ReasonLocal, text: "the peer reports: out of?memory"},
		{name: "odd reason", bytes: control(frameError, []byte("nonsense\x00text")), reason: ReasonProtocol, text: "the peer reports: text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, pairOptions{})
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			r, err := p.decode.Open(register(t, ln.Addr(), "x"), 9)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			l := newLink(conn, patience)
			defer l.close()
			if _, err := l.greetDecode([]byte("s3cret"), "x", time.Time{}, func() {}); err != nil {
				t.Fatal(err)
			}
			l.write(control(frameAccept, nil))
			step := WaitingPages
			p.until(r, WaitingPages)
			if !tc.early {
				step = Transferring
				r.Allocate(seq(0, 3), nil)
				if _, err := l.expect(frameAllocated, time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
			l.write(tc.bytes)
			if tc.hangUp {
				l.close()
			}
			e := p.failed(r, step, tc.reason, tc.text)
			if tc.hangUp || e.FromPeer {
				return
			}
			if _, err := l.expect(frameTypeEnd, time.Time{}); ReasonOf(err) != tc.reason {
				t.Errorf("the prefill rank heard %v, want reason %s", err, tc.reason)
			}
		})
	}
}

// TestHostileDecode lets a decode rank that knows the secret send what it must not.
func TestHostileDecode(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes []byte
		step  State
		text  string
	}{
		{"ack before anything", control(frameAck, nil), Bootstrapping, "a ack frame from the decode rank in state Bootstrapping"},
		{"allocated twice", append(control(frameAllocated, nil), control(frameAllocated, nil)...), Ready, "a allocated frame"},
		{"page", page(0, 0, nil), Bootstrapping, "a page frame from the decode rank"},
		{"page with bytes", page(0, 0, make([]byte, 96)), Bootstrapping, "page frame of 96 bytes, at most 0"},
		{"join again", control(frameJoin, make([]byte, 40)), Bootstrapping, "a join frame"},
		{"garbage", []byte(strings.Repeat("\xff", 64)), Bootstrapping, "unknown frame type 255"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, pairOptions{})
			s, err := p.prefill.Open(1, 9)
			if err != nil {
				t.Fatal(err)
			}
			l := p.join(t, join{Room: 1, PromptTokens: 9, Layout: testLayout, TPSize: 1, PPSize: 1})
			defer l.close()
			if _, err := l.expect(frameAccept, time.Time{}); err != nil {
				t.Fatal(err)
			}
			l.write(tc.bytes)
			p.failed(s, tc.step, ReasonProtocol, tc.text)
		})
	}
	t.Run("allocated before the room is open", func(t *testing.T) {
		p := newPair(t, pairOptions{})
		l := p.join(t, join{Room: 1, PromptTokens: 9, Layout: testLayout, TPSize: 1, PPSize: 1})
		defer l.close()
		l.write(control(frameAllocated, nil))
		if _, err := l.expect(frameAccept, time.Time{}); ReasonOf(err) != ReasonProtocol {
			t.Errorf("the decode rank heard %v, want a protocol error", err)
		}
	})
}

// TestReflection lets an impostor without the secret dial back into the decode rank's own handshake: it replays the
// decode rank's proof as its own.
func TestReflection(t *testing.T) {
	p := newPair(t, pairOptions{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r, err := p.decode.Open(register(t, ln.Addr(), "x"), 9)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l := newLink(conn, patience)
	defer l.close()
	if _, err := l.expect(frameHello, time.Time{}); err != nil {
		t.Fatal(err)
	}
	l.write(control(frameChallenge, mustJSON(challenge{protocolVersion, peer.Nonce(), "x", true})))
	raw, err := l.expect(frameJoin, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	l.write(control(frameProof, raw[:proofBytes]))
	p.failed(r, Bootstrapping, ReasonAuth, "the secrets")
}

// TestDamageOnTheWay flips one bit of what really flows between two honest ranks.
func TestDamageOnTheWay(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			p := newPair(t, pairOptions{layoutP: Layout{Layers: 1, PageSize: 4, PageBytesPerLayer: 32 << 10}, direct: direct})
			_, b := newWire(t, p, func(b []byte) {
				if len(b) > 4096 {
					b[2000] ^= 0x10
				}
			})
			s, _ := p.prefill.Open(1, 9)
			r, _ := p.decode.Open(b, 9)
			p.until(r, WaitingPages)
			r.Allocate(seq(0, 3), nil)
			p.until(s, Ready)
			for i := range 3 {
				s.Send(0, i, int32(i))
			}
			s.Finish(First{Token: 3})
			p.failed(r, Transferring, ReasonDamaged, "checksum")
			e := p.failed(s, Sending, ReasonDamaged, "the peer reports")
			if e.Bootstrap() {
				t.Error("a damaged page counts as a failed transfer, not as a failed bootstrap")
			}
		})
	}
}

// TestDeathWithinAPage cuts the connection while a page is read into its place.
func TestDeathWithinAPage(t *testing.T) {
	l := Layout{Layers: 1, PageSize: 4, PageBytesPerLayer: 4 << 20}
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			p := newPair(t, pairOptions{layoutP: l, direct: direct})
			passed := 0
			half := make(chan struct{})
			w, b := newWire(t, p, func(b []byte) {
				if passed += len(b); passed > 2<<20 {
					select {
					case <-half:
					default:
						close(half)
					}
				}
			})
			s, _ := p.prefill.Open(1, 4)
			r, _ := p.decode.Open(b, 4)
			p.until(r, WaitingPages)
			r.Allocate([]int32{9}, nil)
			p.until(s, Ready)
			p.dm.own([]int32{9}, true)
			s.Send(0, 0, 3)
			waitFor(t, "half a page", half)
			w.cut()
			p.failed(r, Transferring, ReasonPeerDied)
			p.dm.own([]int32{9}, false)
			p.failed(s, Sending, ReasonPeerDied)
		})
	}
}

// TestLocalWriteError fails both sides when the decode rank's memory refuses a page.
func TestLocalWriteError(t *testing.T) {
	p := newPair(t, pairOptions{})
	p.dm.bad = errors.New("no such page")
	s, r := p.open(1, 9)
	p.until(r, WaitingPages)
	r.Allocate(seq(0, 3), nil)
	p.until(s, Ready)
	s.Send(0, 0, 1)
	p.failed(r, Transferring, ReasonLocal, "write page 0 of layer 0: no such page")
	p.failed(s, Sending, ReasonLocal, "the peer reports", "no such page")
}
