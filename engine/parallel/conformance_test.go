package parallel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
)

// TestConformance runs every operation over every backend.
func TestConformance(t *testing.T) {
	tests := []struct {
		name   string
		tp, pp int
		run    func(t *testing.T, random *rand.Rand, worlds []*World)
	}{
		{"places", 2, 2, places},
		{"sums are in the order of the ranks", 2, 1, sums},
		{"sums of four", 4, 1, sums},
		{"sums beside another stage", 3, 2, sums},
		{"gathers", 3, 1, gathers},
		{"activations", 2, 3, activations},
		{"shares and exchanges", 2, 2, agreements},
		{"casts", 2, 2, casts},
		{"channels at once", 2, 2, together},
		{"a rank leaves", 2, 2, leaves},
		{"a rank dies", 2, 2, dies},
		{"a rank dies while another sends to it", 2, 1, diesUnderLoad},
		{"a rank gives up", 2, 2, aborts},
		{"ranks out of step", 2, 1, outOfStep},
		{"lengths that differ", 2, 1, otherLengths},
		{"a context ends", 2, 1, cancelled},
		{"a closed world", 2, 1, closedWorld},
	}
	for _, b := range backends() {
		for _, test := range tests {
			if !b.fits(test.tp, test.pp) {
				continue
			}
			t.Run(b.name+"/"+test.name, func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				worlds := b.make(t, test.tp, test.pp)
				defer closeWorlds(t, worlds)
				test.run(t, rand.New(rand.NewPCG(seed, 0)), worlds)
			})
		}
	}
}

func places(t *testing.T, _ *rand.Rand, worlds []*World) {
	for rank, w := range worlds {
		want, err := At(rank, 2, 2)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, w.Place()); diff != "" {
			t.Errorf("rank %d (-want +got):\n%s", rank, diff)
		}
		if w.TP().Rank() != want.TPRank || w.TP().Size() != 2 || w.Peers().Leader() != (rank == 0) || w.Cast().Root() != (rank == 2) {
			t.Errorf("rank %d: group rank %d of %d, leader %t, root %t", rank, w.TP().Rank(), w.TP().Size(), w.Peers().Leader(), w.Cast().Root())
		}
	}
}

// lengths are of vectors: none, odd ones, around the change of the algorithm, around a chunk and beyond a ring.
var lengths = []int{0, 1, 2, 7, directFloats - 1, directFloats, directFloats + 1, chunkBytes / 4, chunkBytes/4 + 1, chunkBytes*2 + 3}

func vector(random *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(random.NormFloat64() * math.Pow(10, float64(random.IntN(5))))
	}
	return v
}

func sums(t *testing.T, random *rand.Rand, worlds []*World) {
	for range 3 {
		for _, n := range lengths {
			xs, want := make([][]float32, len(worlds)), map[int][]float32{}
			for i, w := range worlds {
				xs[i] = vector(random, n)
				total, ok := want[w.place.PPRank]
				if !ok {
					want[w.place.PPRank] = slices.Clone(xs[i])
					continue
				}
				for j, v := range xs[i] {
					total[j] += v
				}
			}
			mustAll(t, worlds, func(w *World) error { return w.TP().AllReduce(xs[w.place.Rank]) })
			for i, w := range worlds {
				if !bytes.Equal(bytesOf(want[w.place.PPRank]), bytesOf(xs[i])) {
					t.Fatalf("%d elements: rank %d has other bits than the sum in order of the ranks", n, i)
				}
			}
		}
	}
}

func gathers(t *testing.T, random *rand.Rand, worlds []*World) {
	for range 10 {
		want := make([][]float32, len(worlds))
		for i := range want {
			want[i] = vector(random, lengths[random.IntN(len(lengths))])
		}
		root := random.IntN(len(worlds))
		parts := func(own int, all bool) [][]float32 {
			p := make([][]float32, len(want))
			for i := range p {
				if all {
					p[i] = make([]float32, len(want[i]))
				}
			}
			p[own] = slices.Clone(want[own])
			return p
		}
		mustAll(t, worlds, func(w *World) error {
			own := w.place.TPRank
			all := parts(own, true)
			if err := w.TP().AllGather(all); err != nil {
				return err
			}
			if !slices.EqualFunc(want, all, slices.Equal) {
				return fmt.Errorf("all-gather on rank %d gives something else", own)
			}
			some := parts(own, own == root)
			if err := w.TP().Gather(some, root); err != nil {
				return err
			}
			if own == root && !slices.EqualFunc(want, some, slices.Equal) {
				return errors.New("gather gives something else")
			}
			x := make([]float32, len(want[root]))
			if own == root {
				x = slices.Clone(want[root])
			}
			if err := w.TP().Broadcast(x, root); err != nil {
				return err
			}
			if !slices.Equal(want[root], x) {
				return errors.New("broadcast gives something else")
			}
			return nil
		})
	}
}

