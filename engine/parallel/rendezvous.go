package parallel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// meeting is rank 0's list of the ranks that asked for the table. Guarded by joining.mu.
type meeting struct {
	guests map[int]guest
}

type guest struct {
	conn    net.Conn
	address string
}

// rendezvous learns where every rank listens: rank 0 is asked by all and tells all.
func (j *joining) rendezvous(ctx context.Context) error {
	if j.cfg.Place.Rank == 0 {
		return j.host(ctx)
	}
	host, _, _ := net.SplitHostPort(j.cfg.Rendezvous) // withDefaults has looked at it
	ln, err := net.Listen("tcp", net.JoinHostPort(listenHost(host), "0"))
	if err != nil {
		return fmt.Errorf("listen for the ranks of other nodes: %w", err)
	}
	j.listeners = append(j.listeners, ln) // taken from once the name is known
	h := j.hello(0)
	h.Register = true
	conn, err := j.dial(ctx, "tcp", j.cfg.Rendezvous, h)
	if err != nil {
		return fmt.Errorf("meet the ranks at %s: %w", j.cfg.Rendezvous, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	own, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return fmt.Errorf("meet the ranks at %s: own address: %w", j.cfg.Rendezvous, err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	if _, err := peer.WriteJSON(conn, registration{Address: net.JoinHostPort(own, strconv.Itoa(port))}); err != nil {
		return fmt.Errorf("meet the ranks at %s: %w", j.cfg.Rendezvous, err)
	}
	var t table
	if _, err := peer.ReadJSON(conn, maxTableBytes, &t); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("rank 0 still waits for other ranks: %w", context.Cause(ctx))
		}
		return fmt.Errorf("meet the ranks at %s: %w", j.cfg.Rendezvous, err)
	}
	if len(t.Addresses) != j.cfg.Place.World() || t.World == "" {
		return fmt.Errorf("meet the ranks at %s: rank 0 knows %d ranks, want %d", j.cfg.Rendezvous, len(t.Addresses), j.cfg.Place.World())
	}
	t.Addresses[0] = j.cfg.Rendezvous
	j.mu.Lock()
	j.name, j.addresses = t.World, t.Addresses
	j.mu.Unlock()
	j.listeners = j.listeners[:len(j.listeners)-1]
	j.listen(ln)
	return nil
}

// listenHost is where to listen so that peers that know host reach this machine.
func listenHost(host string) string {
	if peer.Loopback(host) {
		return host
	}
	return ""
}

// host waits for all ranks and tells each where the others are.
func (j *joining) host(ctx context.Context) error {
	ln := j.cfg.Listener
	if ln == nil {
		host, port, _ := net.SplitHostPort(j.cfg.Rendezvous) // withDefaults has looked at it
		var err error
		if ln, err = net.Listen("tcp", net.JoinHostPort(listenHost(host), port)); err != nil {
			return fmt.Errorf("listen at the rendezvous %s: %w: free the port or choose another with --dist-init-addr", j.cfg.Rendezvous, err)
		}
	}
	j.mu.Lock()
	j.name, j.meeting = peer.Nonce(), &meeting{guests: map[int]guest{}}
	j.mu.Unlock()
	j.listen(ln)
	all := j.cfg.Place.World()
	for {
		j.mu.Lock()
		var missing []int
		t := table{World: j.name, Addresses: make([]string, all)}
		t.Addresses[0] = j.cfg.Rendezvous
		for rank := 1; rank < all; rank++ {
			g, ok := j.meeting.guests[rank]
			if !ok {
				missing = append(missing, rank)
			}
			t.Addresses[rank] = g.address
		}
		if len(missing) == 0 {
			guests := j.meeting.guests
			j.meeting, j.addresses = nil, t.Addresses
			j.mu.Unlock()
			return tellAll(guests, t)
		}
		j.mu.Unlock()
		select {
		case <-j.changed:
		case <-ctx.Done():
			j.dismiss()
			return j.absent(missing, context.Cause(ctx))
		}
	}
}

// dismiss sends the guests away: the meeting failed.
func (j *joining) dismiss() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, g := range j.meeting.guests {
		g.conn.Close()
	}
	j.meeting = nil
}

func tellAll(guests map[int]guest, t table) error {
	var errs []error
	for _, rank := range slices.Sorted(maps.Keys(guests)) {
		g := guests[rank]
		err := g.conn.SetWriteDeadline(time.Now().Add(handshakeTimeout))
		if err == nil {
			_, err = peer.WriteJSON(g.conn, t)
		}
		if err != nil {
			errs = append(errs, peerErrorf(rank, "left the rendezvous: %w", err))
		}
		g.conn.Close()
	}
	return errors.Join(errs...)
}

// register keeps a rank as a guest until the meeting is over, or until it goes away.
func (j *joining) register(rank int, conn net.Conn) {
	var r registration
	err := conn.SetDeadline(time.Now().Add(handshakeTimeout))
	if err == nil {
		_, err = peer.ReadJSON(conn, maxHelloBytes, &r)
	}
	if err == nil {
		_, _, err = net.SplitHostPort(r.Address)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	j.mu.Lock()
	if err != nil || j.meeting == nil {
		j.mu.Unlock()
		conn.Close()
		return
	}
	old, again := j.meeting.guests[rank]
	j.meeting.guests[rank] = guest{conn: conn, address: r.Address}
	j.mu.Unlock()
	if again {
		old.conn.Close() // it was restarted, or two nodes have the same rank: the newer counts
	}
	j.signal()

	// Nothing is due from a guest; a read that ends is one that left, or the end of the meeting.
	var one [1]byte
	_, _ = conn.Read(one[:])
	j.mu.Lock()
	if j.meeting != nil && j.meeting.guests[rank].conn == conn {
		delete(j.meeting.guests, rank)
	}
	j.mu.Unlock()
	conn.Close()
}
