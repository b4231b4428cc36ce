package disagg

import (
	"errors"
	"fmt"
	"sync"
)

// group is one room's affair with all its peers, one session each: what a Sender and a Receiver are made of. Its state
// follows from those of the sessions, at each of their changes and in whatever goroutine makes them:
//
//	Ready, WaitingPages     as soon as every session is
//	Sending, Transferring   with the caller's first Send, Finish or Allocate
//	Done                    when every session is
//	Failed                  when one has failed and all are over: the first failure ends the others, and their peers are told
type group struct {
	cfg  *Config
	room int64
	met  State               // Ready or WaitingPages: what follows Bootstrapping
	over func(failed *Error) // nil: it is done

	settled chan struct{} // closed when state is terminal

	mu       sync.Mutex
	state    State
	sessions []*session
	whole    bool   // no session will be added; Done needs that
	asking   bool   // there is no session yet, and the goroutine that will make them is still at it
	ending   bool   // state is about to become terminal
	failed   *Error // the first failure
	err      *Error // failed, once the state says so
}

func newGroup(cfg *Config, room int64, met State, over func(*Error)) group {
	return group{cfg: cfg, room: room, met: met, over: over, settled: make(chan struct{})}
}

// sessionConfig is what a session of the group goes by: its changes are the group's.
func (g *group) sessionConfig() *Config {
	c := *g.cfg
	c.Wake = g.refresh
	return &c
}

// State tells where the hand-over is. A terminal state means that its pages are not touched any more.
func (g *group) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// Err is nil until the state is Failed; then it is an *Error.
func (g *group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return nil
	}
	return g.err
}

// Settled is closed when the state is terminal.
func (g *group) Settled() <-chan struct{} { return g.settled }

// Stats gives sizes and times so far: bytes of all peers together, and the longest of their times.
func (g *group) Stats() TransferStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := TransferStats{PeerKnown: g.whole}
	for _, s := range g.sessions {
		s.mu.Lock()
		one := s.stats
		s.mu.Unlock()
		all.TotalBytes += one.TotalBytes
		all.PeerBytes += one.PeerBytes
		all.PeerKnown = all.PeerKnown && one.PeerKnown
		all.LatencyNanos = max(all.LatencyNanos, one.LatencyNanos)
		all.BootstrapNanos = max(all.BootstrapNanos, one.BootstrapNanos)
		all.AllocNanos = max(all.AllocNanos, one.AllocNanos)
	}
	return all
}

// Abort ends the hand-over unless it is over or failing already, and tells the peers. It does not wait: the pages may be
// freed when the state is terminal, at most a fraction of a second later.
func (g *group) Abort(err error) {
	if err == nil {
		err = errors.New("aborted")
	}
	g.fail(&fault{reason: ReasonAborted, outcome: common(err), err: err})
}

// fail notes a failure of this side.
func (g *group) fail(err error) {
	g.mu.Lock()
	g.failLocked(err)
	g.mu.Unlock()
}

// failLocked ends the sessions, and with the last of them the group. Without sessions whoever is asking ends it.
func (g *group) failLocked(err error) {
	if g.failed != nil || g.state.Terminal() {
		return
	}
	f := asFault(err)
	if len(g.sessions) == 0 {
		g.failed = &Error{Step: g.state, Reason: f.reason, Room: g.room, FromPeer: f.fromPeer, Err: f.err, Outcome: f.outcome}
		return
	}
	for _, s := range g.sessions {
		s.fail(f)
	}
}

// refresh derives the state anew and tells the scheduler.
func (g *group) refresh() {
	g.mu.Lock()
	end := g.deriveLocked()
	failed := g.failed
	g.mu.Unlock()
	if end {
		g.end(failed)
	}
	g.cfg.Wake()
}

// deriveLocked moves the group on as its sessions did; end says that it is over and that the caller, who is the only one,
// has to end it.
func (g *group) deriveLocked() (end bool) {
	if g.state.Terminal() || g.ending {
		return false
	}
	over, lowest := !g.asking, Done
	for _, s := range g.sessions {
		state, err := s.look()
		over = over && state.Terminal()
		if err == nil {
			lowest = min(lowest, state)
			continue
		}
		if g.failed == nil {
			first := *err
			first.Step = g.state
			g.failed = &first
		}
	}
	if g.failed != nil {
		g.spreadLocked()
		g.ending = over
		return over
	}
	if g.whole && g.state == Bootstrapping && lowest >= g.met {
		checkTransition(g.state, g.met)
		g.state = g.met
	}
	g.ending = g.whole && over
	return g.ending
}

// spreadLocked ends the sessions that go on although another one has failed.
func (g *group) spreadLocked() {
	for _, s := range g.sessions {
		if state, _ := s.look(); !state.Terminal() {
			f := g.failed.fault()
			f.told = true
			if f.reason == ReasonPeerAborted {
				f.reason = ReasonAborted // and its peer makes the same of it
			}
			if len(g.sessions) > 1 {
				f.err = fmt.Errorf("the hand-over with %s has failed: %w", g.failed.Peer, g.failed.Err)
			}
			s.fail(f)
		}
	}
}

// end makes the state terminal. No lock is held.
func (g *group) end(failed *Error) {
	g.over(failed)
	g.mu.Lock()
	to := Done
	if failed != nil {
		g.err, to = failed, Failed
	}
	checkTransition(g.state, to)
	g.state = to
	g.mu.Unlock()
	close(g.settled)
	if failed != nil {
		g.cfg.Listener(Event{Kind: EventFailed, Room: failed.Room, Peer: failed.Peer, Err: failed})
	}
}

// moveLocked is the transition that a call of the scheduler makes; it reports whether it was due.
func (g *group) moveLocked(to State) (moved bool) {
	if g.state == to {
		return false
	}
	checkTransition(g.state, to)
	g.state = to
	return true
}
