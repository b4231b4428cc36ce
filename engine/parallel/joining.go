package parallel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// joining is a world while its ranks meet.
type joining struct {
	cfg     Config
	world   *World
	segment *segment // nil where the rank is alone on its host

	name      string   // of the world, chosen by rank 0; empty on one host
	addresses []string // by rank, for those on other hosts

	listeners []net.Listener
	accepting sync.WaitGroup // accept loops and handshakes

	mu       sync.Mutex
	here     map[caller]net.Conn
	greeting map[net.Conn]bool // handshakes under way
	refused  error             // the last caller that was sent away, for the message when others are missing
	closing  bool              // no more callers are taken
	meeting  *meeting          // rank 0's, until all have come

	changed chan struct{} // room for one signal: here or the meeting changed
}

// caller is a peer on one channel.
type caller struct {
	rank    int
	channel channel
}

// maxHandshakes bounds strangers that connect and say nothing.
const maxHandshakes = 64

// listen takes callers from ln.
func (j *joining) listen(ln net.Listener) {
	j.listeners = append(j.listeners, ln)
	slots := make(chan struct{}, maxHandshakes)
	j.accepting.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				t := time.NewTimer(retryEvery) // out of descriptors: it may pass
				<-t.C
				continue
			}
			select {
			case slots <- struct{}{}:
			default:
				conn.Close()
				continue
			}
			j.accepting.Go(func() {
				h, err := j.greeted(conn)
				<-slots
				j.place(h, conn, err)
			})
		}
	})
}

// greeted does a caller's handshake.
func (j *joining) greeted(conn net.Conn) (hello, error) {
	j.mu.Lock()
	if j.closing {
		j.mu.Unlock()
		return hello{}, errors.New("all ranks have come")
	}
	j.greeting[conn] = true
	j.mu.Unlock()
	h, err := receive(conn, j.cfg.Secret, j.check)
	j.mu.Lock()
	delete(j.greeting, conn)
	j.mu.Unlock()
	return h, err
}

// place keeps the connection of a caller whose handshake is over, if it is one that is due.
func (j *joining) place(h hello, conn net.Conn, err error) {
	if err != nil {
		conn.Close()
		j.mu.Lock()
		j.refused = err
		j.mu.Unlock()
		return
	}
	tune(conn)
	if h.Register {
		j.register(h.From, conn)
		return
	}
	j.arrive(caller{h.From, h.Channel}, conn)
}

// check says why a caller is not one that is due.
func (j *joining) check(h hello) error {
	p := j.cfg.Place
	if h.TPSize != p.TPSize || h.PPSize != p.PPSize || h.Nodes != j.cfg.Nodes {
		return fmt.Errorf("it has --tp-size %d, --pp-size %d and --nnodes %d, rank %d has %d, %d and %d: start all nodes alike",
			h.TPSize, h.PPSize, h.Nodes, p.Rank, p.TPSize, p.PPSize, j.cfg.Nodes)
	}
	if h.To != p.Rank {
		return fmt.Errorf("it calls rank %d, this is rank %d", h.To, p.Rank)
	}
	if h.From < 0 || h.From >= p.World() || h.From == p.Rank {
		return fmt.Errorf("it says it is rank %d, to rank %d of %d", h.From, p.Rank, p.World())
	}
	j.mu.Lock()
	name, meeting := j.name, j.meeting
	j.mu.Unlock()
	if h.Register {
		if meeting == nil {
			return fmt.Errorf("it asks rank %d for the addresses of the ranks: want rank 0, with several nodes", p.Rank)
		}
		return nil
	}
	if h.World != name {
		return errors.New("it belongs to another gathering of this world: restart its node")
	}
	if h.From < p.Rank || h.Channel >= channels || !slices.Contains(j.channels(h.From), h.Channel) {
		return fmt.Errorf("rank %d calls on channel %d: that one is not due from it", h.From, h.Channel)
	}
	return nil
}

// arrive keeps a connection. Of two of the same caller the newer counts: the older one broke.
func (j *joining) arrive(from caller, conn net.Conn) {
	j.mu.Lock()
	old := j.here[from]
	if j.closing && from.rank > j.cfg.Place.Rank {
		old = conn
	} else {
		j.here[from] = conn
	}
	j.mu.Unlock()
	if old != nil {
		old.Close()
	}
	j.signal()
}

func (j *joining) signal() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// await waits until all that are due have called.
func (j *joining) await(ctx context.Context, due []caller) error {
	for {
		j.mu.Lock()
		missing := slices.DeleteFunc(slices.Clone(due), func(c caller) bool { return j.here[c] != nil })
		j.closing = len(missing) == 0
		j.mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-j.changed:
		case <-ctx.Done():
			ranks := make([]int, len(missing))
			for i, c := range missing {
				ranks[i] = c.rank
			}
			return j.absent(ranks, context.Cause(ctx))
		}
	}
}

// absent names the ranks that did not come.
func (j *joining) absent(ranks []int, cause error) error {
	j.mu.Lock()
	refused := j.refused
	j.mu.Unlock()
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	if refused != nil {
		return fmt.Errorf("ranks %v did not come: %w; the last caller was sent away: %w", ranks, cause, refused)
	}
	return fmt.Errorf("ranks %v did not come: %w", ranks, cause)
}

// closeListeners ends the taking of callers, and the handshakes under way: they aren't of ranks that are due.
func (j *joining) closeListeners() {
	for _, ln := range j.listeners {
		ln.Close()
	}
	j.mu.Lock()
	j.closing = true
	for conn := range j.greeting {
		conn.Close()
	}
	j.mu.Unlock()
	j.accepting.Wait()
}

// abandon gives everything back when the meeting failed.
func (j *joining) abandon() {
	j.closeListeners()
	for _, conn := range j.here {
		conn.Close()
	}
	if j.world.disconnect == nil && j.segment != nil { // the world knows nothing of it yet
		_ = j.segment.unmap() // the error that led here says more
	}
	_ = j.world.Close() // as above
}
