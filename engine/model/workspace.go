package model

import "github.com/sluice-dev/sluice/gpu"

// workspace is the memory of a forward pass, kept between passes and grown by doubling.
type workspace struct {
	tokens, headRows int // for how many there is room

	all  views // of tokens
	rows head  // of headRows
}

// views are a pass's tensors, with a row per token. Heads, kvHeads and intermediate are the shard's.
type views struct {
	residual gpu.Tensor // [n, hidden]
	normed   gpu.Tensor // [n, hidden]
	update   gpu.Tensor // [n, hidden]: what a block adds to the residual
	rope     gpu.Tensor // [n, headDim]
	qkv      gpu.Tensor // [n, (heads + 2*kvHeads)*headDim]
	mixed    gpu.Tensor // [n, heads*headDim]: attention's output
	gateUp   gpu.Tensor // [n, 2*intermediate]
	hidden   gpu.Tensor // [n, intermediate]

	ids gpu.Tensor // I32 [1, n]: rows of the embedding
}

// head are the tensors of a slice of wanted tokens, with a row for each.
type head struct {
	last   gpu.Tensor // [rows, hidden]
	part   gpu.Tensor // [rows, the shard's part of the vocabulary]; logits themselves when the part is all
	logits gpu.Tensor // [rows, vocab]
}

// grow makes room for a pass whose largest slice of wanted tokens has headRows.
func (w *workspace) grow(device gpu.Device, c Config, s Shard, tokens, headRows int) error {
	if tokens > w.tokens {
		room := max(tokens, 2*w.tokens)
		heads, inter := s.heads.len()*c.HeadDim, s.inter.len()
		for _, t := range []struct {
			to    *gpu.Tensor
			width int
		}{
			{&w.all.residual, c.HiddenSize}, {&w.all.normed, c.HiddenSize}, {&w.all.update, c.HiddenSize},
			{&w.all.rope, c.HeadDim}, {&w.all.qkv, heads + 2*s.kvHeads.len()*c.HeadDim}, {&w.all.mixed, heads},
			{&w.all.gateUp, 2 * inter}, {&w.all.hidden, inter},
		} {
			if err := allocate(device, t.to, room, t.width); err != nil {
				return err
			}
		}
		buffer, err := device.Alloc(gpu.I32, room)
		if err != nil {
			return err
		}
		w.all.ids = gpu.View(buffer, 1, room)
		w.tokens = room
	}
	if headRows > w.headRows && s.last {
		room := max(headRows, min(2*w.headRows, max(1, headFloats/c.VocabSize)))
		if err := allocate(device, &w.rows.last, room, c.HiddenSize); err != nil {
			return err
		}
		if err := allocate(device, &w.rows.logits, room, c.VocabSize); err != nil {
			return err
		}
		w.rows.part = w.rows.logits
		if s.vocab.len() < c.VocabSize {
			if err := allocate(device, &w.rows.part, room, s.vocab.len()); err != nil {
				return err
			}
		}
		w.headRows = room
	}
	return nil
}

func allocate(device gpu.Device, to *gpu.Tensor, rows, cols int) error {
	buffer, err := device.Alloc(gpu.F32, rows*cols)
	if err != nil {
		return err
	}
	*to = gpu.View(buffer, rows, cols)
	return nil
}

// views gives the tensors of a pass over n tokens.
func (w *workspace) views(n int) views {
	v := w.all
	for _, t := range []*gpu.Tensor{&v.residual, &v.normed, &v.update, &v.rope, &v.qkv, &v.mixed, &v.gateUp, &v.hidden} {
		t.Rows = n
	}
	v.ids = v.ids.ColumnRange(0, n)
	return v
}

// head gives the tensors of a slice.
func (w *workspace) head(rows int) head {
	h := w.rows
	h.last.Rows, h.part.Rows, h.logits.Rows = rows, rows, rows
	return h
}
