package conformance

import (
	"fmt"
	"math"

	"github.com/sluice-dev/sluice/gpu"
)

// sequence is the context of one sequence and the part of it that a step computes: tokens [start, len(k)).
type sequence struct {
	start   int
	q, k, v [][]float32 // per token [heads*headDim], [kvHeads*headDim] twice
}

// heads is the geometry of attention.
type heads struct{ query, kv, dim int }

func (b *bench) heads() heads {
	kv := b.between(1, 4)
	return heads{query: kv * b.between(1, 4), kv: kv, dim: 2 * b.between(1, 40)}
}

func (b *bench) sequence(h heads, longest int) sequence {
	n := b.between(1, longest)
	s := sequence{start: b.rand.IntN(n)}
	row := func(width int) []float32 {
		r := make([]float32, width)
		for i := range r {
			r[i] = float32(b.rand.NormFloat64() * 1.5)
		}
		return r
	}
	for range n {
		s.q, s.k, s.v = append(s.q, row(h.query*h.dim)), append(s.k, row(h.kv*h.dim)), append(s.v, row(h.kv*h.dim))
	}
	return s
}

// attend puts the sequences' contexts into shuffled pages of device d, computes the tokens that each still needs, all in
// one call, and gives their outputs in order. Pages that lie before the windows of all tokens to compute are gone by then.
func (b *bench) attend(d gpu.Device, h heads, pageSize, window int, sequences []sequence) []float32 {
	b.Helper()
	maxPages, pages := 0, 0
	for _, s := range sequences {
		n := (len(s.k) + pageSize - 1) / pageSize
		maxPages, pages = max(maxPages, n), pages+n
	}
	tables := make([]int32, len(sequences)*maxPages)
	for i := range tables {
		tables[i] = -1 // never read
	}
	shuffled := b.rand.Perm(pages)
	var all, part tokens
	for i, s := range sequences {
		for p := range (len(s.k) + pageSize - 1) / pageSize {
			tables[i*maxPages+p] = int32(shuffled[0])
			shuffled = shuffled[1:]
		}
		for position := range s.k {
			all.add(i, position, s)
			if position >= s.start {
				part.add(i, position, s)
			}
		}
	}
	kv := gpu.View(b.alloc(d, gpu.F32, pages*2*pageSize*h.kv*h.dim), pages, 2*pageSize*h.kv*h.dim)
	table := b.upload(d, gpu.View(b.alloc(d, gpu.I32, len(tables)), len(sequences), maxPages), gpu.Bytes(tables))
	paged := func(t tokens) gpu.Paged {
		return gpu.Paged{
			Positions: b.vector(d, t.positions), Sequences: b.vector(d, t.sequences), Tables: table,
			PageSize: pageSize, KVHeads: h.kv, HeadDim: h.dim,
		}
	}
	d.Ops().StoreKV(kv, b.dense(d, all.k, h.kv*h.dim), b.dense(d, all.v, h.kv*h.dim), paged(all))
	if window > 0 {
		for i, s := range sequences {
			for p := range max(0, s.start-window+1) / pageSize {
				tables[i*maxPages+p] = -1
			}
		}
		b.upload(d, table, gpu.Bytes(tables))
	}
	q := b.dense(d, part.q, h.query*h.dim)
	out := b.dense(d, make([]float32, len(part.q)), h.query*h.dim)
	d.Ops().Attention(out, q, kv, paged(part), float32(1/math.Sqrt(float64(h.dim))), window)
	return b.download(d, out)
}

// tokens are flattened rows.
type tokens struct {
	positions, sequences []int32
	q, k, v              []float32
}

func (t *tokens) add(sequence, position int, s sequence) {
	t.positions, t.sequences = append(t.positions, int32(position)), append(t.sequences, int32(sequence))
	t.q, t.k, t.v = append(t.q, s.q[position]...), append(t.k, s.k[position]...), append(t.v, s.v[position]...)
}

func (b *bench) vector(d gpu.Device, data []int32) gpu.Tensor {
	b.Helper()
	return b.upload(d, gpu.View(b.alloc(d, gpu.I32, len(data)), 1, len(data)), gpu.Bytes(data))
}

func (b *bench) dense(d gpu.Device, data []float32, cols int) gpu.Tensor {
	b.Helper()
	return b.upload(d, gpu.View(b.alloc(d, gpu.F32, len(data)), len(data)/cols, cols), gpu.Bytes(data))
}

// window gives none, a short one, or one about as long as the sequences.
func (b *bench) window(longest int) int {
	switch b.rand.IntN(4) {
	case 0:
		return 0
	case 1:
		return b.between(1, 5)
	default:
		return b.between(1, longest+5)
	}
}

func attention(b *bench) {
	for round := range 2 * rounds {
		h, pageSize := b.heads(), b.between(1, 20)
		longest := 40
		if round%4 == 0 {
			longest = 200
		}
		window := b.window(longest)
		sequences := make([]sequence, b.between(1, 5))
		for i := range sequences {
			sequences[i] = b.sequence(h, longest)
		}
		got, want := b.attend(b.got, h, pageSize, window, sequences), b.attend(b.want, h, pageSize, window, sequences)
		for i, w := range want {
			if !(math.Abs(float64(got[i]-w)) <= Tolerance*(1+math.Abs(float64(w)))) {
				b.Fatalf("attention of %+v, page %d, window %d, %d sequences: element %d is %g, want %g", h, pageSize, window, len(sequences), i, got[i], w)
			}
		}
	}
}

// attentionInvariance computes each sequence alone, then together with others, with other page sizes and in chunks.
func attentionInvariance(b *bench) {
	for range rounds / 2 {
		h, window := b.heads(), b.window(150)
		sequences := make([]sequence, b.between(2, 5))
		var alone []float32
		for i := range sequences {
			sequences[i] = b.sequence(h, 150)
			alone = append(alone, b.attend(b.got, h, b.between(1, 40), window, sequences[i:i+1])...)
		}
		what := fmt.Sprintf("attention of %+v, window %d, %d sequences", h, window, len(sequences))
		b.equal(what+" together", b.attend(b.got, h, b.between(1, 40), window, sequences), alone)

		var chunked []float32
		for _, s := range sequences {
			whole := s
			for s.start < len(whole.k) {
				to := s.start + b.between(1, len(whole.k)-s.start)
				s.q, s.k, s.v = whole.q[:to], whole.k[:to], whole.v[:to]
				chunked = append(chunked, b.attend(b.got, h, b.between(1, 40), window, []sequence{s})...)
				s.start = to
			}
		}
		b.equal(what+" in chunks", chunked, alone)
	}
}

// attentionWindow checks that a window as long as the context changes no bit.
func attentionWindow(b *bench) {
	for range rounds / 4 {
		h, pageSize := b.heads(), b.between(1, 20)
		sequences := []sequence{b.sequence(h, 150), b.sequence(h, 150)}
		want := b.attend(b.got, h, pageSize, 0, sequences)
		b.equal("attention with a window of the whole context", b.attend(b.got, h, pageSize, 150, sequences), want)
	}
}
