package disagg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

var errBootstrapTimeout = errors.New("bootstrap time-out")

// Receiver is the decode rank's side of one room. Its methods never block and may be called from any goroutine.
type Receiver struct {
	session
	d            *Decode
	promptTokens int
	server       string // host:port of the bootstrap server
	ctx          context.Context
	cancel       context.CancelFunc
	got          *grid // of the reading goroutine

	// Guarded by mu.
	dst      []int32 // [pages] where the pages go; nil until Allocate
	alloced  int64   // cfg.Now at Allocate
	first    First   // valid in Done
	met      int64   // cfg.Now at the end of the handshake
	announce bool    // the allocated frame is due
}

// Allocate gives the session its pages, dst[i] for page i of the prompt, NumPages(promptTokens) of them, in state
// WaitingPages. They belong to the session until it is terminal. A wrong call fails the session.
func (r *Receiver) Allocate(dst []int32) {
	r.mu.Lock()
	moved := false
	switch {
	case r.cause != nil || r.state.Terminal():
	case r.state != WaitingPages:
		r.failLocked(faultf(ReasonLocal, "Allocate in state %v", r.state))
	case len(dst) != r.got.pages:
		r.failLocked(faultf(ReasonLocal, "Allocate got %d pages, the prompt of %d tokens takes %d", len(dst), r.promptTokens, r.got.pages))
	default:
		r.dst = slices.Clone(dst)
		r.alloced = r.cfg.Now()
		r.stats.AllocNanos = r.alloced - r.met
		r.announce = true
		r.moveLocked(Transferring)
		moved = true
	}
	r.mu.Unlock()
	r.poke()
	if moved {
		r.cfg.Wake()
	}
}

// First is the first token; ok is false before Done.
func (r *Receiver) First() (first First, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first, r.state == Done
}

// Abort ends the session unless it is over or failing already, and tells the peer. It does not wait: the pages may be
// freed when the state is terminal.
func (r *Receiver) Abort(err error) {
	r.session.Abort(err)
	r.cancel()
}

// run is the session's goroutine: it meets the prefill rank and then reads until the end.
func (r *Receiver) run() {
	defer r.d.wg.Done()
	defer r.d.forget(r)
	defer r.cancel()
	l, err := r.meet()
	if err != nil {
		r.end(err)
		return
	}
	var talk sync.WaitGroup
	over := make(chan struct{})
	talk.Go(func() { r.talk(l, over) })
	err = r.converse(l)
	if err == nil {
		l.close()
	} else {
		r.fail(err)
		l.farewell(r.failure())
	}
	close(over)
	talk.Wait()
	r.end(err)
}

// meet asks the bootstrap server, dials the rank and shakes hands.
func (r *Receiver) meet() (*link, error) {
	route, err := r.ask()
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort(route.RankIP, strconv.Itoa(route.RankPort))
	r.setPeer(addr)
	conn, err := r.d.dialer.DialContext(r.ctx, "tcp", addr)
	if err != nil {
		return nil, r.blame(faultf(ReasonUnreachable, "dial the prefill rank: %v", err))
	}
	tune(conn)
	if len(r.cfg.Secret) == 0 && !isLoopbackAddr(conn.RemoteAddr()) {
		conn.Close()
		return nil, &fault{reason: ReasonAuth, err: fmt.Errorf("prefill rank at %s: %w", addr, errNoSecret)}
	}
	l := newLink(conn, r.cfg.IdleTimeout)
	stopWatch := context.AfterFunc(r.ctx, l.interrupt) // so that the farewell can still be said
	j := join{Room: r.room, PromptTokens: r.promptTokens, Layout: r.d.layout, Incarnation: r.d.incarnation}
	err = l.greetPrefill(r.cfg.Secret, route.Incarnation, j, time.Now().Add(r.cfg.HandshakeTimeout))
	if err == nil && !stopWatch() {
		err = faultf(ReasonPeerDied, "the connection was closed")
	}
	if err != nil {
		stopWatch()
		err = r.blame(err)
		l.farewell(err)
		return nil, err
	}
	r.mu.Lock()
	r.link = l
	if r.cause != nil {
		l.hurry()
	}
	r.mu.Unlock()
	return l, nil
}

// ask asks the bootstrap server for the rank. It tries again for a moment when the server or the rank is only starting.
func (r *Receiver) ask() (rankRoute, error) {
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.RouteTimeout)
	defer cancel()
	var route rankRoute
	err := retry(ctx, 10*time.Millisecond, 200*time.Millisecond, worthRetrying, func() (err error) {
		route, err = getRoute(ctx, r.d.client, r.server)
		return err
	})
	if err != nil {
		return rankRoute{}, r.blame(faultf(ReasonUnreachable, "ask the bootstrap server at %s for the prefill rank: %v", r.server, err))
	}
	return route, nil
}

// blame replaces an error that follows from an abort or the bootstrap time-out by that.
func (r *Receiver) blame(err error) error {
	if f := r.failure(); f != nil {
		return f
	}
	if errors.Is(context.Cause(r.ctx), errBootstrapTimeout) {
		return faultf(ReasonTimeout, "not ready within %v: %v", r.cfg.BootstrapTimeout, err)
	}
	return err
}

