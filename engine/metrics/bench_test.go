package metrics

import (
	nethttp "net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

func BenchmarkCounter(b *testing.B) {
	b.Run("store", func(b *testing.B) {
		c := openStore(b, b.TempDir(), "bench").Counter(promptTokens, nil)
		b.ReportAllocs()
		defer processorTime(b)()
		for b.Loop() {
			c.Add(1)
		}
	})
	b.Run("client_golang", func(b *testing.B) {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "c"})
		b.ReportAllocs()
		defer processorTime(b)()
		for b.Loop() {
			c.Add(1.5) // a whole number takes its shorter path
		}
	})
}

func BenchmarkGauge(b *testing.B) {
	b.Run("store", func(b *testing.B) {
		g := openStore(b, b.TempDir(), "bench").Gauge(tokenUsage, nil)
		b.ReportAllocs()
		defer processorTime(b)()
		for b.Loop() {
			g.Set(1, 2)
		}
	})
	b.Run("client_golang", func(b *testing.B) {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "g"})
		b.ReportAllocs()
		defer processorTime(b)()
		for b.Loop() {
			g.Set(1)
		}
	})
}

func BenchmarkHistogram(b *testing.B) {
	b.Run("store", func(b *testing.B) {
		h := openStore(b, b.TempDir(), "bench").Histogram(queueTime, nil, nil)
		b.ReportAllocs()
		defer processorTime(b)()
		for i := 0; b.Loop(); i++ {
			h.Observe(float64(i & 1023))
		}
	})
	b.Run("client_golang", func(b *testing.B) {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", Buckets: bucketsQueueTime})
		b.ReportAllocs()
		defer processorTime(b)()
		for i := 0; b.Loop(); i++ {
			h.Observe(float64(i & 1023))
		}
	})
}

func BenchmarkReport(b *testing.B) {
	m := NewScheduler(openStore(b, b.TempDir(), "bench"), RankLabels{ModelName: "tiny", EngineType: "decode"}, ledger.System())
	s := snapshot(report.Decode)
	b.ReportAllocs()
	defer processorTime(b)()
	for b.Loop() {
		m.Report(s)
	}
}

func BenchmarkFinished(b *testing.B) {
	f := NewFront(openStore(b, b.TempDir(), "bench"), FrontLabels{ModelName: "tiny", EngineType: "unified"}, Buckets{}, ledger.System())
	b.ReportAllocs()
	defer processorTime(b)()
	for b.Loop() {
		f.Finished(Subject{Streaming: true}, Finished{PromptTokens: 100, CompletionTokens: 50, E2ENanos: 1e9, TPOTNanos: 1e7})
	}
}

// BenchmarkScrape merges the stores of an engine of 64 ranks.
func BenchmarkScrape(b *testing.B) {
	dir := b.TempDir()
	clock := ledger.System()
	for rank := range 64 {
		m := NewScheduler(openStore(b, dir, "rank-"+strconv.Itoa(rank)), RankLabels{ModelName: "tiny", EngineType: "decode", TPRank: rank}, clock)
		f := NewFront(openStore(b, b.TempDir(), "api"), FrontLabels{}, Buckets{}, clock)
		fill(m, f, ledger.Decode)
	}
	g := newGatherer(b, dir)
	b.Run("merge", func(b *testing.B) {
		b.ReportAllocs()
		defer processorTime(b)()
		for b.Loop() {
			if _, err := g.Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, c := range []struct {
		name, accept, encoding string
		handler                nethttp.Handler
	}{
		{"text", "text/plain", "", Handler(g)},
		{"text,gzip", "text/plain", "gzip", Handler(g)},
		{"openmetrics", "application/openmetrics-text", "", Handler(g)},
		{"openmetrics,gzip", "application/openmetrics-text", "gzip", Handler(g)},
		{"client_golang,text", "text/plain", "", promhttp.HandlerFor(g, promhttp.HandlerOpts{})},
		{"client_golang,text,gzip", "text/plain", "gzip", promhttp.HandlerFor(g, promhttp.HandlerOpts{})},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			defer processorTime(b)()
			for b.Loop() {
				w := &discarded{header: nethttp.Header{}}
				r := httptest.NewRequest(nethttp.MethodGet, "/metrics", nil)
				r.Header.Set("Accept", c.accept)
				r.Header.Set("Accept-Encoding", c.encoding)
				c.handler.ServeHTTP(w, r)
				b.ReportMetric(float64(w.bytes), "body-bytes")
			}
		})
	}
}

// discarded counts the bytes of an answer.
type discarded struct {
	header nethttp.Header
	bytes  int
}

func (d *discarded) Header() nethttp.Header { return d.header }
func (d *discarded) WriteHeader(int)        {}
func (d *discarded) Write(p []byte) (int, error) {
	d.bytes += len(p)
	return len(p), nil
}

// processorTime reports what an operation takes of a processor: a busy machine makes it take longer, not do more.
func processorTime(b *testing.B) (report func()) {
	used := func() int64 {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return r.Utime.Nano() + r.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkHTTP is what an HTTP request costs besides its answer.
func BenchmarkHTTP(b *testing.B) {
	f := NewFront(openStore(b, b.TempDir(), "bench"), FrontLabels{ModelName: "m", EngineType: "unified", Extra: map[string]string{"cluster": "a", "zone": "b"}}, Buckets{}, ledger.System())
	b.ReportAllocs()
	defer processorTime(b)()
	for b.Loop() {
		f.RequestStarted("/v1/chat/completions", nethttp.MethodPost)
		f.ResponseStarted("/v1/chat/completions", nethttp.MethodPost, nethttp.StatusOK)
		f.RequestEnded("/v1/chat/completions", nethttp.MethodPost)
	}
}