func activations(t *testing.T, random *rand.Rand, worlds []*World) {
	const steps = 20
	inputs := make([][]float32, steps) // of the first stage; each stage adds its number
	for i := range inputs {
		inputs[i] = make([]float32, 1+random.IntN(2*chunkBytes))
		for j := range inputs[i] {
			inputs[i][j] = float32(random.IntN(1000))
		}
	}
	mustAll(t, worlds, func(w *World) error {
		for step, input := range inputs {
			x := slices.Clone(input)
			if !w.place.First() {
				clear(x)
				if err := w.Pipe().Recv(x); err != nil {
					return err
				}
			}
			for i, v := range x {
				if want := input[i] + float32(w.place.PPRank); v != want {
					return fmt.Errorf("rank %d, step %d: element %d is %g, want %g", w.place.Rank, step, i, v, want)
				}
				x[i]++
			}
			if w.place.Last() {
				continue
			}
			if err := w.Pipe().Send(x); err != nil {
				return err
			}
			clear(x) // it was taken
		}
		return nil
	})
	if err := worlds[0].Pipe().Recv(make([]float32, 1)); err == nil {
		t.Error("receive in the first stage: want an error")
	}
	if err := worlds[len(worlds)-1].Pipe().Send(make([]float32, 1)); err == nil {
		t.Error("send in the last stage: want an error")
	}
}

// text gives random bytes that name their sender.
func text(random *rand.Rand, rank int) []byte {
	n := []int{0, 1, 100, control.chunk() - headerBytes, control.chunk(), control.ringBytes() + 1, 5 * control.ringBytes()}[random.IntN(7)]
	b := bytes.Repeat([]byte{byte(rank)}, n)
	for i := 0; i < n; i += 50 {
		b[i] = byte(random.Uint32())
	}
	return b
}

func agreements(t *testing.T, random *rand.Rand, worlds []*World) {
	const rounds = 30
	shared, own := make([][]byte, rounds), make([][][]byte, rounds)
	for i := range rounds {
		shared[i] = text(random, 0)
		for rank := range worlds {
			own[i] = append(own[i], text(random, rank))
		}
	}
	ctx := context.Background()
	mustAll(t, worlds, func(w *World) error {
		for i := range rounds {
			var say []byte
			if w.Peers().Leader() {
				say = shared[i]
			}
			got, err := w.Peers().Share(ctx, say)
			if err != nil {
				return err
			}
			if !bytes.Equal(got, shared[i]) {
				return fmt.Errorf("rank %d, round %d: shared bytes differ", w.place.Rank, i)
			}
			all, err := w.Peers().Exchange(ctx, own[i][w.place.Rank])
			if err != nil {
				return err
			}
			if !slices.EqualFunc(all, own[i], bytes.Equal) {
				return fmt.Errorf("rank %d, round %d: exchanged bytes differ", w.place.Rank, i)
			}
		}
		return nil
	})
}

func casts(t *testing.T, random *rand.Rand, worlds []*World) {
	said := make([][]byte, 50)
	for i := range said {
		said[i] = text(random, i)
	}
	for _, n := range []int{pieceBytes - 1, pieceBytes, pieceBytes + 1, 3 * pieceBytes, 70 * pieceBytes} {
		said = append(said, bytes.Repeat([]byte{byte(random.Uint32()), 1, 2, 3, 5}, n/5+1)[:n])
	}
	mustAll(t, worlds, func(w *World) error {
		for i, want := range said {
			var say []byte
			if w.Cast().Root() {
				say = want
			}
			if got, err := w.Cast().Share(context.Background(), say); err != nil || !bytes.Equal(got, want) {
				return fmt.Errorf("rank %d, round %d: %d bytes, %w", w.place.Rank, i, len(got), err)
			}
		}
		return nil
	})
}

