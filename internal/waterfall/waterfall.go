// Package waterfall draws when something happened, as lines of text: times to the microsecond, and a bar on the scale of the whole.
// It knows nothing of requests. The engine's and the router's /debug/requests call it.
package waterfall

import (
	"fmt"
	"strings"
)

// columns is the width of a bar.
const columns = 48

// Line gives a line: a name, its beginning and its length, and a bar of [start, start+nanos) on the scale of [0, scale), all in
// nanoseconds. What takes any time takes a column at least.
func Line(name string, start, nanos, scale int64) string {
	return fmt.Sprintf("    %-26s %12s + %12s ms |%s|\n", OneLine(name), Millis(start), Millis(nanos), bar(start, nanos, scale))
}

// Millis gives nanoseconds as milliseconds to the microsecond.
func Millis(nanos int64) string { return fmt.Sprintf("%.3f", float64(nanos)/1e6) }

// OneLine makes what a client named fit for a line of a terminal: control characters, those of eight bits too, become "?".
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

func bar(start, nanos, scale int64) string {
	if scale <= 0 {
		return strings.Repeat(" ", columns)
	}
	column := func(at int64) int { return int(min(max(float64(at)/float64(scale), 0), 1) * columns) }
	from, to := column(start), column(start+nanos)
	if nanos > 0 && to == from {
		from = min(from, columns-1)
		to = from + 1
	}
	return strings.Repeat(" ", from) + strings.Repeat("#", to-from) + strings.Repeat(" ", columns-to)
}
