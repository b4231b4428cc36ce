package runner

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/scheduler"
)

// future knows the tokens of the last step, so that a row of the next can compute one that its scheduler has not seen yet.
type future struct {
	tokens []int32         // [rows of the last step]: what each sampled, noToken where it did not
	rows   []scheduler.Row // reused by resolve
	filled []int32         // the tokens of the resolved rows
}

const noToken = -1

// resolve gives rows with the tokens of Future rows filled in, or a *RowError. It forgets the last step: a step that
// fails has no successor. The result is valid until the next call.
func (f *future) resolve(rows []scheduler.Row) ([]scheduler.Row, error) {
	last := f.tokens
	f.tokens = f.tokens[:0]
	futures := 0
	for i, row := range rows {
		if !row.Future {
			continue
		}
		futures++
		if row.PreviousRow < 0 || row.PreviousRow >= len(last) {
			return nil, &RowError{i, "PreviousRow", fmt.Sprintf("is %d: the step before had %d rows", row.PreviousRow, len(last))}
		}
		if last[row.PreviousRow] == noToken {
			return nil, &RowError{i, "PreviousRow", fmt.Sprintf("is %d, which sampled no token in the step before", row.PreviousRow)}
		}
	}
	if futures == 0 {
		return rows, nil
	}
	f.rows, f.filled = append(f.rows[:0], rows...), f.filled[:0]
	for range futures {
		f.filled = append(f.filled, 0) // grown before rows point into it
	}
	next := 0
	for i := range f.rows {
		if row := &f.rows[i]; row.Future {
			f.filled[next] = last[row.PreviousRow]
			row.Tokens = f.filled[next : next+1 : next+1]
			next++
		}
	}
	return f.rows, nil
}

// remember keeps what the step's rows sampled.
func (f *future) remember(rows []scheduler.Row, sampled []scheduler.Sampled) {
	f.tokens = f.tokens[:0]
	for i, row := range rows {
		token := int32(noToken)
		if row.Sample {
			token = sampled[i].Token
		}
		f.tokens = append(f.tokens, token)
	}
}
