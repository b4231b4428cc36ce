package conformance

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host/reference"
)

// Tolerance bounds |got - want| <= Tolerance * (1 + |want|) for inputs of about unit size, the oracle being summed in
// float64. It allows float32 sums over some hundred terms in any order.
const Tolerance = 2e-5

// rounds is how many random shapes a kernel is tried on.
const rounds = 16

// Run checks the device that open gives, which it closes.
func Run(t *testing.T, open func(t *testing.T) gpu.Device) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	RunSeed(t, seed, open)
}

// RunSeed is Run with the seed that a failure printed.
func RunSeed(t *testing.T, seed uint64, open func(t *testing.T) gpu.Device) {
	device := open(t)
	defer func() {
		if err := device.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	tests := []struct {
		name string
		run  func(*bench)
	}{
		{"memory", memory},
		{"gather", gather},
		{"rmsnorm", rmsNorm},
		{"matmul", matMul},
		{"matmul rows are independent", matMulInvariance},
		{"rope", rope},
		{"attention", attention},
		{"attention is independent of batch, chunk and page size", attentionInvariance},
		{"attention with a wide window is full attention", attentionWindow},
		{"silu mul", siluMul},
		{"add", add},
		{"softmax", softmax},
		{"argmax", argMax},
		{"shapes are checked", shapes},
		{"busy time", busy},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.run(&bench{T: t, rand: rand.New(rand.NewPCG(seed, 0)), got: device, want: reference.New()})
		})
	}
}

// bench is one kernel under test beside the oracle.
type bench struct {
	*testing.T
	rand      *rand.Rand
	got, want gpu.Device
}

// pair is the same tensor on both devices.
type pair struct{ got, want gpu.Tensor }

func (b *bench) alloc(d gpu.Device, dtype gpu.DType, n int) gpu.Buffer {
	b.Helper()
	buffer, err := d.Alloc(dtype, n)
	if err != nil {
		b.Fatalf("alloc %d of %s: %v", n, dtype, err)
	}
	return buffer
}

func (b *bench) upload(d gpu.Device, t gpu.Tensor, src []byte) gpu.Tensor {
	b.Helper()
	if err := d.Write(t, src); err != nil {
		b.Fatalf("write %v: %v", t, err)
	}
	return t
}

func (b *bench) download(d gpu.Device, t gpu.Tensor) []float32 {
	b.Helper()
	all := make([]float32, t.Rows*t.Stride)
	whole := gpu.View(t.Buf, t.Rows, t.Stride)
	if err := d.Read(gpu.Bytes(all), whole); err != nil {
		b.Fatalf("read %v: %v", t, err)
	}
	return all
}

// padding marks the columns between a tensor's width and its stride, which no kernel may touch.
const padding = 12345

// floats gives a [rows, cols] tensor with random rows, in a wider buffer half of the time.
func (b *bench) floats(rows, cols int) pair {
	b.Helper()
	stride := cols + b.rand.IntN(2)*b.rand.IntN(9)
	data := make([]float32, rows*stride)
	for i := range data {
		data[i] = padding
		if i%stride < cols {
			data[i] = float32(b.rand.NormFloat64())
		}
	}
	return b.tensor(data, rows, stride, cols)
}

func (b *bench) tensor(data []float32, rows, stride, cols int) pair {
	b.Helper()
	view := func(d gpu.Device) gpu.Tensor {
		t := gpu.View(b.alloc(d, gpu.F32, len(data)), rows, stride)
		return b.upload(d, t, gpu.Bytes(data)).ColumnRange(0, cols)
	}
	return pair{view(b.got), view(b.want)}
}

func (b *bench) ints(rows, cols int, data []int32) pair {
	b.Helper()
	view := func(d gpu.Device) gpu.Tensor {
		return b.upload(d, gpu.View(b.alloc(d, gpu.I32, len(data)), rows, cols), gpu.Bytes(data))
	}
	return pair{view(b.got), view(b.want)}
}

// compare checks a result against the oracle's, padding included.
func (b *bench) compare(what string, p pair, tolerance float64) {
	b.Helper()
	if err := errors.Join(b.got.Sync(), b.want.Sync()); err != nil {
		b.Fatalf("%s: sync: %v", what, err)
	}
	got, want := b.download(b.got, p.got), b.download(b.want, p.want)
	for i, w := range want {
		// The negation catches NaN too.
		if difference := math.Abs(float64(got[i]) - float64(w)); !(difference <= tolerance*(1+math.Abs(float64(w)))) {
			b.Fatalf("%s: element [%d, %d] of %v is %g, want %g", what, i/p.got.Stride, i%p.got.Stride, p.got, got[i], w)
		}
	}
}

// equal checks that two tensors of the tested device are the same bits.
func (b *bench) equal(what string, got, want []float32) {
	b.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			b.Fatalf("%s: element %d is %g, want exactly %g", what, i, got[i], want[i])
		}
	}
}

// between gives a number in [from, to].
func (b *bench) between(from, to int) int { return from + b.rand.IntN(to-from+1) }
