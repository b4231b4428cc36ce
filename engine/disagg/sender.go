package disagg

import (
	"net"
	"time"
)

// pageRef is a page that waits to be sent: a reference, its bytes are read when it is its turn.
type pageRef struct {
	page    int32
	ordinal int32
	layer   int32
}

// Sender is the prefill rank's side of one room. Its methods never block and may be called from any goroutine.
type Sender struct {
	session
	p            *Prefill
	promptTokens int

	// Guarded by mu.
	accept    bool      // the accept frame is due
	allocated bool      // the decode rank has pages
	queued    *grid     // what Send got
	queue     []pageRef // queue[head:] waits; len <= layers*pages
	head      int
	first     *First // set by Finish
	firstSent bool   // invariant: firstSent → first != nil and the queue is empty
	acked     bool
	met       int64 // cfg.Now at the end of the handshake
}

// Send queues page `ordinal` of the sequence for layer, which lies in `page` of this rank's memory. It may be called
// from Ready on, exactly once for each layer and ordinal, when the executor has written everything that the prompt puts
// there. A wrong call fails the session.
func (s *Sender) Send(layer, ordinal int, page int32) {
	woke := false
	s.mu.Lock()
	switch {
	case s.cause != nil || s.state.Terminal():
	case s.state != Ready && s.state != Sending:
		s.failLocked(faultf(ReasonLocal, "Send in state %v: the decode rank's pages are not there yet", s.state))
	case s.first != nil:
		s.failLocked(faultf(ReasonLocal, "Send of page %d of layer %d after Finish", ordinal, layer))
	default:
		if err := s.queued.add(layer, ordinal); err != nil {
			s.failLocked(faultf(ReasonLocal, "Send: %v", err))
			break
		}
		s.queue = append(s.queue, pageRef{page: page, ordinal: int32(ordinal), layer: int32(layer)})
		woke = s.startLocked()
	}
	s.mu.Unlock()
	s.poke()
	if woke {
		s.cfg.Wake()
	}
}

// Finish says that all pages were sent and what the first token is. The session is Done when the decode rank has
// acknowledged everything.
func (s *Sender) Finish(first First) {
	woke := false
	s.mu.Lock()
	switch {
	case s.cause != nil || s.state.Terminal() || s.first != nil:
	case s.state != Ready && s.state != Sending:
		s.failLocked(faultf(ReasonLocal, "Finish in state %v: the decode rank's pages are not there yet", s.state))
	default:
		if err := s.queued.complete(); err != nil {
			s.failLocked(faultf(ReasonLocal, "Finish: %v", err))
			break
		}
		s.first = &first
		woke = s.startLocked()
	}
	s.mu.Unlock()
	s.poke()
	if woke {
		s.cfg.Wake()
	}
}

// startLocked moves to Sending if that is due and reports whether it did.
func (s *Sender) startLocked() (moved bool) {
	if s.state == Sending {
		return false
	}
	s.moveLocked(Sending)
	return true
}

// attachLocked gives the session its peer.
func (s *Sender) attachLocked(l *link) {
	s.link, s.accept, s.peer = l, true, l.peer()
	s.met = s.cfg.Now()
	s.stats.BootstrapNanos = s.met - s.opened
}

// onFrame takes a frame from the decode rank; over means that nothing may follow.
func (s *Sender) onFrame(h header, payload []byte) (over bool) {
	woke := false
	s.mu.Lock()
	switch {
	case s.cause != nil:
		over = true
	case h.typ == frameAllocated && !s.allocated && !s.accept:
		s.allocated = true
		s.stats.AllocNanos = s.cfg.Now() - s.met
		s.moveLocked(Ready)
		woke = true
	case h.typ == frameAck && s.firstSent:
		s.acked, over = true, true
	case h.typ == frameError:
		s.failLocked(decodeError(payload))
		over = true
	default:
		s.failLocked(faultf(ReasonProtocol, "a %v frame from the decode rank in state %v", h.typ, s.state))
		over = true
	}
	s.mu.Unlock()
	s.poke()
	if woke {
		s.cfg.Wake()
	}
	return over
}

// run is the session's goroutine.
func (s *Sender) run() {
	defer s.p.wg.Done()
	err := s.serve()
	if err != nil {
		s.fail(err) // before the connection closes, which would look like a second failure
		err = s.failure()
	}
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	switch {
	case l == nil:
	case err == nil:
		l.close()
	default:
		l.farewell(err)
	}
	s.p.forget(s, err)
	s.end(err)
}

// todo is what serve does next, in the order of the fields.
type todo struct {
	cause  *fault
	acked  bool
	accept bool
	pages  []pageRef // a batch
	first  *First
}

