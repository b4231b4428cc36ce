package model

import "github.com/sluice-dev/sluice/gpu"

// hostspace is host memory for what goes to other ranks and comes from them, kept between passes.
type hostspace struct {
	numbers []float32
	parts   [][]float32
	local   []int32
}

func (h *hostspace) room(n int) []float32 {
	if cap(h.numbers) < n {
		h.numbers = make([]float32, max(n, 2*cap(h.numbers)))
	}
	return h.numbers[:n]
}

// ids gives the rows of a part of the embedding: tokens in [vocab) from its first row on, all others the row of zeros
// behind its last.
func (h *hostspace) ids(tokens []int32, vocab span) []int32 {
	h.local = h.local[:0]
	for _, t := range tokens {
		id := int(t) - vocab.from
		if id < 0 || id >= vocab.len() {
			id = vocab.len()
		}
		h.local = append(h.local, int32(id))
	}
	return h.local
}

// read copies t once it is computed, before others are told or waited for: the device is not busy meanwhile.
func (m *Llama) read(x []float32, t gpu.Tensor) error {
	if err := m.device.Sync(); err != nil {
		return err
	}
	return m.device.Read(gpu.Bytes(x), t)
}

// sum replaces t, [n, width], by the sum over the tensor-parallel ranks.
func (m *Llama) sum(t gpu.Tensor) error {
	if m.ranks.Place.TPSize == 1 {
		return nil
	}
	x := m.host.room(t.Len())
	if err := m.read(x, t); err != nil {
		return err
	}
	if err := m.ranks.TP.AllReduce(x); err != nil {
		return err
	}
	return m.device.Write(t, gpu.Bytes(x))
}

// send gives t, [n, hidden], to the next stage.
func (m *Llama) send(t gpu.Tensor) error {
	x := m.host.room(t.Len())
	if err := m.read(x, t); err != nil {
		return err
	}
	return m.ranks.Pipe.Send(x)
}

// recv fills t, [n, hidden], from the previous stage.
func (m *Llama) recv(t gpu.Tensor) error {
	x := m.host.room(t.Len())
	if err := m.ranks.Pipe.Recv(x); err != nil {
		return err
	}
	return m.device.Write(t, gpu.Bytes(x))
}

// collect puts the ranks' parts, each [wanted, part of the vocabulary], next to each other into logits on the first
// tensor-parallel rank.
func (m *Llama) collect(logits, part gpu.Tensor) error {
	place := m.ranks.Place
	root := place.TPRank == 0
	own := part.Len()
	total := own
	if root {
		total = logits.Len() // of all parts
	}
	rest := m.host.room(2 * total) // the parts, then the logits
	m.host.parts = append(m.host.parts[:0], make([][]float32, place.TPSize)...)
	width := func(rank int) int {
		return m.config.VocabSize*(rank+1)/place.TPSize - m.config.VocabSize*rank/place.TPSize
	}
	for rank := range m.host.parts {
		if root || rank == place.TPRank {
			n := part.Rows * width(rank)
			m.host.parts[rank], rest = rest[:n], rest[n:]
		}
	}
	if err := m.read(m.host.parts[place.TPRank], part); err != nil {
		return err
	}
	if err := m.ranks.TP.Gather(m.host.parts, 0); err != nil {
		return err
	}
	if !root {
		return nil
	}
	all := rest[:total]
	for row := range logits.Rows {
		to := all[row*logits.Cols : (row+1)*logits.Cols]
		for rank, p := range m.host.parts {
			n := width(rank)
			copy(to, p[row*n:(row+1)*n])
			to = to[n:]
		}
	}
	return m.device.Write(logits, gpu.Bytes(all))
}
