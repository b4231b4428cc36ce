package runner

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/gpu"
)

// step is the input of a forward pass, flattened from rows: first on the host, then on the device, but for the tokens. It
// is reused.
type step struct {
	tokens    []int32 // [n]
	positions []int32 // [n]
	sequences []int32 // [n]: the token's row
	tables    []int32 // [rows, maxPages]
	maxPages  int
	wanted    []int32 // [sampled rows]: index of the row's last token

	uploads [4]gpu.Buffer // of the slices behind the tokens, in their order
}

// flatten turns checked rows into token order.
func (s *step) flatten(rows []scheduler.Row, pageSize int) {
	s.tokens, s.positions, s.sequences, s.wanted = s.tokens[:0], s.positions[:0], s.sequences[:0], s.wanted[:0]
	s.maxPages = 0
	for i, row := range rows {
		s.maxPages = max(s.maxPages, pagesOf(row, pageSize))
		s.tokens = append(s.tokens, row.Tokens...)
		for j := range row.Tokens {
			s.positions = append(s.positions, int32(row.Start+j))
			s.sequences = append(s.sequences, int32(i))
		}
		if row.Sample {
			s.wanted = append(s.wanted, int32(len(s.tokens)-1))
		}
	}
	s.tables = s.tables[:0]
	for _, row := range rows {
		used := row.Pages[:pagesOf(row, pageSize)]
		s.tables = append(s.tables, used...)
		for range s.maxPages - len(used) {
			s.tables = append(s.tables, -1) // never read
		}
	}
}

// pagesOf is how many pages hold the row's tokens, those of the step included.
func pagesOf(row scheduler.Row, pageSize int) int {
	return (row.Start + len(row.Tokens) + pageSize - 1) / pageSize
}

// upload puts the step onto the device.
func (s *step) upload(device gpu.Device) (model.Step, error) {
	var tensors [4]gpu.Tensor
	for i, values := range [][]int32{s.positions, s.sequences, s.tables, s.wanted} {
		if len(values) == 0 {
			continue // wanted alone may be empty
		}
		if s.uploads[i] == nil || s.uploads[i].Len() < len(values) {
			buffer, err := device.Alloc(gpu.I32, 2*len(values))
			if err != nil {
				return model.Step{}, fmt.Errorf("allocate step input: %w", err)
			}
			s.uploads[i] = buffer
		}
		tensors[i] = gpu.View(s.uploads[i], 1, len(values))
		if err := device.Write(tensors[i], gpu.Bytes(values)); err != nil {
			return model.Step{}, fmt.Errorf("upload step input: %w", err)
		}
	}
	rows := len(s.tables) / s.maxPages
	return model.Step{
		Tokens: s.tokens,
		At:     gpu.Paged{Positions: tensors[0], Sequences: tensors[1], Tables: gpu.View(s.uploads[2], rows, s.maxPages)},
		Wanted: tensors[3],
	}, nil
}
