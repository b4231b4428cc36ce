package disagg

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// fetch is a Receiver's session with one prefill rank: the part of each page that is in the cut.
type fetch struct {
	session
	r     *Receiver
	d     *Decode
	route rankRoute
	cut   cut

	// Of the reading goroutine.
	got   *grid
	whole []byte // a page that is put together, [PageBytesPerLayer]

	// Guarded by mu.
	dst      *destination // nil until Allocate
	met      int64        // cfg.Now at the end of the handshake
	announce bool         // the allocated frame is due
}

func newFetch(r *Receiver, route rankRoute, c cut) *fetch {
	return &fetch{
		session: newSession(r.sessionConfig(), r.room), r: r, d: r.d, route: route, cut: c, got: r.d.shard.grid(c, r.promptTokens),
	}
}

// allocate gives the pages.
func (f *fetch) allocate(dst *destination) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cause != nil || f.state.Terminal() {
		return
	}
	f.dst = dst
	f.stats.AllocNanos = dst.at - f.met
	f.announce = true
	f.moveLocked(Transferring)
	f.poke()
}

// run is the session's goroutine: it meets the prefill rank and then reads until the end.
func (f *fetch) run() {
	l, err := f.meet()
	if err != nil {
		f.end(err)
		return
	}
	var talk sync.WaitGroup
	over := make(chan struct{})
	talk.Go(func() { f.talk(l, over) })
	err = f.converse(l)
	if err == nil {
		l.close()
	} else {
		f.fail(err)
		l.farewell(f.failure())
	}
	close(over)
	talk.Wait()
	f.end(err)
}

// meet makes the connection that the session goes on with.
func (f *fetch) meet() (*link, error) {
	l, err := f.greet(f.r.ctx)
	if err != nil {
		err = f.blame(err)
		if l != nil {
			l.farewell(err)
		}
		return nil, err
	}
	f.mu.Lock()
	f.link = l
	if f.cause != nil {
		l.hurry()
	}
	f.mu.Unlock()
	return l, nil
}

// visit tells the rank why nothing will be fetched from it.
func (f *fetch) visit(ctx context.Context, why *fault) {
	l, err := f.greet(ctx)
	switch {
	case err == nil:
		l.farewell(why)
	case l != nil:
		l.farewell(err)
	}
}

// greet dials the rank and shakes hands. With an error the link, if there is one, is good for a farewell.
//
// A busy rank closes the handshakes that it has no place for, without a word; then greet comes again, until ctx ends. A rank
// that says why it refuses, or that is gone, is not asked again.
func (f *fetch) greet(ctx context.Context) (l *link, err error) {
	err = retry(ctx, 10*time.Millisecond, time.Second, wasClosed, func() (err error) {
		if l != nil {
			l.close()
		}
		l, err = f.greetOnce(ctx)
		return err
	})
	return l, err
}

func (f *fetch) greetOnce(ctx context.Context) (*link, error) {
	addr := net.JoinHostPort(f.route.RankIP, strconv.Itoa(f.route.RankPort))
	f.setPeer(addr)
	conn, err := f.d.dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, faultf(ReasonUnreachable, "dial the prefill rank: %v", err)
	}
	tune(conn)
	if len(f.cfg.Secret) == 0 && !isLoopbackAddr(conn.RemoteAddr()) {
		conn.Close()
		return nil, &fault{reason: ReasonAuth, err: fmt.Errorf("prefill rank at %s: %w", addr, errNoSecret)}
	}
	l := newLink(conn, f.cfg.IdleTimeout)
	stopWatch := context.AfterFunc(ctx, l.interrupt) // so that the farewell can still be said
	defer stopWatch()
	j := join{
		Room: f.room, PromptTokens: f.r.promptTokens, Layout: f.d.shard.layout, Incarnation: f.d.incarnation,
		TPSize: f.d.shard.world.tp, TPRank: f.d.shard.at.tp, PPSize: f.d.shard.world.pp, PPRank: f.d.shard.at.pp,
	}
	err = l.greetPrefill(f.cfg.Secret, f.route.Incarnation, j, time.Now().Add(f.cfg.HandshakeTimeout))
	if err == nil && !stopWatch() {
		err = faultf(ReasonPeerDied, "the connection was closed")
	}
	return l, err
}

// hasMet reports whether the handshake is over.
func (f *fetch) hasMet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.link != nil
}

// blame replaces an error that follows from a failure of this hand-over or the bootstrap time-out by that.
func (f *fetch) blame(err error) error {
	if known := f.failure(); known != nil {
		return known
	}
	return f.r.blame(err)
}

func (f *fetch) setPeer(addr string) {
	f.mu.Lock()
	f.peer = addr
	f.mu.Unlock()
}

// talk writes what does not answer a frame: the allocated frame, pings, and the farewell after an abort. It is the only
// writer but for the ack.
func (f *fetch) talk(l *link, over <-chan struct{}) {
	ping := time.NewTicker(max(f.cfg.IdleTimeout/3, time.Millisecond))
	defer ping.Stop()
	for {
		var err error
		f.mu.Lock()
		cause, announce := f.cause, f.announce
		f.announce = false
		f.mu.Unlock()
		switch {
		case cause != nil:
			l.farewell(cause) // unblocks the reader
			return
		case announce:
			err = l.write(control(frameAllocated, nil))
		default:
			select {
			case <-over:
				return
			case <-f.kick:
			case <-ping.C:
				l.answerPing()
			}
		}
		if err != nil {
			f.fail(f.afterWrite(err))
		}
	}
}

