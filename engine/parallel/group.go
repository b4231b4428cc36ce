package parallel

import (
	"context"
	"unsafe"
)

// Group is the ranks of one pipeline stage, which hold a slice of each of its layers. All of them call the same
// operations in the same order, each from one goroutine. An operation ends with the world; then its error is a
// *PeerError or ErrClosed, and what it was to fill is undefined. A nil Group is a rank alone.
type Group struct {
	world *World
	rank  int     // among the group
	size  int     // of the group
	lines []*line // by rank in the group, nil at the own

	exchanges []exchange
	scratch   []float32
	pieces    [][]float32
}

// Rank is the own rank in the group.
func (g *Group) Rank() int {
	if g == nil {
		return 0
	}
	return g.rank
}

// Size is the number of ranks in the group.
func (g *Group) Size() int {
	if g == nil {
		return 1
	}
	return g.size
}

// bytesOf views numbers as bytes in the host's order, which is little-endian.
func bytesOf(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// directFloats is up to how long a vector goes to every peer whole, which takes one exchange instead of two. With two
// ranks that is always the least to send.
const directFloats = 2048

// AllReduce replaces x by the sum of the group's x, all of the same length. Each element is ((x0 + x1) + x2) + … in
// float32, in the order of the ranks: every rank has the same bits, and the same as any other grouping of the calls.
func (g *Group) AllReduce(x []float32) error {
	if g.Size() == 1 || len(x) == 0 {
		return nil
	}
	return g.world.operation(context.Background(), "all-reduce", func(ctx context.Context) error {
		if len(x) <= directFloats || g.size == 2 {
			return g.reduceDirect(ctx, x)
		}
		return g.reduceScattered(ctx, x)
	})
}

// reduceDirect sends x to all and sums.
func (g *Group) reduceDirect(ctx context.Context, x []float32) error {
	pieces := g.room(func(int) int { return len(x) })
	pieces[g.rank] = x
	if err := g.swap(ctx, kindReduce, func(int) []float32 { return x }, pieces); err != nil {
		return err
	}
	sum(x, pieces)
	return nil
}

// reduceScattered has each rank sum one part of x and send the sum to all.
func (g *Group) reduceScattered(ctx context.Context, x []float32) error {
	part := func(rank int) []float32 { return x[len(x)*rank/g.size : len(x)*(rank+1)/g.size] }
	own := part(g.rank)
	pieces := g.room(func(int) int { return len(own) })
	pieces[g.rank] = own
	if err := g.swap(ctx, kindScatter, part, pieces); err != nil {
		return err
	}
	sum(own, pieces)
	for i := range pieces {
		pieces[i] = part(i)
	}
	return g.swap(ctx, kindReduce, func(int) []float32 { return own }, pieces)
}

// sum adds the pieces in their order into dst, which may be one of them.
func sum(dst []float32, pieces [][]float32) {
	// Blocks keep dst in the cache; an element's additions are in the order of the pieces whatever the block.
	var block [1024]float32
	for from := 0; from < len(dst); from += len(block) {
		to := min(len(dst), from+len(block))
		total := block[:to-from]
		copy(total, pieces[0][from:to])
		for _, piece := range pieces[1:] {
			for i, v := range piece[from:to] {
				total[i] += v
			}
		}
		copy(dst[from:to], total)
	}
}

// AllGather fills parts[r] with what rank r has in its parts[r]. The lengths may differ from rank to rank, but all know
// them.
func (g *Group) AllGather(parts [][]float32) error {
	if g.Size() == 1 {
		return nil
	}
	return g.world.operation(context.Background(), "all-gather", func(ctx context.Context) error {
		return g.swap(ctx, kindGather, func(int) []float32 { return parts[g.rank] }, parts)
	})
}

// Gather is AllGather for rank root alone; the others only send their own part, and their parts may hold nothing else.
func (g *Group) Gather(parts [][]float32, root int) error {
	if g.Size() == 1 {
		return nil
	}
	return g.world.operation(context.Background(), "gather", func(ctx context.Context) error {
		if g.rank != root {
			return g.lines[root].put(ctx, kindGather, bytesOf(parts[g.rank]))
		}
		for i, l := range g.lines {
			if l != nil {
				if err := l.takeInto(ctx, kindGather, bytesOf(parts[i])); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Broadcast fills x, which has the same length on all ranks, with root's.
func (g *Group) Broadcast(x []float32, root int) error {
	if g.Size() == 1 {
		return nil
	}
	return g.world.operation(context.Background(), "broadcast", func(ctx context.Context) error {
		if g.rank != root {
			return g.lines[root].takeInto(ctx, kindBroadcast, bytesOf(x))
		}
		for _, l := range g.lines {
			if l != nil {
				if err := l.put(ctx, kindBroadcast, bytesOf(x)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// room gives pieces of scratch memory, one for each peer; the own is nil.
func (g *Group) room(length func(rank int) int) [][]float32 {
	total := 0
	for i := range g.size {
		if i != g.rank {
			total += length(i)
		}
	}
	if len(g.scratch) < total {
		g.scratch = make([]float32, total)
	}
	g.pieces = append(g.pieces[:0], make([][]float32, g.size)...)
	rest := g.scratch
	for i := range g.size {
		if i != g.rank {
			g.pieces[i], rest = rest[:length(i)], rest[length(i):]
		}
	}
	return g.pieces
}

// swap sends out(r) to each peer r and fills in[r].
func (g *Group) swap(ctx context.Context, k kind, out func(rank int) []float32, in [][]float32) error {
	g.exchanges = g.exchanges[:0]
	for i := 1; i < g.size; i++ { // from the next rank on, so that not all begin with rank 0
		peer := (g.rank + i) % g.size
		g.exchanges = append(g.exchanges, exchange{line: g.lines[peer], out: bytesOf(out(peer)), in: bytesOf(in[peer])})
	}
	return swap(ctx, k, g.exchanges, data.chunk(), false, 0)
}
