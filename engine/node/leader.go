package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// Leader is node 0's view of the others. Safe for concurrent use.
type Leader struct {
	cfg      Config
	listener net.Listener
	running  sync.WaitGroup
	log      func(what string, args ...any)

	mu       sync.Mutex
	members  map[int]*line // by node rank; those that are there, or were once Start was called
	ready    map[int]bool
	greeting map[net.Conn]struct{}
	started  bool // orders were given: nobody may come or go
	err      error
	ended    bool // nobody is listened to any more
	lost     chan struct{}
	changed  chan struct{} // capacity 1
}

// Listen begins to wait for the other nodes. log gets what may interest a person. Call End in the end.
func Listen(cfg Config, log func(what string, args ...any)) (*Leader, error) {
	cfg, err := cfg.Validate()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(cfg.Address) // Validate has looked at it
	host := ""                                   // the address may be a name of this machine that only others know
	if peer.Loopback(cfg.Host()) {
		host = cfg.Host()
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("listen for the other nodes at --dist-init-addr %s: %w", cfg.Address, err)
	}
	return listenOn(ln, cfg, log), nil
}

// listenOn takes nodes from ln, which it closes in the end.
func listenOn(ln net.Listener, cfg Config, log func(what string, args ...any)) *Leader {
	l := &Leader{
		cfg: cfg, listener: ln, log: log, members: map[int]*line{}, ready: map[int]bool{}, greeting: map[net.Conn]struct{}{},
		lost: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	l.running.Go(l.accept)
	return l
}

// Addr is where the leader listens.
func (l *Leader) Addr() net.Addr { return l.listener.Addr() }

const maxGreeting = 64 // connections that have not proved the secret yet

func (l *Leader) accept() {
	for {
		conn, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: it may pass
			t := time.NewTimer(firstPause)
			<-t.C
			continue
		}
		l.mu.Lock()
		if l.ended || len(l.greeting) >= maxGreeting {
			l.mu.Unlock()
			_ = conn.Close() // it may try again
			continue
		}
		l.greeting[conn] = struct{}{}
		l.mu.Unlock()
		l.running.Go(func() { l.greet(conn) })
	}
}

// greet makes a connection a member, or closes it.
func (l *Leader) greet(conn net.Conn) {
	h, err := receive(conn, l.cfg.Secret, l.judge)
	l.mu.Lock()
	delete(l.greeting, conn)
	if err == nil && (l.ended || l.started || l.members[h.Node] != nil) {
		err = errors.New("another came first")
	}
	if err != nil {
		ended := l.ended
		l.mu.Unlock()
		_ = conn.Close() // it was told, or is nobody
		if !ended {
			l.log("refused a connection of a node", "peer", conn.RemoteAddr().String(), "error", err)
		}
		return
	}
	l.members[h.Node] = newLine(conn, l.cfg.Silence, func(m message) { l.hear(h.Node, m) }, func(err error) { l.gone(h.Node, err) })
	l.mu.Unlock()
	l.log("a node is here", "node_rank", h.Node, "peer", conn.RemoteAddr().String())
	l.signal()
}

// judge refuses nodes of another replica.
func (l *Leader) judge(h hello) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case h.Version != protocolVersion:
		return fmt.Errorf("it speaks version %d of the protocol, node 0 version %d: run the same release on all nodes", h.Version, protocolVersion)
	case h.Nodes != l.cfg.Nodes:
		return fmt.Errorf("its --nnodes is %d, that of node 0 is %d", h.Nodes, l.cfg.Nodes)
	case h.Node < 1 || h.Node >= l.cfg.Nodes:
		return fmt.Errorf("its --node-rank is %d: want 1 to %d", h.Node, l.cfg.Nodes-1)
	case h.Shape != l.cfg.Shape:
		return fmt.Errorf("it was started with %s, node 0 with %s: give all nodes the same", h.Shape, l.cfg.Shape)
	case l.started || l.ended:
		return errors.New("the replica has started without it: start all nodes again")
	case l.members[h.Node] != nil:
		return fmt.Errorf("--node-rank %d is here already: give each node its own", h.Node)
	}
	return nil
}

