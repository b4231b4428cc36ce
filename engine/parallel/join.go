package parallel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-dev/sluice/internal/peer"
)

// Config says which world to join and where its ranks meet.
type Config struct {
	Place Place

	// Nodes is the number of hosts, over which the ranks are spread evenly in their order; 0: 1. World % Nodes == 0.
	Nodes int
	// Dir is a private folder, fresh for this world, in which the ranks of this host meet; not needed where a host has one
	// rank. It is empty again when all have joined.
	Dir string
	// Rendezvous is where rank 0 listens and the ranks of all hosts meet, host:port. Needed with several nodes.
	Rendezvous string
	// Secret is known to all ranks of the world and to nobody else. It may be empty when Rendezvous is a loopback address.
	Secret []byte

	// Listener is rank 0's at Rendezvous, where the caller has one already. Join closes it.
	Listener net.Listener
}

// node is the host that a rank is on.
func (c Config) node(rank int) int { return rank / (c.Place.World() / c.Nodes) }

// host gives the ranks [from, to) of the own host.
func (c Config) host() (from, to int) {
	each := c.Place.World() / c.Nodes
	from = c.node(c.Place.Rank) * each
	return from, from + each
}

func (c Config) withDefaults() (Config, error) {
	if err := c.Place.validate(); err != nil {
		return c, err
	}
	if c.Nodes == 0 {
		c.Nodes = 1
	}
	if c.Nodes < 1 || c.Place.World()%c.Nodes != 0 {
		return c, fmt.Errorf("number of nodes is %d: want a divisor of the %d ranks for --nnodes", c.Nodes, c.Place.World())
	}
	if from, to := c.host(); to-from > 1 && c.Dir == "" {
		return c, errors.New("folder of the ranks is empty: name a private folder where the ranks of a host can meet")
	}
	if c.Nodes == 1 {
		return c, nil
	}
	host, _, err := net.SplitHostPort(c.Rendezvous)
	if err != nil {
		return c, fmt.Errorf("rendezvous is %q: want host:port of the first node for --dist-init-addr", c.Rendezvous)
	}
	if len(c.Secret) == 0 && !peer.Loopback(host) {
		return c, fmt.Errorf("rendezvous is %s, not a loopback address, and there is no secret: give all nodes the same secret", c.Rendezvous)
	}
	return c, nil
}

// Join meets the other ranks and gives the world once this rank is connected to all. The caller closes it. ctx bounds the
// meeting; it has no influence on the world. An error names the ranks that did not come.
func Join(ctx context.Context, cfg Config) (*World, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("join the world: %w", err)
	}
	j := &joining{cfg: cfg, world: newWorld(cfg.Place, cfg.Place.World()/cfg.Nodes), here: map[caller]net.Conn{}, greeting: map[net.Conn]bool{}, changed: make(chan struct{}, 1)}
	err = j.run(ctx)
	if err != nil {
		j.abandon()
		return nil, fmt.Errorf("join the world of %d ranks as rank %d: %w", cfg.Place.World(), cfg.Place.Rank, err)
	}
	return j.world, nil
}

func (j *joining) run(ctx context.Context) error {
	own, all := j.cfg.Place.Rank, j.cfg.Place.World()
	from, to := j.cfg.host()
	if to-from > 1 {
		var err error
		if j.segment, err = openSegment(j.cfg.Dir, j.cfg.Place, from, to); err != nil {
			return err
		}
	}
	if j.cfg.Nodes > 1 {
		if err := j.rendezvous(ctx); err != nil {
			return err
		}
	}
	if to-from > 1 {
		ln, err := net.Listen("unix", socketPath(j.cfg.Dir, own))
		if err != nil {
			return fmt.Errorf("listen for the ranks of this host: %w", err)
		}
		j.listen(ln)
	}
	calls, ctx := errgroup.WithContext(ctx)
	for peer := range own {
		for _, c := range j.channels(peer) {
			calls.Go(func() error { return j.call(ctx, peer, c) })
		}
	}
	calls.Go(func() error {
		var due []caller
		for peer := own + 1; peer < all; peer++ {
			for _, c := range j.channels(peer) {
				due = append(due, caller{peer, c})
			}
		}
		return j.await(ctx, due)
	})
	if err := calls.Wait(); err != nil {
		return err
	}
	j.closeListeners()
	j.connect(from, to)
	if j.segment != nil && own == from {
		// All have mapped it: each did before it met this rank.
		if err := os.Remove(filepath.Join(j.cfg.Dir, segmentName)); err != nil {
			return fmt.Errorf("remove the name of the shared memory: %w", err)
		}
	}
	return nil
}

