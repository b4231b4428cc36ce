package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Member is the view of a node other than 0. Safe for concurrent use.
type Member struct {
	line *line

	mu     sync.Mutex
	orders chan []byte // capacity 1
	closed bool        // Close was called
	ended  bool
	err    error
	done   chan struct{}
}

// Join meets node 0 and waits for its orders. It tries again until node 0 listens, ctx ends or the time to join is over.
func Join(ctx context.Context, cfg Config) (m *Member, orders []byte, err error) {
	if cfg, err = cfg.Validate(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.JoinTimeout, fmt.Errorf("it took longer than %v", cfg.JoinTimeout))
	defer cancel()
	conn, err := dial(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("join node 0 at --dist-init-addr %s: %w", cfg.Address, err)
	}
	m = &Member{orders: make(chan []byte, 1), done: make(chan struct{})}
	m.line = newLine(conn, cfg.Silence, m.hear, func(err error) { m.end(fmt.Errorf("node 0 is gone: %w", err)) })
	select {
	case orders := <-m.orders:
		return m, orders, nil
	case <-m.done:
		err = m.Err()
		if err == nil {
			err = errors.New("node 0 ended before it started")
		}
	case <-ctx.Done():
		err = fmt.Errorf("wait for the orders of node 0: %w", context.Cause(ctx))
	}
	m.Close()
	return nil, nil, err
}

// pauses between tries to reach node 0.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = time.Second
)

func dial(ctx context.Context, cfg Config) (net.Conn, error) {
	dialer := net.Dialer{Timeout: handshakeTimeout}
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		conn, err := dialer.DialContext(ctx, "tcp", cfg.Address)
		if err == nil {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			err = greet(conn, cfg.Secret, hello{Node: cfg.Rank, Nodes: cfg.Nodes, Shape: cfg.Shape})
			if stop() && err == nil {
				return conn, nil
			}
			_ = conn.Close() // it is of no use
		}
		if errors.Is(err, errRefused) {
			return nil, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w: the last try: %w", context.Cause(ctx), err)
		}
	}
}

// hear takes what node 0 says.
func (m *Member) hear(said message) {
	switch said.Kind {
	case kindOrders:
		select {
		case m.orders <- said.Orders:
		default:
			m.end(errors.New("node 0 gave orders twice"))
		}
	case kindEnd:
		if said.Error == "" {
			m.end(nil)
			return
		}
		m.end(fmt.Errorf("node 0 ended the replica: %s", said.Error))
	default:
		m.end(fmt.Errorf("node 0 said %q, which is not its part", said.Kind))
	}
}

func (m *Member) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return
	}
	m.ended = true
	if !m.closed {
		m.err = err
	}
	close(m.done)
}

// Ready tells node 0 that what it ordered has started.
func (m *Member) Ready() error {
	if err := m.line.say(message{Kind: kindReady}); err != nil {
		return fmt.Errorf("tell node 0 that this node is ready: %w", err)
	}
	return nil
}

// Fail tells node 0 why this node ends.
func (m *Member) Fail(cause error) {
	_ = m.line.say(message{Kind: kindFailed, Error: cause.Error()}) // a broken connection tells it too
}

// Done is closed when the replica ends; Err then says why, nil for an end in order.
func (m *Member) Done() <-chan struct{} { return m.done }

// Err is nil until Done.
func (m *Member) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Close leaves. Nothing runs afterwards.
func (m *Member) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.line.finish()
}
