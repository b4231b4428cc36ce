package metrics

import (
	"bytes"
	"compress/gzip"
	"fmt"
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
		text := make([]byte, 0, n)
		for len(text) < n {
			text = fmt.Appendf(text, "sglang:family_%d{model_name=\"tiny\",le=\"%d\"} %v\n", rng.IntN(50), rng.IntN(30), rng.Float64())
		}
		text = text[:n]
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
		if n > 1000 && len(compressed) > n/2 {
			t.Errorf("%d bytes became %d", n, len(compressed))
		}
	}
}
