package parallel

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// World is a rank's view of all ranks of one copy of the model. It ends once, for all of them: when a rank closes it,
// when one ends it with Abort, when one dies, or when what arrives is not what is due.
type World struct {
	place     Place
	hostRanks int // ranks on the own host

	stop chan struct{} // closed at the end

	mu  sync.Mutex
	err error // the cause of the end, guarded by mu

	// use is held for reading by operations; Close takes it before it frees the memory that they use.
	use    sync.RWMutex
	closed bool // guarded by use

	wires []wire            // to all other ranks
	lines [channels][]*line // by rank, nil where the channel carries nothing

	wakes      []func()       // what ends waits that stop can't; called with mu held
	running    sync.WaitGroup // goroutines of wires and streams
	disconnect func() error   // ends those goroutines; nil: there are none
	unmap      func() error   // gives shared memory back; nil: there is none

	tp    *Group
	pipe  *Pipe
	cast  *Cast
	peers *Peers
}

// wire tells one other rank of the end.
type wire interface {
	// tell says that this rank leaves (cause nil) or that the world ended because of cause. It does not block for long,
	// and nobody listens when the peer is dead.
	tell(cause *PeerError)
}

func newWorld(p Place, hostRanks int) *World {
	w := &World{place: p, hostRanks: hostRanks, stop: make(chan struct{})}
	for c := range w.lines {
		w.lines[c] = make([]*line, p.World())
	}
	return w
}

// ready makes the views once all lines are there.
func (w *World) ready() {
	p := w.place
	first := p.PPRank * p.TPSize
	w.tp = &Group{world: w, rank: p.TPRank, size: p.TPSize, lines: w.lines[data][first : first+p.TPSize]}
	w.pipe = &Pipe{world: w}
	if !p.First() {
		w.pipe.previous = w.lines[data][p.Rank-p.TPSize]
	}
	if !p.Last() {
		w.pipe.next = w.lines[data][p.Rank+p.TPSize]
	}
	w.cast = &Cast{world: w, root: p.Sampler(), kind: kindBroadcast, lines: w.lines[tokens]}
	w.peers = &Peers{cast: Cast{world: w, root: 0, kind: kindShare, lines: w.lines[control]}}
}

// Place is where this rank is.
func (w *World) Place() Place { return w.place }

// HostRanks is how many of the world's ranks are on this host, this one included.
func (w *World) HostRanks() int { return w.hostRanks }

// TP is the own stage's group.
func (w *World) TP() *Group { return w.tp }

// Pipe leads to the neighbouring stages.
func (w *World) Pipe() *Pipe { return w.pipe }

// Cast carries what the sampling rank has to say to all.
func (w *World) Cast() *Cast { return w.cast }

// Peers is how the schedulers agree.
func (w *World) Peers() *Peers { return w.peers }

// Done is closed when the world ended; Err says why.
func (w *World) Done() <-chan struct{} { return w.stop }

// Err is nil while the world lives, ErrClosed after Close, else what ended it: a *PeerError, whose cause is ErrLeft when
// that rank closed its world in order.
func (w *World) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Abort ends the world because of something that went wrong on this rank. The others learn cause as this rank's.
func (w *World) Abort(cause error) {
	w.end(w.failed(cause), true)
}

func (w *World) failed(cause error) *PeerError {
	return &PeerError{Rank: w.place.Rank, Err: fmt.Errorf("failed: %w", cause)}
}

// end ends the world, once. With tell the other ranks learn why.
func (w *World) end(cause error, tell bool) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	w.err = cause
	close(w.stop)
	for _, wake := range w.wakes {
		wake()
	}
	w.mu.Unlock()
	if !tell {
		return
	}
	var named *PeerError
	if !errors.As(cause, &named) && !errors.Is(cause, ErrClosed) {
		named = w.failed(cause)
	}
	for _, wire := range w.wires {
		wire.tell(named)
	}
}

// operation runs one operation and ends the world when it fails: the channel is in the middle of a message then.
func (w *World) operation(ctx context.Context, what string, run func(context.Context) error) error {
	w.use.RLock()
	defer w.use.RUnlock()
	if w.closed {
		return fmt.Errorf("%s: %w", what, ErrClosed)
	}
	err := run(ctx)
	if err == nil {
		return nil
	}
	w.end(err, true)
	return fmt.Errorf("%s: %w", what, err)
}

// Close leaves the world and gives everything back. For the other ranks it ends too, unless it had. Operations under way
// end with ErrClosed.
func (w *World) Close() error {
	w.end(ErrClosed, true)
	w.use.Lock()
	defer w.use.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	var err error
	if w.disconnect != nil {
		err = w.disconnect()
	}
	w.running.Wait()
	if w.unmap != nil {
		w.mu.Lock() // an end under way may still wake what waits on the memory
		defer w.mu.Unlock()
		err = errors.Join(err, w.unmap())
	}
	return err
}
