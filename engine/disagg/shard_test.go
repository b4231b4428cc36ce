package disagg

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func worlds(s shape, most int) []world {
	var list []world
	for tp := 1; tp <= most; tp++ {
		for pp := 1; pp <= 4; pp++ {
			if w := (world{tp: tp, pp: pp}); w.check(s) == nil {
				list = append(list, w)
			}
		}
	}
	return list
}

func (w world) ranks() (list []coordinate) {
	for pp := range w.pp {
		for tp := range w.tp {
			list = append(list, coordinate{tp: tp, pp: pp})
		}
	}
	return list
}

// TestCuts checks the properties of shard.go cell by cell, for every pair of worlds of several models.
func TestCuts(t *testing.T) {
	for _, s := range []shape{{1, 1}, {4, 1}, {5, 2}, {7, 4}, {4, 6}, {4, 8}} {
		all := worlds(s, 8)
		for _, prefill := range all {
			for _, decode := range all {
				if err := checkCuts(s, prefill, decode); err != nil {
					t.Errorf("%+v, prefill %+v, decode %+v: %v", s, prefill, decode, err)
				}
			}
		}
	}
}

func checkCuts(s shape, prefill, decode world) error {
	type cell struct{ layer, head int }
	sent := map[coordinate][]share{} // as the prefill ranks see it, by decode rank
	for _, p := range prefill.ranks() {
		list := outgoing(s, prefill, decode, p)
		if len(list) == 0 {
			return fmt.Errorf("prefill rank %v has nobody", p)
		}
		held := prefill.holds(s, p)
		for _, o := range list {
			if !decode.has(o.peer) {
				return fmt.Errorf("prefill rank %v serves %v, which does not exist", p, o.peer)
			}
			if !o.cut.empty() && (o.cut.layers.meet(held.layers) != o.cut.layers || o.cut.heads.meet(held.heads) != o.cut.heads) {
				return fmt.Errorf("prefill rank %v sends %v, but holds %v", p, o.cut, held)
			}
			sent[o.peer] = append(sent[o.peer], share{peer: p, cut: o.cut})
		}
	}
	for _, d := range decode.ranks() {
		got := incoming(s, prefill, decode, d)
		if diff := cmp.Diff(sent[d], got, cmp.AllowUnexported(share{}, coordinate{}, cut{}, span{})); diff != "" {
			return fmt.Errorf("decode rank %v expects something else (-sent +expected):\n%s", d, diff)
		}
		times := map[cell]int{}
		for _, i := range got {
			for layer := i.cut.layers.from; layer < i.cut.layers.to; layer++ {
				for head := i.cut.heads.from; head < i.cut.heads.to; head++ {
					times[cell{layer, head}]++
				}
			}
		}
		wants := decode.holds(s, d)
		for layer := range s.layers {
			for head := range s.heads {
				want := 0
				if layer >= wants.layers.from && layer < wants.layers.to && head >= wants.heads.from && head < wants.heads.to {
					want = 1
				}
				if times[cell{layer, head}] != want {
					return fmt.Errorf("decode rank %v gets layer %d of head %d %d times, want %d", d, layer, head, times[cell{layer, head}], want)
				}
			}
		}
	}
	return nil
}

// TestHolds compares with a twin that deals layers and heads out one by one.
func TestHolds(t *testing.T) {
	for _, s := range []shape{{4, 1}, {5, 2}, {7, 4}, {4, 8}} {
		for _, w := range worlds(s, 8) {
			for _, c := range w.ranks() {
				var layers, heads []int
				for layer := range s.layers { // the first stages get one more
					stage, left := 0, layer
					for size := stageSize(s.layers, w.pp, 0); left >= size; size = stageSize(s.layers, w.pp, stage) {
						left -= size
						stage++
					}
					if stage == c.pp {
						layers = append(layers, layer)
					}
				}
				for head := range s.heads {
					if head*w.tp/s.heads == c.tp || w.tp > s.heads && c.tp*s.heads/w.tp == head {
						heads = append(heads, head)
					}
				}
				got := w.holds(s, c)
				want := cut{span{layers[0], layers[len(layers)-1] + 1}, span{heads[0], heads[len(heads)-1] + 1}}
				if got != want {
					t.Errorf("%+v over %+v: rank %v holds %v, want %v", s, w, c, got, want)
				}
			}
		}
	}
}

func stageSize(layers, stages, stage int) int {
	size := layers / stages
	if stage < layers%stages {
		size++
	}
	return size
}

func TestWorldCheck(t *testing.T) {
	for _, tc := range []struct {
		s  shape
		w  world
		ok bool
	}{
		{shape{4, 2}, world{1, 1}, true}, {shape{4, 2}, world{4, 2}, true}, {shape{4, 6}, world{3, 1}, true},
		{shape{4, 6}, world{4, 1}, false}, {shape{1, 2}, world{1, 2}, false}, {shape{4, 2}, world{0, 1}, false},
		{shape{4, 2}, world{-1, 1}, false}, {shape{4, 2}, world{1, 1 << 20}, false},
	} {
		if err := tc.w.check(tc.s); (err == nil) != tc.ok {
			t.Errorf("%+v over %+v: %v", tc.s, tc.w, err)
		}
	}
}
