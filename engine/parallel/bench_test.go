package parallel

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
)

// BenchmarkAllReduce measures a sum over two and four ranks: a decode step's vector of a small model, and a chunk's.
func BenchmarkAllReduce(b *testing.B) {
	for _, backend := range backends() {
		for _, tp := range []int{2, 4} {
			if !backend.fits(tp, 1) {
				continue
			}
			for _, n := range []int{128, 4096, 1 << 18} {
				b.Run(fmt.Sprintf("%s/tp=%d/floats=%d", backend.name, tp, n), func(b *testing.B) {
					each(b, backend.make(b, tp, 1), int64(4*n), func(w *World) func() error {
						x := make([]float32, n)
						return func() error { return w.TP().AllReduce(x) }
					})
				})
			}
		}
	}
}

// BenchmarkAgree measures what a scheduler's step needs: the leader's input to all, a digest from all.
func BenchmarkAgree(b *testing.B) {
	for _, backend := range backends() {
		b.Run(backend.name, func(b *testing.B) {
			each(b, backend.make(b, 2, 2), 0, func(w *World) func() error {
				input, digest := make([]byte, 200), make([]byte, 40)
				return func() error {
					if _, err := w.Peers().Share(context.Background(), input); err != nil {
						return err
					}
					_, err := w.Peers().Exchange(context.Background(), digest)
					return err
				}
			})
		})
	}
}

// each runs the same number of operations on all ranks.
func each(b *testing.B, worlds []*World, bytes int64, prepare func(w *World) func() error) {
	defer closeWorlds(b, worlds)
	b.SetBytes(bytes)
	b.ReportAllocs()
	b.ResetTimer()
	var ranks errgroup.Group
	for _, w := range worlds {
		operation := prepare(w)
		ranks.Go(func() error {
			for range b.N {
				if err := operation(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := ranks.Wait(); err != nil {
		b.Fatal(err)
	}
}