// next decides what is due.
func (s *Sender) next(batch []pageRef) todo {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := todo{cause: s.cause, acked: s.acked}
	switch {
	case s.cause != nil || s.acked:
	case s.accept:
		s.accept, t.accept = false, true
	case s.head < len(s.queue):
		n := copy(batch, s.queue[s.head:])
		s.head += n
		if s.head == len(s.queue) {
			s.queue, s.head = s.queue[:0], 0
		}
		t.pages = batch[:n]
	case s.first != nil && !s.firstSent:
		s.firstSent, t.first = true, s.first
	}
	return t
}

// serve moves the room from Bootstrapping to the final ack. Cases, in order of priority: a failure, the ack, the accept
// frame, pages, the first token, waiting.
func (s *Sender) serve() error {
	deadline := time.NewTimer(s.cfg.BootstrapTimeout)
	defer deadline.Stop()
	batch := make([]pageRef, s.p.batchPages)
	var firstAt int64
	for {
		t := s.next(batch)
		var err error
		switch {
		case t.cause != nil:
			return t.cause
		case t.acked:
			s.addLatency(s.cfg.Now() - firstAt)
			return nil
		case t.accept:
			err = s.afterWrite(s.link.write(control(frameAccept, nil)))
		case len(t.pages) > 0:
			err = s.writePages(t.pages)
		case t.first != nil:
			firstAt = s.cfg.Now()
			deadline.Reset(s.cfg.WaitingTimeout)
			err = s.afterWrite(s.link.writeLast(control(frameFirst, encodeFirst(*t.first))))
		default:
			err = s.wait(firstAt != 0, deadline)
		}
		if err != nil {
			return err
		}
	}
}

// wait returns when something changed; it fails when the time for the present step is over.
func (s *Sender) wait(firstSent bool, deadline *time.Timer) error {
	select {
	case <-s.kick:
		return nil
	case <-deadline.C:
	}
	state := s.State()
	switch {
	case state == Bootstrapping && s.peerName() == "":
		return s.p.explainTimeout(s.room, faultf(ReasonTimeout, "no decode rank came within %v", s.cfg.BootstrapTimeout))
	case state == Bootstrapping:
		return faultf(ReasonTimeout, "the decode rank allocated no pages within %v", s.cfg.BootstrapTimeout)
	case firstSent:
		return faultf(ReasonTimeout, "the decode rank did not acknowledge the pages within %v", s.cfg.WaitingTimeout)
	default: // Ready or Sending: the scheduler's own pace
		return nil
	}
}

func (s *Sender) peerName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer
}

// writePages sends the pages with one write: from their place, or copied into one piece.
func (s *Sender) writePages(refs []pageRef) error {
	start := s.cfg.Now()
	slab := s.p.slab()
	defer s.p.slabs.Put(slab)
	var err error
	if s.p.direct != nil {
		err = s.link.writeVector(s.p.gather(refs, *slab))
	} else {
		err = s.link.write(s.p.copyOut(refs, *slab))
	}
	if err := s.afterWrite(err); err != nil {
		return err
	}
	s.mu.Lock()
	s.stats.TotalBytes += int64(len(refs) * s.p.layout.PageBytesPerLayer)
	s.mu.Unlock()
	s.addLatency(s.cfg.Now() - start)
	return nil
}

// copyOut makes the frames of pages in slab.
func (p *Prefill) copyOut(refs []pageRef, slab []byte) []byte {
	frame := headerBytes + p.layout.PageBytesPerLayer
	for i, ref := range refs {
		b := slab[i*frame : (i+1)*frame]
		p.pages.ReadPage(int(ref.layer), ref.page, b[headerBytes:])
		putHeader(b, framePage, int(ref.layer), int(ref.ordinal), b[headerBytes:])
	}
	return slab[:len(refs)*frame]
}

// gather makes the frames of pages from headers in slab and the pages themselves.
func (p *Prefill) gather(refs []pageRef, slab []byte) *net.Buffers {
	pieces := make(net.Buffers, 0, 2*len(refs))
	for i, ref := range refs {
		page := p.direct.PageBytes(int(ref.layer), ref.page)
		if page == nil {
			page = make([]byte, p.layout.PageBytesPerLayer)
			p.pages.ReadPage(int(ref.layer), ref.page, page)
		}
		h := slab[i*headerBytes : (i+1)*headerBytes]
		putHeader(h, framePage, int(ref.layer), int(ref.ordinal), page)
		pieces = append(pieces, h, page)
	}
	return &pieces
}

func (s *Sender) addLatency(nanos int64) {
	s.mu.Lock()
	s.stats.LatencyNanos += nanos
	s.mu.Unlock()
}
