package rank

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

// BenchmarkMetrics compares the throughput of a rank with all its metrics, and with the device timer and the estimates too,
// with that of one without any: the same requests in turns, 16 at a time. on÷off is the median over the turns, so that a
// moment in which the machine does something else does not decide; off÷off is what two ranks without metrics make of it. The model is small: what metrics cost weighs most there.
func BenchmarkMetrics(b *testing.B) {
	dir := seededModel(b)
	type kind struct {
		name    string
		metrics MetricsConfig
	}
	kinds := []kind{
		{"off", MetricsConfig{}}, {"off again", MetricsConfig{}}, {"on", MetricsConfig{Enabled: true, Dir: b.TempDir()}},
		{"on with timer and estimates", MetricsConfig{Enabled: true, Dir: b.TempDir(), DeviceTimer: true, MFU: true}},
	}
	clients := make([]Client, len(kinds))
	for i, k := range kinds {
		cfg := testConfig(dir)
		cfg.MaxTotalTokens, cfg.Metrics = 8192, k.metrics
		clients[i] = startClient(b, startKinds[0], cfg)
	}
	const requests, tokens = 16, 64
	turns := 0
	run := func(c Client, turn int) time.Duration {
		began := time.Now()
		var streams []*Stream
		for i := range requests {
			streams = append(streams, submit(b, c, newRequest(fmt.Sprint("r", turn, "-", i), prompt(32), tokens)))
		}
		for _, s := range streams {
			answer(b, s)
		}
		return time.Since(began)
	}
	for i, c := range clients {
		run(c, -1-i)
	}
	order := rand.New(rand.NewPCG(1, 1))
	ratios := make([][]float64, len(kinds))
	took := make([]time.Duration, len(kinds))
	for b.Loop() {
		for _, at := range order.Perm(len(kinds)) {
			runtime.GC() // nobody pays for another's garbage
			took[at] = run(clients[at], turns)
		}
		for i := range kinds {
			ratios[i] = append(ratios[i], float64(took[0])/float64(took[i]))
		}
		turns++
	}
	median := func(v []float64) float64 {
		slices.Sort(v)
		return v[len(v)/2]
	}
	b.ReportMetric(median(ratios[1]), "off÷off")
	b.ReportMetric(median(ratios[2]), "on÷off")
	b.ReportMetric(median(ratios[3]), "timed÷off")
	b.ReportMetric(float64(requests*tokens)/took[0].Seconds(), "tokens/s")
}
