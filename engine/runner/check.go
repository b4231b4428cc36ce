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
	// users[p] is stamp*2 when rows of this step read page p, stamp*2+1 when one writes it.
	users []uint64
	stamp uint64
}

// check gives a *RowError unless every row is whole: tokens in the vocabulary, positions within the context, pages that
// exist and cover the tokens, and no page that is written also used by another row or a second time by its own. Future
// rows have their token in Tokens already.
func (c *checker) check(rows []scheduler.Row, info Info) error {
	pages := info.MaxTotalTokens / info.PageSize
	if len(c.users) != pages {
		c.users = make([]uint64, pages)
	}
	c.stamp++
	reading, writing := 2*c.stamp, 2*c.stamp+1
	for i, row := range rows {
		if err := checkRow(i, row, info, pages); err != nil {
			return err
		}
		firstWritten := row.Start / info.PageSize
		for j, page := range row.Pages[:pagesOf(row, info.PageSize)] {
			user := c.users[page]
			if user == writing || (user == reading && j >= firstWritten) {
				return &RowError{i, "Pages", fmt.Sprintf("[%d] is page %d, which is used twice in this step while a row writes it", j, page)}
			}
			c.users[page] = reading
			if j >= firstWritten {
				c.users[page] = writing
			}
		}
	}
	return nil
}

func checkRow(i int, row scheduler.Row, info Info, pages int) error {
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
	need := pagesOf(row, info.PageSize)
	if len(row.Pages) < need {
		return &RowError{i, "Pages", fmt.Sprintf("holds %d: want at least %d for %d tokens in pages of %d",
			len(row.Pages), need, row.Start+len(row.Tokens), info.PageSize)}
	}
	for j, page := range row.Pages[:need] {
		if page < 0 || int(page) >= pages {
			return &RowError{i, "Pages", fmt.Sprintf("[%d] is %d: want 0 to %d", j, page, pages-1)}
		}
	}
	if row.Sample && row.Params == nil {
		return &RowError{i, "Params", "is nil: want it where Sample is set"}
	}
	return nil
}
