package disagg

import (
	"encoding/binary"
	"net"
	"time"
)

// pageRef is a page that waits to be sent: a reference, its bytes are read when it is its turn.
type pageRef struct {
	page    int32
	ordinal int32
	layer   int32 // of the model
}

// delivery is a Sender's session with one decode rank: the part of each page that is in the cut.
type delivery struct {
	session
	s *Sender
	p *Prefill

	// Set by assign, before the decode rank comes, and then constant.
	peerRank  coordinate
	cut       cut
	partBytes int // of a page

	// Guarded by mu.
	accept    bool      // the accept frame is due
	allocated bool      // the decode rank has pages
	queue     []pageRef // queue[head:] waits; len <= layers*pages
	head      int
	first     []byte // payload of the first frame; set by finish
	firstSent bool   // invariant: firstSent → first != nil and the queue is empty
	acked     bool
	met       int64 // cfg.Now at the end of the handshake

	// Of the session's goroutine.
	batch []pageRef // what one write carries
	whole []byte    // a page that is cut, [PageBytesPerLayer]
}

// assign says which decode rank the delivery is for.
func (d *delivery) assign(o share) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.peerRank, d.cut, d.partBytes = o.peer, o.cut, d.p.shard.cutBytes(o.cut)
}

// send queues a page of a layer, unless this decode rank has none of that.
func (d *delivery) send(layer, ordinal int, page int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause != nil || d.state.Terminal() || d.cut.empty() || layer < d.cut.layers.from || layer >= d.cut.layers.to {
		return
	}
	d.queue = append(d.queue, pageRef{page: page, ordinal: int32(ordinal), layer: int32(layer)})
	d.startLocked()
	d.poke()
}

// finish queues the first frame.
func (d *delivery) finish(payload []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause != nil || d.state.Terminal() {
		return
	}
	d.first = payload
	d.startLocked()
	d.poke()
}

// startLocked moves to Sending if that is due.
func (d *delivery) startLocked() {
	if d.state != Sending {
		d.moveLocked(Sending)
	}
}

// attachLocked gives the session its peer.
func (d *delivery) attachLocked(l *link) {
	d.link, d.accept, d.peer = l, true, l.peer()
	d.met = d.cfg.Now()
	d.stats.BootstrapNanos = d.met - d.opened
}

// onFrame takes a frame from the decode rank; over means that nothing may follow.
func (d *delivery) onFrame(h header, payload []byte) (over bool) {
	woke := false
	d.mu.Lock()
	switch {
	case d.cause != nil:
		over = true
	case h.typ == frameAllocated && !d.allocated && !d.accept:
		d.allocated = true
		d.stats.AllocNanos = d.cfg.Now() - d.met
		d.moveLocked(Ready)
		woke = true
	case h.typ == frameAck && d.firstSent && len(payload) == ackBytes:
		d.stats.PeerBytes, d.stats.PeerKnown = int64(binary.BigEndian.Uint64(payload)), true
		d.acked, over = true, true
	case h.typ == frameError:
		d.failLocked(decodeError(payload))
		over = true
	default:
		d.failLocked(faultf(ReasonProtocol, "a %v frame from the decode rank in state %v", h.typ, d.state))
		over = true
	}
	d.mu.Unlock()
	d.poke()
	if woke {
		d.cfg.Wake()
	}
	return over
}

// run is the session's goroutine.
func (d *delivery) run() {
	defer d.p.wg.Done()
	err := d.serve()
	if err != nil {
		d.fail(err) // before the connection closes, which would look like a second failure
		err = d.failure()
	}
	d.mu.Lock()
	l := d.link
	d.mu.Unlock()
	switch {
	case l == nil:
	case err == nil:
		l.close()
	default:
		l.farewell(err)
	}
	d.end(err)
}

// todo is what serve does next, in the order of the fields.
type todo struct {
	cause  *fault
	acked  bool
	accept bool
	pages  []pageRef // a batch
	first  []byte
}

// next decides what is due.
func (d *delivery) next() todo {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := todo{cause: d.cause, acked: d.acked}
	switch {
	case d.cause != nil || d.acked:
	case d.accept:
		d.accept, t.accept = false, true
	case d.head < len(d.queue):
		if d.batch == nil {
			d.batch = make([]pageRef, max(1, batchBytes/(headerBytes+d.partBytes)))
		}
		n := copy(d.batch, d.queue[d.head:])
		d.head += n
		if d.head == len(d.queue) {
			d.queue, d.head = d.queue[:0], 0
		}
		t.pages = d.batch[:n]
	case d.first != nil && !d.firstSent:
		d.firstSent, t.first = true, d.first
	}
	return t
}

