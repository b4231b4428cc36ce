package parallel

import "context"

// line is a channel to one peer, both ways. One goroutine at a time uses it.
type line struct {
	peer     int
	out      sender
	in       *end
	sent     uint32 // messages so far, modulo 2^32
	received uint32
	scratch  [headerBytes]byte
}

// sender takes a and then b as the next bytes for the peer. It may keep neither.
type sender interface {
	send(ctx context.Context, a, b []byte) error
}

// open sends a header and the first piece of its payload of length bytes.
func (l *line) open(ctx context.Context, k kind, length int, piece []byte) error {
	header{kind: k, sequence: l.sent, length: length}.put(&l.scratch)
	l.sent++
	return l.out.send(ctx, l.scratch[:], piece)
}

// due receives a header of kind k. length is what the payload must have, or -1. It gives the payload's length.
func (l *line) due(ctx context.Context, k kind, length int) (int, error) {
	if err := l.in.recv(ctx, l.scratch[:]); err != nil {
		return 0, err
	}
	h, err := parseHeader(&l.scratch)
	if err == nil {
		err = h.due(k, l.received, length)
	}
	l.received++
	if err != nil {
		return 0, &PeerError{Rank: l.peer, Err: err}
	}
	return h.length, nil
}

// put sends a whole message.
func (l *line) put(ctx context.Context, k kind, payload []byte) error {
	return l.open(ctx, k, len(payload), payload)
}

// take receives a whole message of any length up to most.
func (l *line) take(ctx context.Context, k kind, most int) ([]byte, error) {
	n, err := l.due(ctx, k, -1)
	if err != nil {
		return nil, err
	}
	if n > most {
		return nil, peerErrorf(l.peer, "sent a %v of %d bytes: at most %d are allowed", k, n, most)
	}
	payload := make([]byte, n)
	return payload, l.in.recv(ctx, payload)
}

// takeInto receives a whole message of len(dst) bytes.
func (l *line) takeInto(ctx context.Context, k kind, dst []byte) error {
	if _, err := l.due(ctx, k, len(dst)); err != nil {
		return err
	}
	return l.in.recv(ctx, dst)
}

// exchange is a swap under way with one peer.
type exchange struct {
	line *line
	out  []byte
	in   []byte // given, or made when the length is known
}

// swap sends x.out and receives x.in to and from all peers at once. With grow the lengths of in are the peers' to
// choose, up to most; else they are given.
//
// It goes in rounds: a chunk to every peer, then a chunk from every peer. A rank in round k has received all chunks below
// k that there are, so of two ranks that both still send neither is more than a round ahead; a ring of four chunks never
// holds up the rank that is furthest behind, and so nobody waits for ever.
func swap(ctx context.Context, k kind, peers []exchange, chunk int, grow bool, most int) error {
	for from := 0; ; from += chunk {
		more := false
		for i := range peers {
			x := &peers[i]
			var err error
			if from == 0 {
				err = x.line.open(ctx, k, len(x.out), x.out[:min(chunk, len(x.out))])
			} else if from < len(x.out) {
				err = x.line.out.send(ctx, nil, x.out[from:min(from+chunk, len(x.out))])
			}
			if err != nil {
				return err
			}
			more = more || from+chunk < len(x.out)
		}
		for i := range peers {
			x := &peers[i]
			if from == 0 {
				want := len(x.in)
				if grow {
					want = -1
				}
				n, err := x.line.due(ctx, k, want)
				if err != nil {
					return err
				}
				if grow {
					if n > most {
						return peerErrorf(x.line.peer, "sent a %v of %d bytes: at most %d are allowed", k, n, most)
					}
					x.in = make([]byte, n)
				}
			}
			if from < len(x.in) {
				if err := x.line.in.recv(ctx, x.in[from:min(from+chunk, len(x.in))]); err != nil {
					return err
				}
			}
			more = more || from+chunk < len(x.in)
		}
		if !more {
			return nil
		}
	}
}