// converse reads from the end of the handshake to the first token and acknowledges it.
func (f *fetch) converse(l *link) error {
	limit, _ := f.r.ctx.Deadline()
	if _, err := l.expect(frameAccept, limit); err != nil {
		if !time.Now().Before(limit) && ReasonOf(err) == ReasonPeerDied {
			return faultf(ReasonTimeout, "the prefill rank did not open the room within %v", f.cfg.BootstrapTimeout)
		}
		return err
	}
	f.mu.Lock()
	if f.cause != nil {
		defer f.mu.Unlock()
		return f.cause
	}
	f.met = f.cfg.Now()
	f.stats.BootstrapNanos = f.met - f.opened
	f.moveLocked(WaitingPages)
	f.mu.Unlock()
	f.cfg.Wake()

	place := f.d.direct != nil && f.d.shard.straight(f.cut) // pages go to their place
	l.limits, l.exact = limits{page: f.d.shard.cutBytes(f.cut), first: maxFirstBytes}, place
	var dst *destination
	for {
		until := f.r.due()
		h, err := l.header(until)
		if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(until) && f.r.due().After(until) {
			continue // another peer's page came meanwhile
		}
		direct := err == nil && dst != nil && place && h.typ == framePage
		var payload []byte
		if err == nil && !direct {
			payload, err = l.payload(h, until)
		}
		if known := f.failure(); known != nil {
			return known
		}
		if dst == nil {
			dst = f.destination()
		}
		if due := f.r.due(); dst != nil && (err != nil || h.typ == framePing) && !time.Now().Before(due) {
			return faultf(ReasonTimeout, "no page came within %v; %v have arrived", f.cfg.WaitingTimeout, f.got)
		}
		if err != nil {
			return err
		}
		switch {
		case h.typ == framePing:
		case h.typ == frameError:
			return decodeError(payload)
		case dst != nil && h.typ == framePage:
			if err := f.expectPage(h); err != nil {
				return err
			}
			page := dst.page(f.d.shard.layout.windowed(h.layer), h.ordinal)
			if direct {
				err = f.fill(l, page, h, until)
			} else {
				err = f.store(page, h, payload)
			}
			if err != nil {
				return f.storeFault(h, err)
			}
			f.book(h.length)
			f.r.progressed()
		case dst != nil && h.typ == frameFirst:
			return f.complete(l, payload)
		default:
			state, _ := f.look()
			return faultf(ReasonProtocol, "a %v frame from the prefill rank in state %v", h.typ, state)
		}
	}
}

func (f *fetch) destination() *destination {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dst
}

// book counts the bytes of a page that is in its place.
func (f *fetch) book(bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.TotalBytes += int64(bytes)
}

// expectPage checks that a page is due and notes that it came.
func (f *fetch) expectPage(h header) error {
	if want := f.d.shard.cutBytes(f.cut); h.length != want {
		return faultf(ReasonProtocol, "page %d of layer %d has %d bytes, want %d", h.ordinal, h.layer, h.length, want)
	}
	return f.got.add(h.layer, h.ordinal)
}

// fill reads a whole page into its place.
func (f *fetch) fill(l *link, page int32, h header, until time.Time) error {
	if place := f.d.direct.PageBytes(h.layer-f.d.shard.holds.layers.from, page); place != nil {
		return l.payloadInto(place, h, until)
	}
	payload, err := l.payload(h, until)
	if err != nil {
		return err
	}
	return f.store(page, h, payload)
}

// store writes the cut's part of a page. Other parts may come from other peers at the same time.
func (f *fetch) store(page int32, h header, part []byte) error {
	s := &f.d.shard
	layer := h.layer - s.holds.layers.from
	if s.straight(f.cut) {
		return f.d.pages.WritePage(layer, page, part)
	}
	if f.d.direct != nil {
		if place := f.d.direct.PageBytes(layer, page); place != nil {
			s.scatter(f.cut, place, part)
			return nil
		}
	}
	if f.whole == nil {
		f.whole = make([]byte, s.layout.PageBytesPerLayer)
	}
	mu := f.d.stripes.of(layer, page)
	mu.Lock()
	defer mu.Unlock()
	f.d.pages.ReadPage(layer, page, f.whole)
	s.scatter(f.cut, f.whole, part)
	return f.d.pages.WritePage(layer, page, f.whole)
}

// storeFault names the page when this rank's memory refused it.
func (f *fetch) storeFault(h header, err error) error {
	var known *fault
	if errors.As(err, &known) {
		return err // of the connection, or of the checksum
	}
	return faultf(ReasonLocal, "write page %d of layer %d: %w", h.ordinal, h.layer, err)
}

// complete checks that nothing is missing and, when nothing of any peer is, acknowledges it.
func (f *fetch) complete(l *link, payload []byte) error {
	first, sent, err := decodeFirst(payload, f.r.promptTokens)
	if err != nil {
		return err
	}
	if err := f.got.complete(); err != nil {
		return err
	}
	f.mu.Lock()
	f.stats.PeerBytes, f.stats.PeerKnown = sent, true
	f.stats.LatencyNanos = f.cfg.Now() - f.dst.at
	received := f.stats.TotalBytes
	f.mu.Unlock()
	if err := f.r.arrive(first); err != nil {
		return err
	}
	select {
	case <-f.r.here:
	case <-f.broken:
		return f.failure()
	}
	// When the prefill rank died at this very moment, everything is here nevertheless.
	l.writeLast(control(frameAck, binary.BigEndian.AppendUint64(nil, uint64(received)))) //nolint:errcheck // see above
	return nil
}
