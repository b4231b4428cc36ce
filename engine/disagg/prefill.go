package disagg

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// batchBytes is how much one write carries, at least one page.
const batchBytes = 128 << 10

// rememberedRooms is how many rooms that are over are kept in mind, so that a late decode rank hears why at once.
const rememberedRooms = 1024

// Prefill is the prefill rank's end: it listens for decode ranks and brings them together with the rooms that its
// scheduler opens.
type Prefill struct {
	cfg         Config
	shard       shard
	pages       Pages
	direct      Direct // nil: pages are copied
	ln          net.Listener
	incarnation string
	registered  chan struct{}
	stop        context.CancelFunc
	wg          sync.WaitGroup
	slabs       sync.Pool

	mu        sync.Mutex
	closed    bool
	rooms     map[int64]*Sender  // opened and not settled
	parked    map[visit]*arrival // decode ranks before their room; no key's room is in rooms; len <= MaxParked
	over      map[int64]*fault   // what to say to who comes to a room that has ended; len <= rememberedRooms
	overAt    []int64            // keys of over, oldest first
	refused   error              // the last connection that was refused before it named a room, to explain a time-out
	refusedAt time.Time
	fresh     *list.List         // of *link: handshakes going on, oldest first; Len <= MaxHandshakes
	links     map[*link]struct{} // every open connection
}

// visit is which decode rank comes to which room.
type visit struct {
	room int64
	rank coordinate
}

// arrival is an authenticated decode rank whose room is not open yet, or the memory of one that failed meanwhile.
type arrival struct {
	link  *link
	join  join
	fault *fault // set: the room is doomed; link is closed
	timer *time.Timer
	// delivery is set when the room is open.
	delivery atomic.Pointer[delivery]
}

func (a *arrival) visit() visit {
	return visit{room: a.join.Room, rank: coordinate{tp: a.join.TPRank, pp: a.join.PPRank}}
}

// NewPrefill listens and registers the rank at its bootstrap server, again and again until that works. Close ends it.
func NewPrefill(cfg Config, layout Layout, pages Pages) (*Prefill, error) {
	cfg = cfg.withDefaults()
	shard, err := newShard(layout, cfg.Place)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen address of the prefill rank: %w", err)
	}
	if cfg.AdvertiseHost == "" {
		cfg.AdvertiseHost = host
	}
	if ip := net.ParseIP(cfg.AdvertiseHost); cfg.AdvertiseHost == "" || (ip != nil && ip.IsUnspecified()) {
		return nil, fmt.Errorf("advertised host of the prefill rank is %q: set --disaggregation-host or POD_IP to an address that decode ranks can dial", cfg.AdvertiseHost)
	}
	if len(cfg.Secret) == 0 && !peer.Loopback(host) {
		return nil, fmt.Errorf("prefill rank on %s: %w", cfg.Listen, errNoSecret)
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("prefill rank: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Prefill{
		cfg: cfg, shard: shard, pages: pages, ln: ln, incarnation: peer.Nonce(), registered: make(chan struct{}), stop: stop,
		rooms: map[int64]*Sender{}, parked: map[visit]*arrival{}, over: map[int64]*fault{}, fresh: list.New(), links: map[*link]struct{}{},
	}
	p.direct = directOf(pages, layout)
	slabBytes := max(batchBytes, headerBytes+layout.PageBytesPerLayer)
	p.slabs.New = func() any { b := make([]byte, slabBytes); return &b }
	p.wg.Add(2)
	go p.register(ctx)
	go p.accept()
	return p, nil
}

func (p *Prefill) slab() *[]byte { return p.slabs.Get().(*[]byte) }

// Addr is where the rank listens.
func (p *Prefill) Addr() net.Addr { return p.ln.Addr() }

// Registered is closed when the bootstrap server knows the rank.
func (p *Prefill) Registered() <-chan struct{} { return p.registered }

