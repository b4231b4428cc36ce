package runner

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/scheduler"
)

// RowError says what is wrong with a row. It is always the caller's mistake; nothing was computed or written.
type RowError struct {
	Row    int // index in the step
	Field  string
	Reason string
}

func (e *RowError) Error() string { return fmt.Sprintf("row %d: %s %s", e.Row, e.Field, e.Reason) }

// checker refuses rows that would read or write what isn't theirs. It keeps a mark per page between steps.
type checker struct {
	full, window users
}

// users says what the rows of a step do with each page of a pool.
type users struct {
	// marks[p] is stamp*2 when rows of this step read page p, stamp*2+1 when one writes it.
	marks []uint64
	stamp uint64
}

// begin forgets the step before.
func (u *users) begin(pages int) {
	if len(u.marks) != pages {
		u.marks = make([]uint64, pages)
	}
	u.stamp++
}

// use marks a page and reports false when that is one use too many.
func (u *users) use(page int32, writes bool) (ok bool) {
	reading, writing := 2*u.stamp, 2*u.stamp+1
	was := u.marks[page]
	if was == writing || (was == reading && writes) {
		return false
	}
	u.marks[page] = reading
	if writes {
		u.marks[page] = writing
	}
	return true
}

// check gives a *RowError unless every row is whole: tokens in the vocabulary, positions within the context, pages that
// exist and cover the tokens, and no page that is written also used by another row or a second time by its own. Future
// rows have their token in Tokens already. Of a window's table only the pages that the row's tokens look at matter.
func (c *checker) check(rows []scheduler.Row, info Info) error {
	c.full.begin(info.MaxTotalTokens / info.PageSize)
	c.window.begin(info.MaxWindowTokens / info.PageSize)
	for i, row := range rows {
		if err := checkRow(i, row, info); err != nil {
			return err
		}
		if err := c.full.table(i, "Pages", row, row.Pages, 0, info); err != nil {
			return err
		}
		if info.WindowTokens == 0 {
			continue
		}
		if err := c.window.table(i, "Window", row, row.Window, firstSeen(row, info)/info.PageSize, info); err != nil {
			return err
		}
	}
	return nil
}

// firstSeen is the first position that a windowed layer looks at for the row.
func firstSeen(row scheduler.Row, info Info) int { return max(0, row.Start-info.WindowTokens+1) }

// table checks the entries of a page table from ordinal first on.
func (u *users) table(i int, field string, row scheduler.Row, table []int32, first int, info Info) error {
	need := pagesOf(row, info.PageSize)
	if len(table) < need {
		return &RowError{i, field, fmt.Sprintf("holds %d: want at least %d for %d tokens in pages of %d",
			len(table), need, row.Start+len(row.Tokens), info.PageSize)}
	}
	for j := first; j < need; j++ {
		page := table[j]
		if page < 0 || int(page) >= len(u.marks) {
			return &RowError{i, field, fmt.Sprintf("[%d] is %d: want 0 to %d", j, page, len(u.marks)-1)}
		}
	}
	for j := first; j < need; j++ {
		if !u.use(table[j], j >= row.Start/info.PageSize) {
			return &RowError{i, field, fmt.Sprintf("[%d] is page %d, which is used twice in this step while a row writes it", j, table[j])}
		}
	}
	return nil
}

func checkRow(i int, row scheduler.Row, info Info) error {
	if len(row.Tokens) == 0 {
		return &RowError{i, "Tokens", "is empty: want at least one"}
	}
	for j, token := range row.Tokens {
		if token < 0 || int(token) >= info.VocabSize {
			return &RowError{i, "Tokens", fmt.Sprintf("[%d] is %d: want 0 to %d", j, token, info.VocabSize-1)}
		}
	}
	if row.Start < 0 || row.Start > info.ContextLength-len(row.Tokens) {
		return &RowError{i, "Start", fmt.Sprintf("is %d with %d tokens: want 0 or more, and at most the context of %d in all",
			row.Start, len(row.Tokens), info.ContextLength)}
	}
	if row.PromptTokens < 0 || row.PromptTokens > len(row.History) {
		return &RowError{i, "PromptTokens", fmt.Sprintf("is %d: want 0 to %d, the length of History", row.PromptTokens, len(row.History))}
	}
	if words := (info.VocabSize + 63) / 64; row.Mask != nil && len(row.Mask) != words {
		return &RowError{i, "Mask", fmt.Sprintf("has %d words: want %d for %d tokens", len(row.Mask), words, info.VocabSize)}
	}
	if row.Sample && row.Params == nil {
		return &RowError{i, "Params", "is nil: want it where Sample is set"}
	}
	return nil
}
