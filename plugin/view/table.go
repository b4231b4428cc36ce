package view

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Table aligns columns: cells of one row are separated by tabs in the rows given.
type Table struct{ rows [][]string }

// Row adds a row.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// String gives the rows, columns padded to the widest cell, two spaces apart, without trailing blanks.
func (t *Table) String() string {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// ratio shows a value of 0 to 1 with two decimals, "-" when there is none.
func ratio(x *float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *x)
}

// rate shows a number per second, "-" when there is none.
func rate(x *float64) string {
	if x == nil {
		return "-"
	}
	if *x >= 100 {
		return fmt.Sprintf("%.0f", math.Round(*x))
	}
	return fmt.Sprintf("%.1f", *x)
}

// Plain makes text of the cluster fit for a terminal: control characters become "?".
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}

// Age shows how long ago something was, in the largest unit that gives at least 2, as kubectl does.
func Age(d time.Duration) string {
	switch d = max(0, d); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