// Open opens a room for a prompt of promptTokens tokens. The room must not be open already.
func (p *Prefill) Open(room int64, promptTokens int) (*Sender, error) {
	if promptTokens < 1 {
		return nil, fmt.Errorf("open room %d: the prompt has %d tokens, want at least 1", room, promptTokens)
	}
	s := &Sender{p: p, promptTokens: promptTokens, queued: p.shard.grid(p.shard.holds, promptTokens)}
	s.group = newGroup(&p.cfg, room, Ready, func(failed *Error) { p.forget(s, failed) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("open room %d: the prefill rank is closed", room)
	}
	if p.rooms[room] != nil {
		return nil, fmt.Errorf("open room %d: it is open already; bootstrap_room must be different for every request", room)
	}
	p.rooms[room] = s
	delete(p.over, room)
	s.mu.Lock()
	s.addLocked()
	s.mu.Unlock()
	for v, a := range p.parked {
		if v.room == room {
			delete(p.parked, v)
			a.timer.Stop()
			p.turnAway(a, s.meet(a))
		}
	}
	return s, nil
}

// turnAway ends a decode rank's connection that was parked and does not belong to its room after all. The room's own
// failures reach the decode ranks that it has.
func (p *Prefill) turnAway(a *arrival, err error) {
	if err == nil || a.fault != nil {
		return
	}
	p.wg.Go(func() {
		p.refuse(a.link.peer(), a.join.Room, err)
		a.link.farewell(err)
	})
}

// forget takes a room out of the table and remembers why it ended.
func (p *Prefill) forget(s *Sender, failed *Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rooms[s.room] == s {
		delete(p.rooms, s.room)
	}
	if _, known := p.over[s.room]; !known {
		p.overAt = append(p.overAt, s.room)
	}
	p.over[s.room] = overFault(s.room, failed)
	for len(p.overAt) > rememberedRooms {
		delete(p.over, p.overAt[0])
		p.overAt = p.overAt[1:]
	}
}

// overFault is what a decode rank hears that comes to a room which is over. The request's outcome is that of its half, too.
func overFault(room int64, failed *Error) *fault {
	if failed == nil {
		return faultf(ReasonStale, "room %d is over: its transfer is done", room)
	}
	f := faultf(ReasonStale, "room %d is over: %v", room, failed.Err)
	f.outcome = failed.Outcome
	return f
}

// explainTimeout adds the last refused connection to the time-out of a room that nobody joined, when it is recent: the peer
// may have come, and gone, before the room was open.
func (p *Prefill) explainTimeout(room int64, f *fault) *fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused != nil && time.Since(p.refusedAt) <= 2*p.cfg.BootstrapTimeout {
		return faultf(f.reason, "%v; the last refused connection: %v", f, p.refused)
	}
	return f
}