func (r *Receiver) setPeer(addr string) {
	r.mu.Lock()
	r.peer = addr
	r.mu.Unlock()
}

// talk writes what does not answer a frame: the allocated frame, pings, and the farewell after an abort. It is the only
// writer but for the ack.
func (r *Receiver) talk(l *link, over <-chan struct{}) {
	ping := time.NewTicker(max(r.cfg.IdleTimeout/3, time.Millisecond))
	defer ping.Stop()
	for {
		var err error
		r.mu.Lock()
		cause, announce := r.cause, r.announce
		r.announce = false
		r.mu.Unlock()
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
			case <-r.kick:
			case <-ping.C:
				l.answerPing()
			}
		}
		if err != nil {
			r.fail(r.afterWrite(err))
		}
	}
}

// converse reads from the end of the handshake to the first token and acknowledges it.
func (r *Receiver) converse(l *link) error {
	limit, _ := r.ctx.Deadline()
	if _, err := l.expect(frameAccept, limit); err != nil {
		if !time.Now().Before(limit) && ReasonOf(err) == ReasonPeerDied {
			return faultf(ReasonTimeout, "the prefill rank did not open the room within %v", r.cfg.BootstrapTimeout)
		}
		return err
	}
	r.mu.Lock()
	if r.cause != nil {
		defer r.mu.Unlock()
		return r.cause
	}
	r.met = r.cfg.Now()
	r.stats.BootstrapNanos = r.met - r.opened
	r.moveLocked(WaitingPages)
	r.mu.Unlock()
	r.cfg.Wake()

	l.pageBytes, l.exact = r.d.layout.PageBytesPerLayer, r.d.direct != nil
	var dst []int32
	progress := time.Time{} // last page; zero before Allocate
	for {
		until := time.Time{}
		if dst != nil {
			until = progress.Add(r.cfg.WaitingTimeout)
		}
		h, err := l.header(until)
		direct := err == nil && dst != nil && r.d.direct != nil && h.typ == framePage
		var payload []byte
		if err == nil && !direct {
			payload, err = l.payload(h, until)
		}
		if f := r.failure(); f != nil {
			return f
		}
		if dst == nil {
			if dst = r.destination(); dst != nil {
				progress = time.Now()
			}
		}
		if dst != nil && (err != nil || h.typ == framePing) && !time.Now().Before(progress.Add(r.cfg.WaitingTimeout)) {
			return faultf(ReasonTimeout, "no page came within %v; %v have arrived", r.cfg.WaitingTimeout, r.got)
		}
		if err != nil {
			return err
		}
		switch {
		case h.typ == framePing:
		case h.typ == frameError:
			return decodeError(payload)
		case dst != nil && h.typ == framePage:
			if err := r.expectPage(h); err != nil {
				return err
			}
			if direct {
				err = r.fetch(l, dst, h, until)
			} else {
				err = r.d.pages.WritePage(h.layer, dst[h.ordinal], payload)
			}
			if err != nil {
				return r.storeFault(h, err)
			}
			progress = time.Now()
		case dst != nil && h.typ == frameFirst:
			return r.complete(l, payload)
		default:
			return faultf(ReasonProtocol, "a %v frame from the prefill rank in state %v", h.typ, r.State())
		}
	}
}

func (r *Receiver) destination() []int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dst
}

// expectPage checks that a page is due and notes that it came.
func (r *Receiver) expectPage(h header) error {
	if h.length != r.d.layout.PageBytesPerLayer {
		return faultf(ReasonProtocol, "page %d of layer %d has %d bytes, want %d", h.ordinal, h.layer, h.length, r.d.layout.PageBytesPerLayer)
	}
	return r.got.add(h.layer, h.ordinal)
}

// fetch reads a page into its place.
func (r *Receiver) fetch(l *link, dst []int32, h header, until time.Time) error {
	if place := r.d.direct.PageBytes(h.layer, dst[h.ordinal]); place != nil {
		return l.payloadInto(place, h, until)
	}
	payload, err := l.payload(h, until)
	if err != nil {
		return err
	}
	return r.d.pages.WritePage(h.layer, dst[h.ordinal], payload)
}

// storeFault names the page when this rank's memory refused it.
func (r *Receiver) storeFault(h header, err error) error {
	var f *fault
	if errors.As(err, &f) {
		return err // of the connection, or of the checksum
	}
	return faultf(ReasonLocal, "write page %d of layer %d: %w", h.ordinal, h.layer, err)
}

// complete checks that nothing is missing and acknowledges it.
func (r *Receiver) complete(l *link, payload []byte) error {
	first, err := decodeFirst(payload, r.promptTokens)
	if err != nil {
		return err
	}
	if err := r.got.complete(); err != nil {
		return err
	}
	r.mu.Lock()
	r.first = first
	r.stats.TotalBytes = int64(r.got.seen) * int64(r.d.layout.PageBytesPerLayer)
	r.stats.LatencyNanos = r.cfg.Now() - r.alloced
	r.mu.Unlock()
	// When the prefill rank died at this very moment, everything is here nevertheless.
	l.writeLast(control(frameAck, nil)) //nolint:errcheck // see above
	return nil
}
