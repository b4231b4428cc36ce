package metrics

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"testing"
)

// One member, whatever the length, that reads as the text.
func TestGzip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	g := &gzipper{}
	for _, n := range []int{0, 1, gzipPartBytes - 1, gzipPartBytes, 3*gzipPartBytes + 7, 10 * gzipPartBytes, 5, 0} {
		text := make([]byte, n)
		for i := range text {
			text[i] = "sglang:0123456789 _{}\n"[rng.IntN(22)]
		}
		compressed := g.compress(text)
		r, err := gzip.NewReader(bytes.NewReader(compressed))
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		r.Multistream(false)
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%d bytes: read %d, %v", n, len(got), err)
		}
		if n > 1000 && len(compressed) > n {
			t.Errorf("%d bytes became %d", n, len(compressed))
		}
	}
}
