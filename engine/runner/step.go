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
	windows   []int32 // the same of the pool of windowed layers; empty without such layers
	maxPages  int
	wanted    []int32    // indexes of the tokens whose logits are needed, by row: see promptLogits, then the last token where the row samples
	wantedBy  []wantedBy // [wanted]: what for

	uploads [5]gpu.Buffer // of the slices behind the tokens, in their order
}

// flatten turns checked rows into token order.
func (s *step) flatten(rows []scheduler.Row, info Info) {
	pageSize := info.PageSize
	s.tokens, s.positions, s.sequences = s.tokens[:0], s.positions[:0], s.sequences[:0]
	s.wanted, s.wantedBy = s.wanted[:0], s.wantedBy[:0]
	s.maxPages = 0
	for i, row := range rows {
		s.maxPages = max(s.maxPages, pagesOf(row, pageSize))
		s.tokens = append(s.tokens, row.Tokens...)
		for j := range row.Tokens {
			s.positions = append(s.positions, int32(row.Start+j))
			s.sequences = append(s.sequences, int32(i))
		}
		first := len(s.tokens) - len(row.Tokens)
		for position, end := promptLogits(row); position < end; position++ {
			s.wanted = append(s.wanted, int32(first+position-1-row.Start))
			s.wantedBy = append(s.wantedBy, wantedBy{row: i, position: position})
		}
		if row.Sample {
			s.wanted = append(s.wanted, int32(len(s.tokens)-1))
			s.wantedBy = append(s.wantedBy, wantedBy{row: i})
		}
	}
	s.tables, s.windows = s.tables[:0], s.windows[:0]
	for _, row := range rows {
		used := pagesOf(row, pageSize)
		s.tables = appendTable(s.tables, row.Pages[:used], s.maxPages)
		if info.WindowTokens > 0 {
			s.windows = appendTable(s.windows, row.Window[:used], s.maxPages)
		}
	}
}

// appendTable adds a row of a table of tables.
func appendTable(tables, used []int32, maxPages int) []int32 {
	tables = append(tables, used...)
	for range maxPages - len(used) {
		tables = append(tables, -1) // never read
	}
	return tables
}

// promptLogits are the positions [from, to) of the prompt whose logprobs the row wants; the logits of each come from the
// token before it, which is one of the row's.
func promptLogits(row scheduler.Row) (from, to int) {
	if row.Logprobs == nil || row.Logprobs.PromptFrom == 0 {
		return 0, 0
	}
	from = max(row.Logprobs.PromptFrom, row.Start+1)
	return from, max(from, min(row.Start+len(row.Tokens)+1, row.PromptTokens))
}

// pagesOf is how many pages hold the row's tokens, those of the step included.
func pagesOf(row scheduler.Row, pageSize int) int {
	return (row.Start + len(row.Tokens) + pageSize - 1) / pageSize
}

// upload puts the step onto the device.
func (s *step) upload(device gpu.Device) (model.Step, error) {
	var tensors [5]gpu.Tensor
	for i, values := range [][]int32{s.positions, s.sequences, s.tables, s.wanted, s.windows} {
		if len(values) == 0 {
			continue // nothing is wanted, or no layer is windowed
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
	input := model.Step{
		Tokens: s.tokens,
		At:     gpu.Paged{Positions: tensors[0], Sequences: tensors[1], Tables: gpu.View(s.uploads[2], rows, s.maxPages)},
		Wanted: tensors[3],
	}
	if len(s.windows) > 0 {
		input.Windows = gpu.View(s.uploads[4], rows, s.maxPages)
	}
	return input, nil
}