// local reports whether a peer is on the own host.
func (j *joining) local(peer int) bool {
	from, to := j.cfg.host()
	return from <= peer && peer < to
}

// channels are those with a connection of their own to a peer.
func (j *joining) channels(peer int) []channel {
	all := []channel{notices}
	if j.local(peer) {
		return all
	}
	for c := control; c < channels; c++ {
		if c.carries(j.cfg.Place, j.cfg.Place.other(peer)) {
			all = append(all, c)
		}
	}
	return all
}

func socketPath(dir string, rank int) string { return filepath.Join(dir, fmt.Sprintf("r%d", rank)) }

// retryEvery is how long a rank waits before it calls again a peer that isn't there yet.
const retryEvery = 20 * time.Millisecond

// call dials a peer until it answers.
func (j *joining) call(ctx context.Context, peer int, c channel) error {
	h := j.hello(peer)
	h.Channel, h.World = c, j.name
	network, address := "unix", socketPath(j.cfg.Dir, peer)
	if !j.local(peer) {
		network, address = "tcp", j.addresses[peer]
	}
	conn, err := j.dial(ctx, network, address, h)
	if err != nil {
		return fmt.Errorf("call rank %d: %w", peer, err)
	}
	j.arrive(caller{peer, c}, conn)
	return nil
}

func (j *joining) hello(to int) hello {
	p := j.cfg.Place
	return hello{From: p.Rank, To: to, TPSize: p.TPSize, PPSize: p.PPSize, Nodes: j.cfg.Nodes}
}

// dial connects and greets, again and again until ctx ends or the peer refuses.
func (j *joining) dial(ctx context.Context, network, address string, h hello) (net.Conn, error) {
	dialer := net.Dialer{Timeout: handshakeTimeout}
	for {
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			err = greet(conn, j.cfg.Secret, h)
			if !stop() && err == nil {
				err = ctx.Err()
			}
			if err == nil {
				tune(conn)
				return conn, nil
			}
			conn.Close()
		}
		if errors.Is(err, errRefused) {
			return nil, err
		}
		t := time.NewTimer(retryEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w; the last try: %w", context.Cause(ctx), err)
		}
	}
}

// connect makes the lines and wires out of what has arrived, and starts their goroutines.
func (j *joining) connect(from, to int) {
	w := j.world
	var streams []*stream
	var wires []*connWire
	for peer := range j.cfg.Place.World() {
		if peer == j.cfg.Place.Rank {
			continue
		}
		wire := &connWire{world: w, rank: peer, conn: j.here[caller{peer, notices}]}
		for _, c := range j.channels(peer)[1:] {
			s, line := newStream(w, peer, c, j.here[caller{peer, c}])
			w.lines[c][peer] = line
			wire.streams = append(wire.streams, s)
		}
		streams, wires, w.wires = append(streams, wire.streams...), append(wires, wire), append(w.wires, wire)
	}
	if j.segment != nil {
		for c := control; c < channels; c++ {
			w.connectRings(c, from, to, j.segment.rings)
		}
		w.unmap = j.segment.unmap
		for _, r := range j.segment.rings {
			w.wakes = append(w.wakes, func() {
				r.park.wake(reading, &r.marks.written)
				r.park.wake(writing, &r.marks.read)
			})
		}
	}
	w.disconnect = func() error {
		return errors.Join(closeStreams(streams), closeAll(len(wires), func(i int) net.Conn { return wires[i].conn }))
	}
	for _, s := range streams {
		w.wakes = append(w.wakes, s.interrupt)
		w.running.Go(s.pump)
	}
	for _, wire := range wires {
		w.running.Go(wire.watch)
	}
	w.ready()
}