// together uses the three channels from three goroutines of each rank.
func together(t *testing.T, _ *rand.Rand, worlds []*World) {
	mustAll(t, worlds, func(w *World) error {
		var users errgroup.Group
		users.Go(func() error {
			x := make([]float32, 3000)
			for range 50 {
				if !w.place.First() {
					if err := w.Pipe().Recv(x); err != nil {
						return err
					}
				}
				for range 4 {
					if err := w.TP().AllReduce(x); err != nil {
						return err
					}
				}
				if !w.place.Last() {
					if err := w.Pipe().Send(x); err != nil {
						return err
					}
				}
			}
			return nil
		})
		users.Go(func() error {
			for range 200 {
				if _, err := w.Cast().Share(context.Background(), []byte("tokens")); err != nil {
					return err
				}
			}
			return nil
		})
		users.Go(func() error {
			for range 200 {
				if _, err := w.Peers().Exchange(context.Background(), []byte("digest")); err != nil {
					return err
				}
			}
			return nil
		})
		return users.Wait()
	})
}

// wantEnd checks that every rank but those in except ended because of one, as want says.
func wantEnd(t *testing.T, worlds []*World, errs []error, want *PeerError, except ...int) {
	t.Helper()
	for i, w := range worlds {
		if slices.Contains(except, i) {
			continue
		}
		var got *PeerError
		if !errors.As(errs[i], &got) || got.Rank != want.Rank || got.Error() != want.Error() {
			t.Errorf("rank %d: error %v, want %v", i, errs[i], want)
		}
		select {
		case <-w.Done():
		default:
			t.Errorf("rank %d: the world goes on", i)
		}
		if !errors.As(w.Err(), &got) || got.Error() != want.Error() {
			t.Errorf("rank %d: the world ended with %v, want %v", i, w.Err(), want)
		}
	}
}

// leaves has rank 0 say a last word and leave: the others must hear the word, and then know that it left.
func leaves(t *testing.T, _ *rand.Rand, worlds []*World) {
	word := bytes.Repeat([]byte("good-bye "), 1000)
	errs := onAll(t, worlds, func(w *World) error {
		got, err := w.Peers().Share(context.Background(), word)
		if err != nil || !bytes.Equal(got, word) {
			return fmt.Errorf("the last word: %d bytes, %w", len(got), err)
		}
		if w.place.Rank == 0 {
			return w.Close()
		}
		_, err = w.Peers().Share(context.Background(), nil)
		if !errors.Is(err, ErrLeft) {
			return fmt.Errorf("error %w, want ErrLeft", err)
		}
		return err
	})
	wantEnd(t, worlds, errs, &PeerError{Rank: 0, Err: ErrLeft}, 0)
}

func dies(t *testing.T, _ *rand.Rand, worlds []*World) {
	const victim = 3
	errs := onAll(t, worlds, func(w *World) error {
		if w.place.Rank == victim {
			kill(w)
			return nil
		}
		_, err := w.Peers().Exchange(context.Background(), []byte("hello?"))
		return err
	})
	wantEnd(t, worlds, errs, peerErrorf(victim, "is gone: its connection closed"), victim)
	for i, w := range worlds {
		if i == victim {
			continue
		}
		if err := w.TP().AllReduce(make([]float32, 8)); i == 2 && err == nil {
			t.Errorf("rank %d: an all-reduce with the dead succeeds", i)
		}
	}
}

// diesUnderLoad kills a rank whose peer waits for room.
func diesUnderLoad(t *testing.T, _ *rand.Rand, worlds []*World) {
	errs := onAll(t, worlds, func(w *World) error {
		if w.place.Rank == 0 {
			x := make([]float32, 1000)
			for {
				if err := w.TP().Broadcast(x, 0); err != nil {
					return err
				}
			}
		}
		x := make([]float32, 1000)
		for range 20 {
			if err := w.TP().Broadcast(x, 0); err != nil {
				return err
			}
		}
		kill(w)
		return nil
	})
	wantEnd(t, worlds, errs, peerErrorf(1, "is gone: its connection closed"), 1)
}

