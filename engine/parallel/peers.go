package parallel

import "context"

// maxExchangeBytes bounds what a rank can make its peers allocate in an exchange.
const maxExchangeBytes = 64 << 20

// pieceBytes is the length of all messages of a share but the last, which is shorter. What clients send decides how long a
// share is, so it has no bound of its own; a peer allocates a piece before it came, and no more.
const pieceBytes = 1 << 20

// Cast carries bytes from one rank, its root, to all of a world. Share is called in the same order on all ranks, each
// from one goroutine.
type Cast struct {
	world *World
	root  int
	kind  kind
	lines []*line // by rank, nil at the own; away from the root only the root's is used
}

// Root reports whether this rank's bytes are those that are shared.
func (c *Cast) Root() bool { return c.world.place.Rank == c.root }

// Share gives the root's own to all ranks; what others pass is not looked at. On the root it returns own. A context that
// ends in between ends the world.
func (c *Cast) Share(ctx context.Context, own []byte) ([]byte, error) {
	var got []byte
	err := c.world.operation(ctx, "share", func(ctx context.Context) (err error) {
		if !c.Root() {
			got, err = c.lines[c.root].takePieces(ctx, c.kind)
			return err
		}
		got = own
		for _, l := range c.lines {
			if l != nil {
				if err := l.putPieces(ctx, c.kind, own); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return got, nil
}

// putPieces sends bytes of any number; see pieceBytes.
func (l *line) putPieces(ctx context.Context, k kind, all []byte) error {
	for len(all) >= pieceBytes {
		if err := l.put(ctx, k, all[:pieceBytes]); err != nil {
			return err
		}
		all = all[pieceBytes:]
	}
	return l.put(ctx, k, all)
}

// takePieces receives what putPieces sent.
func (l *line) takePieces(ctx context.Context, k kind) ([]byte, error) {
	var all []byte
	for {
		piece, err := l.take(ctx, k, pieceBytes)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = piece
		} else {
			all = append(all, piece...)
		}
		if len(piece) < pieceBytes {
			return all, nil
		}
	}
}

// Peers is how the schedulers of a world agree: rank 0 is the leader. Its operations are called in the same order on all
// ranks, each from one goroutine.
type Peers struct{ cast Cast }

// Leader reports whether this is the rank whose bytes Share gives to all.
func (p *Peers) Leader() bool { return p.cast.Root() }

// Share gives the leader's own to all ranks; followers block in it while the leader has nothing to say. A context that
// ends in between ends the world.
func (p *Peers) Share(ctx context.Context, own []byte) ([]byte, error) { return p.cast.Share(ctx, own) }

// Exchange gives every rank's own to all, by rank. A context that ends in between ends the world.
func (p *Peers) Exchange(ctx context.Context, own []byte) ([][]byte, error) {
	w := p.cast.world
	all := make([][]byte, w.place.World())
	err := w.operation(ctx, "exchange", func(ctx context.Context) error {
		exchanges := make([]exchange, 0, len(all))
		for i := 1; i < len(all); i++ {
			peer := (w.place.Rank + i) % len(all)
			exchanges = append(exchanges, exchange{line: p.cast.lines[peer], out: own})
		}
		if err := swap(ctx, kindExchange, exchanges, control.chunk(), true, maxExchangeBytes); err != nil {
			return err
		}
		for _, x := range exchanges {
			all[x.line.peer] = x.in
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all[w.place.Rank] = own
	return all, nil
}
