package server

import (
	"fmt"
	"strings"

	drawn "github.com/sluice-dev/sluice/internal/waterfall"
)

// waterfall writes a sequence as text: each visit of a stage with its beginning and its length in milliseconds, to the
// microsecond, and a bar on the scale of the whole request; the scheduler's below the API process's.
func waterfall(b *strings.Builder, v *requestView) {
	outcome := "in flight, " + v.Stage
	if v.Rank != nil {
		outcome += ", " + v.Rank.Stage
	}
	if v.Outcome != nil {
		outcome = string(*v.Outcome)
	}
	fmt.Fprintf(b, "%s  %s  received %s\n", drawn.OneLine(v.RID), outcome, v.Received)
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
		fmt.Fprintf(b, "  %s\n", drawn.OneLine(v.Message))
	}
	ttft := "none"
	if v.TTFTNanos != nil {
		ttft = drawn.Millis(*v.TTFTNanos) + " ms"
	}
	fmt.Fprintf(b, "  end to end %s ms, first output %s\n", drawn.Millis(v.E2ENanos), ttft)
	timeline(b, v.API, v.API.StartWall, v.E2ENanos)
	if v.Rank != nil {
		timeline(b, v.Rank, v.API.StartWall, v.E2ENanos)
	}
	if v.RankUnknown != "" {
		fmt.Fprintf(b, "  scheduler: %s\n", drawn.OneLine(v.RankUnknown))
	}
}

// timeline writes one timeline; begin is the wall time of the request's own, whose length is the scale.
func timeline(b *strings.Builder, t *timelineView, begin, scale int64) {
	ahead := t.StartWall - begin
	fmt.Fprintf(b, "  %s: %s ms\n", t.Form, drawn.Millis(t.Nanos))
	for _, visit := range t.Visits {
		b.WriteString(drawn.Line(visit.Stage, ahead+visit.Start, visit.Nanos, scale))
	}
	if t.Folded > 0 {
		fmt.Fprintf(b, "    and %d more visits, which the sums have:\n", t.Folded)
		for _, s := range t.Stages {
			fmt.Fprintf(b, "      %-26s %6d visits %12s ms\n", s.Stage, s.Count, drawn.Millis(s.Nanos))
		}
	}
	for _, lap := range t.Laps {
		fmt.Fprintf(b, "    %-26s %6d laps, %s ms in all, %s ms each\n", lap.Stage, lap.Count, drawn.Millis(lap.Nanos), drawn.Millis(lap.Nanos/int64(max(lap.Count, 1))))
	}
	if t.Summary != "" {
		fmt.Fprintf(b, "    %s\n", t.Summary)
	}
}