// serve moves the room from Bootstrapping to the final ack. Cases, in order of priority: a failure, the ack, the accept
// frame, pages, the first token, waiting.
func (d *delivery) serve() error {
	deadline := time.NewTimer(d.cfg.BootstrapTimeout)
	defer deadline.Stop()
	var firstAt int64
	for {
		t := d.next()
		var err error
		switch {
		case t.cause != nil:
			return t.cause
		case t.acked:
			d.addLatency(d.cfg.Now() - firstAt)
			return nil
		case t.accept:
			err = d.afterWrite(d.link.write(control(frameAccept, nil)))
		case len(t.pages) > 0:
			err = d.writePages(t.pages)
		case t.first != nil:
			firstAt = d.cfg.Now()
			deadline.Reset(d.cfg.WaitingTimeout)
			err = d.afterWrite(d.link.writeLast(firstFrame(t.first, d.sent())))
		default:
			err = d.wait(firstAt != 0, deadline)
		}
		if err != nil {
			return err
		}
	}
}

// sent is the page bytes that were written.
func (d *delivery) sent() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats.TotalBytes
}

// wait returns when something changed; it fails when the time for the present step is over.
func (d *delivery) wait(firstSent bool, deadline *time.Timer) error {
	select {
	case <-d.kick:
		return nil
	case <-deadline.C:
	}
	state, _ := d.look()
	switch {
	case state == Bootstrapping && d.peerName() == "":
		return d.p.explainTimeout(d.room, faultf(ReasonTimeout, "no decode rank came within %v", d.cfg.BootstrapTimeout))
	case state == Bootstrapping:
		return faultf(ReasonTimeout, "the decode rank allocated no pages within %v", d.cfg.BootstrapTimeout)
	case firstSent:
		return faultf(ReasonTimeout, "the decode rank did not acknowledge the pages within %v", d.cfg.WaitingTimeout)
	default: // Ready or Sending: the scheduler's own pace
		return nil
	}
}

func (d *delivery) peerName() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.peer
}

// writePages sends the pages with one write: whole pages from their place, or all copied into one piece.
func (d *delivery) writePages(refs []pageRef) error {
	start := d.cfg.Now()
	slab := d.p.slab()
	defer d.p.slabs.Put(slab)
	var err error
	if d.p.direct != nil && d.p.shard.straight(d.cut) {
		err = d.link.writeVector(d.gather(refs, *slab))
	} else {
		err = d.link.write(d.copyOut(refs, *slab))
	}
	if err := d.afterWrite(err); err != nil {
		return err
	}
	d.mu.Lock()
	d.stats.TotalBytes += int64(len(refs) * d.partBytes)
	d.mu.Unlock()
	d.addLatency(d.cfg.Now() - start)
	return nil
}

// copyOut makes the frames of pages in slab.
func (d *delivery) copyOut(refs []pageRef, slab []byte) []byte {
	frame := headerBytes + d.partBytes
	for i, ref := range refs {
		b := slab[i*frame : (i+1)*frame]
		d.read(ref, b[headerBytes:])
		putHeader(b, framePage, int(ref.layer), int(ref.ordinal), b[headerBytes:])
	}
	return slab[:len(refs)*frame]
}

// read copies the cut's part of a page to dst, [partBytes].
func (d *delivery) read(ref pageRef, dst []byte) {
	s := &d.p.shard
	layer := int(ref.layer) - s.holds.layers.from
	if s.straight(d.cut) {
		d.p.pages.ReadPage(layer, ref.page, dst)
		return
	}
	if d.p.direct != nil {
		if page := d.p.direct.PageBytes(layer, ref.page); page != nil {
			s.gather(d.cut, dst, page)
			return
		}
	}
	if d.whole == nil {
		d.whole = make([]byte, s.layout.PageBytesPerLayer)
	}
	d.p.pages.ReadPage(layer, ref.page, d.whole)
	s.gather(d.cut, dst, d.whole)
}

// gather makes the frames of whole pages from headers in slab and the pages themselves.
func (d *delivery) gather(refs []pageRef, slab []byte) *net.Buffers {
	pieces := make(net.Buffers, 0, 2*len(refs))
	for i, ref := range refs {
		layer := int(ref.layer) - d.p.shard.holds.layers.from
		page := d.p.direct.PageBytes(layer, ref.page)
		if page == nil {
			page = make([]byte, d.partBytes)
			d.p.pages.ReadPage(layer, ref.page, page)
		}
		h := slab[i*headerBytes : (i+1)*headerBytes]
		putHeader(h, framePage, int(ref.layer), int(ref.ordinal), page)
		pieces = append(pieces, h, page)
	}
	return &pieces
}

func (d *delivery) addLatency(nanos int64) {
	d.mu.Lock()
	d.stats.LatencyNanos += nanos
	d.mu.Unlock()
}
