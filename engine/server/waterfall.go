package server

import (
	"fmt"
	"strings"
)

// barColumns is the width of a waterfall's bars.
const barColumns = 48

// waterfall writes a sequence as text: each visit of a stage with its beginning and its length in milliseconds, to the
// microsecond, and a bar on the scale of the whole request; the scheduler's below the API process's.
func waterfall(b *strings.Builder, v *requestView) {
	outcome := "in flight, " + v.Stage
	if v.Outcome != nil {
		outcome = string(*v.Outcome)
	}
	fmt.Fprintf(b, "%s  %s  received %s\n", oneLine(v.RID), outcome, v.Received)
	fmt.Fprintf(b, "  %d prompt tokens: %d cached, %d computed; %d answer tokens; %d retractions, %d tokens computed again", v.PromptTokens,
		v.CachedTokens, v.ComputedTokens, v.CompletionTokens, v.Retractions, v.ReprocessedTokens)
	if v.DPRank != nil {
		fmt.Fprintf(b, "; DP rank %d", *v.DPRank)
	}
	if v.Room != nil {
		fmt.Fprintf(b, "; room %d", *v.Room)
	}
	b.WriteByte('\n')
	if v.Message != "" {
		fmt.Fprintf(b, "  %s\n", oneLine(v.Message))
	}
	ttft := "none"
	if v.TTFTNanos != nil {
		ttft = millis(*v.TTFTNanos) + " ms"
	}
	fmt.Fprintf(b, "  end to end %s ms, first output %s\n", millis(v.E2ENanos), ttft)
	timeline(b, v.API, v.API.StartWall, v.E2ENanos)
	if v.Rank != nil {
		timeline(b, v.Rank, v.API.StartWall, v.E2ENanos)
	}
}

// timeline writes one timeline; begin is the wall time of the request's own, whose length is the scale.
func timeline(b *strings.Builder, t *timelineView, begin, scale int64) {
	ahead := t.StartWall - begin
	fmt.Fprintf(b, "  %s: %s ms\n", t.Form, millis(t.Nanos))
	for _, visit := range t.Visits {
		fmt.Fprintf(b, "    %-26s %12s + %12s ms |%s|\n", visit.Stage, millis(ahead+visit.Start), millis(visit.Nanos), bar(ahead+visit.Start, visit.Nanos, scale))
	}
	if t.Folded > 0 {
		fmt.Fprintf(b, "    and %d more visits, which the sums have:\n", t.Folded)
		for _, s := range t.Stages {
			fmt.Fprintf(b, "      %-26s %6d visits %12s ms\n", s.Stage, s.Count, millis(s.Nanos))
		}
	}
	for _, lap := range t.Laps {
		fmt.Fprintf(b, "    %-26s %6d laps, %s ms in all, %s ms each\n", lap.Stage, lap.Count, millis(lap.Nanos), millis(lap.Nanos/int64(max(lap.Count, 1))))
	}
	if t.Summary != "" {
		fmt.Fprintf(b, "    %s\n", t.Summary)
	}
}

// millis gives nanoseconds as milliseconds to the microsecond.
func millis(nanos int64) string { return fmt.Sprintf("%.3f", float64(nanos)/1e6) }

// bar draws [start, start+nanos) of [0, scale); what takes any time takes a column at least.
func bar(start, nanos, scale int64) string {
	if scale <= 0 {
		return strings.Repeat(" ", barColumns)
	}
	column := func(at int64) int { return int(min(max(float64(at)/float64(scale), 0), 1) * barColumns) }
	from, to := column(start), column(start+nanos)
	if nanos > 0 && to == from {
		from = min(from, barColumns-1)
		to = from + 1
	}
	return strings.Repeat(" ", from) + strings.Repeat("#", to-from) + strings.Repeat(" ", barColumns-to)
}

// oneLine makes what a client named fit for a line of text.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