// hear takes what a node says.
func (l *Leader) hear(node int, m message) {
	switch m.Kind {
	case kindReady:
		l.mu.Lock()
		l.ready[node] = true
		l.mu.Unlock()
		l.signal()
	case kindFailed:
		l.lose(fmt.Errorf("node %d: %s", node, m.Error))
	default:
		l.lose(fmt.Errorf("node %d said %q, which is not its part", node, m.Kind))
	}
}

// gone is the end of a node's connection.
func (l *Leader) gone(node int, err error) {
	l.mu.Lock()
	member := l.members[node]
	if !l.started {
		delete(l.members, node) // it may come again
		l.mu.Unlock()
		member.close()
		l.signal()
		return
	}
	l.mu.Unlock()
	l.lose(fmt.Errorf("node %d is gone: %w", node, err))
}

// lose ends the replica, once.
func (l *Leader) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !l.ended {
		l.err = err
		close(l.lost)
	}
}

func (l *Leader) signal() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Gather waits until all nodes are there. An error names those that are missing.
func (l *Leader) Gather(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.cfg.JoinTimeout, fmt.Errorf("they did not come within %v", l.cfg.JoinTimeout))
	defer cancel()
	return l.await(ctx, "wait for the other nodes at "+l.cfg.Address, func() (missing []int) {
		for node := 1; node < l.cfg.Nodes; node++ {
			if l.members[node] == nil {
				missing = append(missing, node)
			}
		}
		l.started = l.started || len(missing) == 0
		return missing
	})
}

// Start gives all nodes their orders. Call it after Gather.
func (l *Leader) Start(orders []byte) {
	l.tell(message{Kind: kindOrders, Orders: orders})
}

// Ready waits until all nodes have started what was ordered.
func (l *Leader) Ready(ctx context.Context) error {
	return l.await(ctx, "wait until the other nodes are ready", func() (missing []int) {
		for node := 1; node < l.cfg.Nodes; node++ {
			if !l.ready[node] {
				missing = append(missing, node)
			}
		}
		return missing
	})
}

// await waits until missing, which is called under mu, names nobody.
func (l *Leader) await(ctx context.Context, what string, missing func() []int) error {
	for {
		l.mu.Lock()
		absent, err := missing(), l.err
		l.mu.Unlock()
		switch {
		case err != nil:
			return err
		case len(absent) == 0:
			return nil
		}
		select {
		case <-l.changed:
		case <-l.lost:
		case <-ctx.Done():
			return fmt.Errorf("%s: node %s: %w", what, ranksOf(absent), context.Cause(ctx))
		}
	}
}

func ranksOf(nodes []int) string {
	slices.Sort(nodes)
	words := make([]string, len(nodes))
	for i, n := range nodes {
		words[i] = fmt.Sprint(n)
	}
	return strings.Join(words, ", ")
}

// Lost is closed when a node has failed or is gone; Err then says which and why.
func (l *Leader) Lost() <-chan struct{} { return l.lost }

// Err is nil until Lost.
func (l *Leader) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// tell says something to all nodes. One that can't be told is about to be lost.
func (l *Leader) tell(m message) {
	var all sync.WaitGroup
	for _, member := range l.lines() {
		all.Go(func() { _ = member.say(m) })
	}
	all.Wait()
}

func (l *Leader) lines() []*line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.members))
}

// End ends the replica on all nodes: in order when cause is nil. Nothing runs afterwards.
func (l *Leader) End(cause error) {
	l.mu.Lock()
	again := l.ended
	l.ended = true
	for conn := range l.greeting {
		_ = conn.Close() // it was nobody yet
	}
	l.mu.Unlock()
	if !again {
		m := message{Kind: kindEnd}
		if cause != nil {
			m.Error = cause.Error()
		}
		l.tell(m)
	}
	_ = l.listener.Close() // an error says that it was closed before
	var all sync.WaitGroup
	for _, member := range l.lines() {
		all.Go(member.finish)
	}
	all.Wait()
	l.running.Wait()
}
