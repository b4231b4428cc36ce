package disagg

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// session is a room's affair with one peer, on either side: its state, its end, and the signals around both. One
// goroutine, the session's own, makes it terminal; every other one leaves a wish under mu and kicks.
type session struct {
	cfg    *Config
	room   int64
	opened int64 // cfg.Now when the wait for this peer began

	broken chan struct{} // closed when cause is set
	kick   chan struct{} // capacity 1: something under mu changed

	mu    sync.Mutex
	state State
	link  *link  // nil until there is a connection that this session owns
	cause *fault // the first failure; the state follows once the pages are not touched any more
	err   *Error // set with Failed
	peer  string
	stats TransferStats
}

func newSession(cfg *Config, room int64) session {
	return session{
		cfg: cfg, room: room, opened: cfg.Now(),
		broken: make(chan struct{}), kick: make(chan struct{}, 1),
	}
}

// look tells where the session is. A terminal state means that this peer touches no pages any more; err is set with
// Failed.
func (s *session) look() (state State, err *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.err
}

// fail notes the first failure.
func (s *session) fail(err error) {
	s.mu.Lock()
	s.failLocked(err)
	s.mu.Unlock()
	s.poke()
}

func (s *session) failLocked(err error) {
	if s.cause != nil || s.state.Terminal() {
		return
	}
	s.cause = asFault(err)
	close(s.broken)
	if s.link != nil {
		s.link.hurry()
	}
}

func asFault(err error) *fault {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	return &fault{reason: ReasonLocal, err: err}
}

// poke wakes the session's goroutine.
func (s *session) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// moveLocked is the only transition; the caller calls cfg.Wake after unlocking.
func (s *session) moveLocked(to State) {
	checkTransition(s.state, to)
	s.state = to
}

// end makes the state terminal: Done when err is nil and nothing failed before. It must be the last thing that the
// session's goroutine does.
func (s *session) end(err error) {
	s.mu.Lock()
	if err != nil {
		s.failLocked(err)
	}
	if s.cause == nil {
		s.moveLocked(Done)
	} else {
		s.err = &Error{Step: s.state, Reason: s.cause.reason, Room: s.room, Peer: s.peer, FromPeer: s.cause.fromPeer, Err: s.cause.err, Outcome: s.cause.outcome}
		s.moveLocked(Failed)
	}
	s.mu.Unlock()
	s.cfg.Wake()
}

// failure is the noted failure, or nil.
func (s *session) failure() *fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// afterWrite turns a failed write into the better error that the reading side finds a moment later: the peer's own
// reason, or how the connection ended.
func (s *session) afterWrite(err error) error {
	if err == nil {
		return nil
	}
	t := time.NewTimer(farewellTimeout)
	defer t.Stop()
	select {
	case <-s.broken:
		return s.failure()
	case <-t.C:
		return err
	}
}

// bitmap is a set of small integers.
type bitmap []uint64

func newBitmap(n int) bitmap { return make(bitmap, (n+63)/64) }

// add puts i into the set and reports whether it was new.
func (b bitmap) add(i int) (isNew bool) {
	w, m := i/64, uint64(1)<<(i%64)
	isNew = b[w]&m == 0
	b[w] |= m
	return isNew
}

// grid counts which (layer, ordinal) of a prompt's pages were seen; 0 <= seen <= want. Layers are those of the model.
type grid struct {
	from, layers, pages int
	set                 bitmap // what was seen, and what is not wanted
	seen, want          int
}

func newGrid(from, layers, pages int) *grid {
	return &grid{from: from, layers: layers, pages: pages, set: newBitmap(layers * pages), want: layers * pages}
}

// skip says that the pages [0, first) of a layer are not wanted. It comes before the first add.
func (g *grid) skip(layer, first int) {
	for ordinal := range min(first, g.pages) {
		if g.set.add((layer-g.from)*g.pages + ordinal) {
			g.want--
		}
	}
}

// add notes one page of one layer; it fails when that is out of range, not wanted or a duplicate.
func (g *grid) add(layer, ordinal int) error {
	if g.layers == 0 {
		return faultf(ReasonProtocol, "page %d of layer %d: no pages are due here", ordinal, layer)
	}
	if layer < g.from || layer >= g.from+g.layers {
		return faultf(ReasonProtocol, "page %d of layer %d: the model has layers %d to %d", ordinal, layer, g.from, g.from+g.layers-1)
	}
	if ordinal < 0 || ordinal >= g.pages {
		return faultf(ReasonProtocol, "page %d of layer %d: the prompt has pages 0 to %d", ordinal, layer, g.pages-1)
	}
	if !g.set.add((layer-g.from)*g.pages + ordinal) {
		return faultf(ReasonProtocol, "page %d of layer %d: a duplicate, or out of the window", ordinal, layer)
	}
	g.seen++
	return nil
}

// complete fails with the number of missing pages and the first of them.
func (g *grid) complete() error {
	missing := g.want - g.seen
	if missing == 0 {
		return nil
	}
	for i := 0; ; i++ {
		if g.set[i/64]&(1<<(i%64)) == 0 {
			return faultf(ReasonProtocol, "%d of %d pages are missing, first page %d of layer %d", missing, g.want, i%g.pages, g.from+i/g.pages)
		}
	}
}

func (g *grid) String() string { return fmt.Sprintf("%d/%d", g.seen, g.want) }
