package parallel

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRingAgainstBuffer moves random pieces through a small ring, whose positions begin shortly before they wrap, and
// through a buffer.
func TestRingAgainstBuffer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		r := newHeapRing(1 << (1 + random.IntN(8)))
		start := ^uint32(0) - uint32(random.IntN(1000))
		r.marks.written.Store(start)
		r.marks.read.Store(start)
		w := newWorld(Alone(), 1)
		in, out := &end{ring: r, place: start, world: w}, &end{ring: r, place: start, world: w}
		var twin bytes.Buffer
		for range 100 {
			if n := random.IntN(len(r.data) - twin.Len() + 1); random.IntN(2) == 0 {
				piece := make([]byte, n)
				for i := range piece {
					piece[i] = byte(random.Uint32())
				}
				cut := random.IntN(n + 1)
				if err := out.send(context.Background(), piece[:cut], piece[cut:]); err != nil {
					t.Fatal(err)
				}
				twin.Write(piece)
				continue
			}
			got := make([]byte, random.IntN(twin.Len()+1))
			if err := in.recv(context.Background(), got); err != nil {
				t.Fatal(err)
			}
			if want := twin.Next(len(got)); !bytes.Equal(got, want) {
				t.Fatalf("ring of %d gives % x, want % x", len(r.data), got, want)
			}
		}
	}
}

func TestPlaces(t *testing.T) {
	tests := []struct {
		rank, tp, pp int
		want         Place
		from, to     int // of 7 layers
	}{
		{0, 1, 1, Place{0, 0, 0, 1, 1}, 0, 7},
		{3, 4, 1, Place{3, 3, 0, 4, 1}, 0, 7},
		{1, 1, 2, Place{1, 0, 1, 1, 2}, 4, 7},
		{0, 2, 3, Place{0, 0, 0, 2, 3}, 0, 3},
		{3, 2, 3, Place{3, 1, 1, 2, 3}, 3, 5},
		{5, 2, 3, Place{5, 1, 2, 2, 3}, 5, 7},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.want), func(t *testing.T) {
			got, err := At(test.rank, test.tp, test.pp)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if from, to := got.Layers(7); from != test.from || to != test.to {
				t.Errorf("layers [%d, %d), want [%d, %d)", from, to, test.from, test.to)
			}
			if got.First() != (got.PPRank == 0) || got.Last() != (got.PPRank == test.pp-1) || got.Sampler() != (test.pp-1)*test.tp {
				t.Errorf("first %t, last %t, sampler %d", got.First(), got.Last(), got.Sampler())
			}
		})
	}
}
