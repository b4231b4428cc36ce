package disagg

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/parallel"
)

// How two worlds of ranks share a prompt's KV. Both hold the model's layers and KV heads in their own way:
//
//	                 heads 0 … H
//	            ┌──────────┬──────────┐
//	  layers    │ pp 0     │ pp 0     │     A rank holds a rectangle of layers × KV heads: a stage's layers, and
//	  0 … L     │ tp 0     │ tp 1     │     H/tp heads; or, with more ranks than heads, one head that tp/H ranks
//	            ├──────────┼──────────┤     hold alike.
//	            │ pp 1     │ pp 1     │
//	            │ tp 0     │ tp 1     │     A cut is what of a prefill rank's rectangle goes to a decode rank.
//	            └──────────┴──────────┘
//
// Properties, for every pair of worlds:
//
//  1. The cuts that a decode rank gets cover its rectangle, and no two of them overlap.
//  2. Each prefill rank has a cut for at least one decode rank, though it may be empty: it learns from that one that the
//     decode world is there, and when everything is over.
//  3. Both sides find the same cuts, each from the two sizes alone.

// span is a half-open range [from, to).
type span struct{ from, to int }

func (s span) len() int { return s.to - s.from }

func (s span) meet(o span) span {
	m := span{max(s.from, o.from), min(s.to, o.to)}
	if m.to < m.from {
		m.to = m.from
	}
	return m
}

// cut is a rectangle of the model's layers and KV heads; empty when either has no length.
type cut struct{ layers, heads span }

func (c cut) empty() bool { return c.layers.len() == 0 || c.heads.len() == 0 }

func (c cut) String() string {
	return fmt.Sprintf("layers %d to %d of KV heads %d to %d", c.layers.from, c.layers.to-1, c.heads.from, c.heads.to-1)
}

// shape is what of a model is shared out.
type shape struct{ layers, heads int }

// world is the size of a replica: tensor-parallel ranks by pipeline stages.
type world struct{ tp, pp int }

func worldOf(p parallel.Place) world { return world{tp: p.TPSize, pp: p.PPSize} }

// coordinate is a rank of a world.
type coordinate struct{ tp, pp int }

func coordinateOf(p parallel.Place) coordinate { return coordinate{tp: p.TPRank, pp: p.PPRank} }

func (c coordinate) String() string { return fmt.Sprintf("tp %d pp %d", c.tp, c.pp) }

// place gives the rank's place. The coordinate is in the world.
func (w world) place(c coordinate) parallel.Place {
	return parallel.Place{Rank: c.pp*w.tp + c.tp, TPRank: c.tp, PPRank: c.pp, TPSize: w.tp, PPSize: w.pp}
}

// has reports whether the coordinate is a rank of the world.
func (w world) has(c coordinate) bool { return c.tp >= 0 && c.tp < w.tp && c.pp >= 0 && c.pp < w.pp }

// check refuses a world that can't hold the shape.
func (w world) check(s shape) error {
	if _, err := parallel.At(0, w.tp, w.pp); err != nil {
		return err
	}
	if s.heads%w.tp != 0 && w.tp%s.heads != 0 {
		return fmt.Errorf("%d KV heads over %d tensor-parallel ranks: want a multiple or a divisor", s.heads, w.tp)
	}
	if s.layers < w.pp {
		return fmt.Errorf("%d layers over %d stages: want a layer for each", s.layers, w.pp)
	}
	return nil
}

// alike is how many ranks of a stage hold the same heads.
func (w world) alike(s shape) int { return max(1, w.tp/s.heads) }

// holds gives the rectangle of a rank.
func (w world) holds(s shape, c coordinate) cut {
	from, to := w.place(c).Layers(s.layers)
	r := cut{layers: span{from, to}}
	if w.tp > s.heads {
		head := c.tp / w.alike(s)
		r.heads = span{head, head + 1}
	} else {
		each := s.heads / w.tp
		r.heads = span{c.tp * each, (c.tp + 1) * each}
	}
	return r
}

// between gives what a prefill rank sends to a decode rank; it is empty when the two have nothing in common, and where
// another prefill rank with the same heads is this decode rank's source.
func between(s shape, prefill, decode world, p, d coordinate) cut {
	has, wants := prefill.holds(s, p), decode.holds(s, d)
	c := cut{layers: has.layers.meet(wants.layers), heads: has.heads.meet(wants.heads)}
	if n := prefill.alike(s); p.tp%n != d.tp%n {
		c.heads.to = c.heads.from
	}
	return c
}

// attends gives the decode rank that a prefill rank hears from when no decode rank wants anything of it.
func attends(prefill, decode world, p coordinate) coordinate {
	return coordinate{tp: p.tp % decode.tp, pp: p.pp % decode.pp}
}

// share is a peer and the cut that goes to or comes from it.
type share struct {
	peer coordinate
	cut  cut
}

// outgoing gives the decode ranks that a prefill rank serves, at least one, in order of stage and rank.
func outgoing(s shape, prefill, decode world, p coordinate) []share {
	var list []share
	for pp := range decode.pp {
		for tp := range decode.tp {
			d := coordinate{tp: tp, pp: pp}
			if c := between(s, prefill, decode, p, d); !c.empty() {
				list = append(list, share{peer: d, cut: c})
			}
		}
	}
	if list == nil {
		return []share{{peer: attends(prefill, decode, p)}}
	}
	return list
}

// incoming gives the prefill ranks that a decode rank gets its KV from, or that hear from it alone, in order of stage and
// rank.
func incoming(s shape, prefill, decode world, d coordinate) []share {
	var list []share
	for pp := range prefill.pp {
		for tp := range prefill.tp {
			p := coordinate{tp: tp, pp: pp}
			for _, o := range outgoing(s, prefill, decode, p) {
				if o.peer == d {
					list = append(list, share{peer: p, cut: o.cut})
				}
			}
		}
	}
	return list
}
