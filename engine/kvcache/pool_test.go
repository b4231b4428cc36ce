package kvcache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNew(t *testing.T) {
	tests := []struct {
		name, reason       string
		capacity, pageSize int
		want               Stats
		err                string
	}{
		{name: "exact", reason: "all pages start free", capacity: 64, pageSize: 16, want: Stats{Capacity: 64, Available: 64}},
		{name: "rounded", reason: "a part of a page is no page", capacity: 79, pageSize: 16, want: Stats{Capacity: 64, Available: 64}},
		{name: "too small", reason: "no page fits", capacity: 15, pageSize: 16, err: "kvcache: capacity of 15 tokens holds no page of 16 tokens: raise it or lower the page size"},
		{name: "no page size", reason: "a page holds a token", capacity: 15, err: "kvcache: page size is 0 tokens: give at least 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := New(tt.capacity, tt.pageSize)
			if err != nil {
				if err.Error() != tt.err {
					t.Errorf("%s: error is %q, want %q", tt.reason, err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, p.Stats()); diff != "" || tt.err != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestMisuse(t *testing.T) {
	tests := []struct {
		name, reason string
		do           func(*Pool)
		want         string
	}{
		{name: "double free", reason: "the page may be another's by now", do: func(p *Pool) { p.Free([]int32{0}); p.Free([]int32{0}) },
			want: "kvcache: page 0 moves from used to free, but it is free"},
		{name: "free held", reason: "a transfer may still write it", do: func(p *Pool) { p.Hold([]int32{1}); p.Free([]int32{1}) },
			want: "kvcache: page 1 moves from used to free, but it is reserved"},
		{name: "release used", reason: "its sequence lives", do: func(p *Pool) { p.Release([]int32{1}) },
			want: "kvcache: page 1 moves from reserved to free, but it is used"},
		{name: "outside", reason: "no such page", do: func(p *Pool) { p.Free([]int32{4}) },
			want: "kvcache: page 4 moves from used to free, but the pool has pages 0 to 3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := New(64, 16)
			if err != nil {
				t.Fatal(err)
			}
			p.Alloc(nil, 2)
			defer func() {
				if diff := cmp.Diff(any(tt.want), recover()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
				}
			}()
			tt.do(p)
		})
	}
}

// twin is the pool as one would first write it: a map and full scans.
type twin struct {
	pageSize, pages int
	state           map[int32]string
}

func (w *twin) take(n int) []int32 {
	var got []int32
	for page := range int32(w.pages) {
		if len(got) < n && w.state[page] == "" {
			got = append(got, page)
		}
	}
	if len(got) < n {
		return nil
	}
	w.set(got, "used")
	return got
}

func (w *twin) set(pages []int32, state string) {
	for _, page := range pages {
		w.state[page] = state
	}
}

func (w *twin) stats() Stats {
	s := Stats{Capacity: w.pages * w.pageSize}
	for page := range int32(w.pages) {
		switch w.state[page] {
		case "":
			s.Available += w.pageSize
		case "used":
			s.Used += w.pageSize
		case "held":
			s.Reserved += w.pageSize
		}
	}
	return s
}

func TestPoolAgainstTwin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for round := range 50 {
		t.Run(fmt.Sprintf("seed %d", seed+uint64(round)), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed+uint64(round), 0))
			pageSize, pages := 1+rng.IntN(64), 1+rng.IntN(300)
			p, err := New(pages*pageSize+rng.IntN(pageSize), pageSize)
			if err != nil {
				t.Fatal(err)
			}
			w := &twin{pageSize: pageSize, pages: pages, state: map[int32]string{}}
			var live, held [][]int32
			pick := func(from *[][]int32) []int32 {
				i := rng.IntN(len(*from))
				table := (*from)[i]
				*from = slices.Delete(*from, i, i+1)
				return table
			}
			for step := range 400 {
				switch op := rng.IntN(5); {
				case op <= 1:
					n := rng.IntN(pages/3 + 2)
					got, ok := p.Alloc(nil, n)
					want := w.take(n)
					if ok != (n == 0 || want != nil) || cmp.Diff(want, got) != "" {
						t.Fatalf("step %d: Alloc(%d) = %v, %t, the twin gives %v", step, n, got, ok, want)
					}
					if ok {
						live = append(live, got)
					}
				case op == 2 && len(live) > 0:
					table := pick(&live)
					p.Free(table)
					w.set(table, "")
				case op == 3 && len(live) > 0:
					table := pick(&live)
					p.Hold(table)
					w.set(table, "held")
					held = append(held, table)
				case op == 4 && len(held) > 0:
					table := pick(&held)
					p.Release(table)
					w.set(table, "")
				}
				if diff := cmp.Diff(w.stats(), p.Stats()); diff != "" {
					t.Fatalf("step %d (-twin +pool):\n%s", step, diff)
				}
				if err := p.Check(live...); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
			}
		})
	}
}

func TestCheckFindsFaults(t *testing.T) {
	tests := []struct {
		name, reason string
		owned        [][]int32
		want         string
	}{
		{name: "shared", reason: "two sequences write one page", owned: [][]int32{{0, 1}, {1}}, want: "kvcache: page 1 is in tables 0 and 1"},
		{name: "leaked", reason: "nobody will free the page", owned: [][]int32{{0}}, want: "kvcache: 2 pages are used, but sequences own 1"},
		{name: "stolen", reason: "Alloc will give it away", owned: [][]int32{{0, 1, 2}}, want: "kvcache: page 2 is in table 0, but it is free"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, _ := New(64, 16)
			p.Alloc(nil, 2)
			err := p.Check(tt.owned...)
			if err == nil || err.Error() != tt.want {
				t.Errorf("%s: Check gives %v, want %q", tt.reason, err, tt.want)
			}
		})
	}
}

func BenchmarkAllocFree(b *testing.B) {
	p, err := New(1<<20, 16)
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]int32, 0, 64)
	for b.Loop() {
		buf, _ = p.Alloc(buf[:0], 64)
		p.Free(buf)
	}
}
