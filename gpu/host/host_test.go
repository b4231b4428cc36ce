package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, k := range available() {
		for _, threads := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s,threads=%d", k.name, threads), func(t *testing.T) {
				conformance.Run(t, func(*testing.T) gpu.Device { return start(k, threads) })
			})
		}
	}
}

func TestTimer(t *testing.T) {
	open := func(t *testing.T) gpu.Device {
		d, err := New(Config{Threads: 2, Timer: true})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	conformance.Run(t, open)
	d := open(t)
	defer d.Close()
	buf, err := d.Alloc(gpu.F32, 4096)
	if err != nil {
		t.Fatal(err)
	}
	x := gpu.View(buf, 64, 64)
	for range 100 { // a clock has ticks
		d.Ops().Softmax(x, x)
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if d.BusyNanos() == 0 {
		t.Error("the timer knows of nothing")
	}
}

func TestNew(t *testing.T) {
	tests := []struct {
		name        string
		cfg         Config
		wantKernels string
		wantThreads int
	}{
		{"default", Config{}, fastest().name, runtime.GOMAXPROCS(0)},
		{"portable", Config{Portable: true, Threads: 3}, "go", 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d, err := New(test.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			got := d.Info()
			if got.MemoryFreeBytes > got.MemoryBytes || got.MemoryFreeBytes < 0 {
				t.Errorf("%d bytes free of %d", got.MemoryFreeBytes, got.MemoryBytes)
			}
			got.MemoryBytes, got.MemoryFreeBytes = 0, 0
			want := gpu.Info{Name: "cpu", Kernels: test.wantKernels, Threads: test.wantThreads}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("info (-want +got):\n%s", diff)
			}
		})
	}
	for _, threads := range []int{-1, maxThreads + 1} {
		if _, err := New(Config{Threads: threads}); err == nil {
			t.Errorf("threads %d: want an error", threads)
		}
	}
}

func TestPoolCoversEveryIndexOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		p := newPool(threads)
		for _, n := range []int{0, 1, 2, 7, 100} {
			for _, grain := range []int{1, 3, 1000} {
				counts := make([]int32, n)
				p.run(n, grain, func(from, to int) {
					for i := from; i < to; i++ {
						counts[i]++ // pieces don't overlap, or the race detector says so
					}
				})
				for i, c := range counts {
					if c != 1 {
						t.Fatalf("threads %d, n %d, grain %d: index %d ran %d times", threads, n, grain, i, c)
					}
				}
			}
		}
		p.close()
	}
}

func TestPoolPassesPanicsOn(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		p := newPool(threads)
		func() {
			defer func() {
				if value := recover(); value != "piece 50" {
					t.Errorf("threads %d: recovered %v, want the body's panic", threads, value)
				}
			}()
			p.run(100, 1, func(from, to int) {
				if from <= 50 && 50 < to {
					panic("piece 50")
				}
			})
		}()
		ran := 0
		p.run(1, 1, func(int, int) { ran++ })
		if ran != 1 {
			t.Errorf("threads %d: the pool doesn't work after a panic", threads)
		}
		p.close()
	}
}

func TestExp(t *testing.T) {
	for x := float32(-86.9); x < 87.9; x += 0.0137 {
		want := math.Exp(float64(x))
		if got := float64(exp(x)); math.Abs(got-want) > 3e-7*want {
			t.Fatalf("exp(%g) is %g, want %g", x, got, want)
		}
	}
	if got := exp(float32(math.NaN())); got == got {
		t.Errorf("exp(NaN) is %g", got)
	}
	if exp(0) != 1 || exp(float32(math.Inf(-1))) != exp(expLowest) || exp(1000) != exp(expHighest) {
		t.Error("exp is wrong at 0 or at its ends")
	}
}

// BenchmarkMatMul is a linear layer of 1024 by 1024.
func BenchmarkMatMul(b *testing.B) {
	const width = 1024
	for _, k := range available() {
		for _, rows := range []int{1, 16, 512} {
			b.Run(fmt.Sprintf("%s/rows=%d", k.name, rows), func(b *testing.B) {
				d := start(k, runtime.GOMAXPROCS(0))
				defer d.Close()
				m, err := d.Matrix(width, width, randoms(width*width))
				if err != nil {
					b.Fatal(err)
				}
				x, dst := upload(b, d, rows, width), upload(b, d, rows, width)
				b.ResetTimer()
				for range b.N {
					d.Ops().MatMul(dst, x, m)
				}
				b.ReportMetric(2*float64(rows)*width*width*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

// BenchmarkAttention is 16 heads of 64 over 4 key-value heads.
func BenchmarkAttention(b *testing.B) {
	const heads, kvHeads, headDim, pageSize, context = 16, 4, 64, 16, 1024
	for _, k := range available() {
		for _, rows := range []int{1, 512} {
			b.Run(fmt.Sprintf("%s/tokens=%d,context=%d", k.name, rows, context), func(b *testing.B) {
				d := start(k, runtime.GOMAXPROCS(0))
				defer d.Close()
				kv := upload(b, d, context/pageSize, 2*pageSize*kvHeads*headDim)
				q, dst := upload(b, d, rows, heads*headDim), upload(b, d, rows, heads*headDim)
				positions, sequences, table := make([]int32, rows), make([]int32, rows), make([]int32, context/pageSize)
				for i := range positions {
					positions[i] = int32(context - rows + i)
				}
				for i := range table {
					table[i] = int32(i)
				}
				at := gpu.Paged{
					Positions: ints(b, d, positions), Sequences: ints(b, d, sequences), Tables: ints(b, d, table),
					PageSize: pageSize, KVHeads: kvHeads, HeadDim: headDim,
				}
				b.ResetTimer()
				for range b.N {
					d.Ops().Attention(dst, q, kv, at, 0.125, 0)
				}
				b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}

func randoms(n int) []float32 {
	random := rand.New(rand.NewPCG(1, 2))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(random.NormFloat64())
	}
	return v
}

func upload(t testing.TB, d *Device, rows, cols int) gpu.Tensor {
	t.Helper()
	buffer, err := d.Alloc(gpu.F32, rows*cols)
	if err != nil {
		t.Fatal(err)
	}
	v := gpu.View(buffer, rows, cols)
	if err := d.Write(v, gpu.Bytes(randoms(rows*cols))); err != nil {
		t.Fatal(err)
	}
	return v
}

func ints(t testing.TB, d *Device, data []int32) gpu.Tensor {
	t.Helper()
	buffer, err := d.Alloc(gpu.I32, len(data))
	if err != nil {
		t.Fatal(err)
	}
	v := gpu.View(buffer, 1, len(data))
	if err := d.Write(v, gpu.Bytes(data)); err != nil {
		t.Fatal(err)
	}
	return v
}