// Close fails all rooms, ends all connections and waits until everything is settled.
func (p *Prefill) Close() error {
	p.stop()
	err := p.ln.Close()
	p.mu.Lock()
	p.closed = true
	var rooms []*Sender
	for _, s := range p.rooms {
		rooms = append(rooms, s)
	}
	attached := map[*link]bool{}
	for _, s := range rooms {
		s.Abort(errors.New("the prefill rank is closing"))
		for _, l := range s.links() {
			attached[l] = true
		}
	}
	for _, a := range p.parked {
		a.timer.Stop()
	}
	for l := range p.links {
		if !attached[l] {
			l.close()
		}
	}
	p.mu.Unlock()
	p.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// register tells the bootstrap server about this rank.
func (p *Prefill) register(ctx context.Context) {
	defer p.wg.Done()
	_, portText, _ := net.SplitHostPort(p.ln.Addr().String())
	port, _ := strconv.Atoi(portText)
	reg := registration{
		AttnTPSize: p.shard.world.tp, AttnTPRank: p.shard.at.tp, PPSize: p.shard.world.pp, PPRank: p.shard.at.pp,
		AttnCPSize: 1, AttnDPSize: 1, SystemDPSize: p.cfg.DPSize, SystemDPRank: p.cfg.DPRank,
		RankIP: p.cfg.AdvertiseHost, RankPort: port, PageSize: p.shard.layout.PageSize, KVCacheDType: p.shard.layout.DType,
		LoadBalanceMethod: p.cfg.LoadBalance, PrefillHTTPPort: p.cfg.HTTPPort,
		Incarnation: p.incarnation, StartedWallNanos: time.Now().UnixNano(),
	}
	client := &http.Client{Timeout: p.cfg.HandshakeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	always := func(err error) bool {
		p.cfg.Listener(Event{Kind: EventRegisterRetry, Peer: p.cfg.Bootstrap, Err: err})
		return true
	}
	err := retry(ctx, 20*time.Millisecond, time.Second, always, func() error {
		return putRoute(ctx, client, p.cfg.Bootstrap, p.cfg.Secret, reg)
	})
	if err == nil {
		close(p.registered)
		p.cfg.Listener(Event{Kind: EventRegistered, Peer: p.cfg.Bootstrap})
	}
}

// accept takes connections until the listener is closed.
func (p *Prefill) accept() {
	defer p.wg.Done()
	for {
		conn, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: give others a moment to end
			p.refuse("", 0, fmt.Errorf("accept: %w", err))
			time.Sleep(10 * time.Millisecond)
			continue
		}
		l := newLink(conn, p.cfg.IdleTimeout)
		if !p.admit(l) {
			l.close()
			continue
		}
		p.wg.Add(1)
		go p.serve(l)
	}
}

// admit makes room for one more handshake: the oldest gives way. An honest one takes milliseconds, or comes
// again: see fetch.greet.
func (p *Prefill) admit(l *link) (admitted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	if p.fresh.Len() >= p.cfg.MaxHandshakes {
		oldest := p.fresh.Remove(p.fresh.Front()).(*link)
		oldest.close()
	}
	l.fresh = p.fresh.PushBack(l)
	p.links[l] = struct{}{}
	return true
}

// proved takes a connection off the list of handshakes.
func (p *Prefill) proved(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.fresh != nil {
		p.fresh.Remove(l.fresh) // does nothing when admit has removed it
		l.fresh = nil
	}
}

func (p *Prefill) drop(l *link) {
	p.proved(l)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// refuse notes a connection that was turned away; room is 0 when it did not get to name its room.
func (p *Prefill) refuse(peer string, room int64, err error) {
	if room == 0 { // with a room it is that room's affair
		p.mu.Lock()
		p.refused, p.refusedAt = fmt.Errorf("%s: %w", peer, err), time.Now()
		p.mu.Unlock()
	}
	p.cfg.Listener(Event{Kind: EventRefused, Room: room, Peer: peer, Err: err})
}

// serve is one connection's goroutine: handshake, room, then frames until the end.
func (p *Prefill) serve(l *link) {
	defer p.wg.Done()
	defer p.drop(l)
	tune(l.conn)
	if len(p.cfg.Secret) == 0 && !isLoopbackAddr(l.conn.RemoteAddr()) {
		p.refuse(l.peer(), 0, errNoSecret)
		l.farewell(&fault{reason: ReasonAuth, err: errNoSecret})
		return
	}
	j, err := l.greetDecode(p.cfg.Secret, p.incarnation, time.Now().Add(p.cfg.HandshakeTimeout), func() { p.proved(l) })
	p.proved(l)
	if err != nil {
		p.refuse(l.peer(), 0, err)
		l.farewell(err)
		return
	}
	a := &arrival{link: l, join: j}
	if err := p.arrive(a); err != nil {
		p.refuse(l.peer(), j.Room, err)
		l.farewell(err)
		return
	}
	p.read(a)
}

// arrive gives an authenticated decode rank its room, or parks it until the room is opened.
func (p *Prefill) arrive(a *arrival) error {
	mismatch := a.join.fits(&p.shard)
	p.mu.Lock()
	defer p.mu.Unlock()
	room := a.join.Room
	s := p.rooms[room]
	switch {
	case p.closed:
		return faultf(ReasonAborted, "the prefill rank is closing")
	case s != nil && s.known(a.visit().rank):
		return faultf(ReasonProtocol, "room %d has its decode rank already", room)
	case s != nil && mismatch != nil:
		s.fail(mismatch)
		return mismatch
	case s != nil:
		return s.meet(a)
	case p.over[room] != nil:
		return p.over[room]
	case p.parked[a.visit()] != nil:
		return faultf(ReasonProtocol, "room %d has its decode rank already", room)
	case len(p.parked) >= p.cfg.MaxParked && !p.forgetDoomedLocked():
		return faultf(ReasonOverload, "%d decode ranks wait for rooms that are not open yet", p.cfg.MaxParked)
	}
	if mismatch != nil {
		a.fault = asFault(mismatch)
	}
	p.parked[a.visit()] = a
	a.timer = time.AfterFunc(p.cfg.BootstrapTimeout, func() { p.expire(a) })
	return mismatch
}

// forgetDoomedLocked makes room among those that wait: one that is gone already gives way, if there is any.
func (p *Prefill) forgetDoomedLocked() (done bool) {
	for v, a := range p.parked {
		if a.fault != nil {
			a.timer.Stop()
			delete(p.parked, v)
			return true
		}
	}
	return false
}

// expire ends an arrival whose room was never opened.
func (p *Prefill) expire(a *arrival) {
	p.mu.Lock()
	here := p.parked[a.visit()] == a
	if here {
		delete(p.parked, a.visit())
	}
	p.mu.Unlock()
	if here && a.fault == nil {
		err := faultf(ReasonTimeout, "room %d was not opened within %v", a.join.Room, p.cfg.BootstrapTimeout)
		p.refuse(a.link.peer(), a.join.Room, err)
		a.link.farewell(err)
	}
}

// read passes frames to the room until the connection or the room ends. Pings are answered.
func (p *Prefill) read(a *arrival) {
	for {
		h, payload, err := a.link.next(time.Time{})
		if err == nil && h.typ == framePing {
			a.link.answerPing()
			continue
		}
		d := a.delivery.Load()
		if d == nil {
			if err == nil && h.typ == frameError {
				err = decodeError(payload)
			}
			if err == nil {
				err = faultf(ReasonProtocol, "a %v frame before the room is open", h.typ)
			}
			if d = p.doom(a, err); d == nil {
				a.link.farewell(err)
				return
			}
		}
		if err != nil {
			d.fail(err)
			return
		}
		if d.onFrame(h, payload) {
			return
		}
	}
}

// doom notes that a parked decode rank is gone, so that its room fails as soon as it is opened. When the room was
// opened in the meantime, doom returns the delivery.
func (p *Prefill) doom(a *arrival, err error) *delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := a.delivery.Load(); d != nil {
		return d
	}
	if p.parked[a.visit()] == a {
		a.fault = asFault(err)
	}
	return nil
}