func aborts(t *testing.T, _ *rand.Rand, worlds []*World) {
	const culprit = 1
	errs := onAll(t, worlds, func(w *World) error {
		if w.place.Rank == culprit {
			w.Abort(errors.New("the device is on fire"))
			return w.Err()
		}
		_, err := w.Peers().Exchange(context.Background(), nil)
		return err
	})
	wantEnd(t, worlds, errs, peerErrorf(culprit, "failed: the device is on fire"))
}

func outOfStep(t *testing.T, _ *rand.Rand, worlds []*World) {
	errs := onAll(t, worlds, func(w *World) error {
		if w.place.Rank == 0 {
			return w.TP().AllReduce(make([]float32, 3))
		}
		return w.TP().AllGather([][]float32{make([]float32, 3), make([]float32, 3)})
	})
	messages := 0
	for i, err := range errs {
		var named *PeerError
		if !errors.As(err, &named) {
			t.Errorf("rank %d: error %v, want a *PeerError", i, err)
			continue
		}
		for _, want := range []string{
			"sent gather 0 of 12 bytes where all-reduce 0 of 12 bytes is due: the ranks are out of step",
			"sent all-reduce 0 of 12 bytes where gather 0 of 12 bytes is due: the ranks are out of step",
		} {
			if named.Err.Error() == want {
				messages++
			}
		}
	}
	if messages != 2 {
		t.Errorf("errors %v: want both to say what was sent and what was due", errs)
	}
}

func otherLengths(t *testing.T, _ *rand.Rand, worlds []*World) {
	errs := onAll(t, worlds, func(w *World) error { return w.TP().AllReduce(make([]float32, 3+w.place.Rank)) })
	for i, err := range errs {
		var named *PeerError
		if !errors.As(err, &named) {
			t.Errorf("rank %d: error %v, want a *PeerError", i, err)
		}
	}
}

func cancelled(t *testing.T, _ *rand.Rand, worlds []*World) {
	ctx, cancel := context.WithCancel(context.Background())
	errs := onAll(t, worlds, func(w *World) error {
		if w.place.Rank == 0 {
			cancel()
			<-w.Done()
			return w.Err()
		}
		_, err := w.Peers().Share(ctx, nil)
		return err
	})
	if !errors.Is(errs[1], context.Canceled) {
		t.Errorf("the cancelled rank: error %v", errs[1])
	}
	if want := "rank 1 failed: context canceled"; errs[0] == nil || errs[0].Error() != want {
		t.Errorf("its peer: error %v, want %s", errs[0], want)
	}
}

func closedWorld(t *testing.T, _ *rand.Rand, worlds []*World) {
	for range 2 {
		if err := worlds[0].Close(); err != nil {
			t.Error(err)
		}
	}
	if err := worlds[0].TP().AllReduce(make([]float32, 3)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: error %v, want ErrClosed", err)
	}
	if !errors.Is(worlds[0].Err(), ErrClosed) {
		t.Errorf("the world ended with %v, want ErrClosed", worlds[0].Err())
	}
}

func TestAWorldOfOne(t *testing.T) {
	w, err := Join(context.Background(), Config{Place: Alone()})
	if err != nil {
		t.Fatal(err)
	}
	defer closeWorlds(t, []*World{w})
	x := []float32{1, 2}
	if err := errors.Join(w.TP().AllReduce(x), w.TP().AllGather([][]float32{x}), w.TP().Gather([][]float32{x}, 0), w.TP().Broadcast(x, 0)); err != nil {
		t.Error(err)
	}
	if got, err := w.Peers().Share(context.Background(), []byte("a")); err != nil || string(got) != "a" {
		t.Errorf("share: %q, %v", got, err)
	}
	if got, err := w.Peers().Exchange(context.Background(), []byte("a")); err != nil || len(got) != 1 || string(got[0]) != "a" {
		t.Errorf("exchange: %q, %v", got, err)
	}
	if got, err := w.Cast().Share(context.Background(), []byte("a")); err != nil || string(got) != "a" {
		t.Errorf("cast: %q, %v", got, err)
	}
}
