package trail

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/internal/waterfall"
)

// Trace is the document of `trace`: one request in all processes that have a record of it.
type Trace struct {
	Kind      string `json:"kind"` // "Trace"
	Time      string `json:"time"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Router has the request's way through the router; null when no router remembers it.
	Router *RouterPart `json:"router"`
	// Engines are the records of engines, prefill before decode, in the order of their beginning.
	Engines []EnginePart `json:"engines"`
	// Missing says which records could not be had, and why.
	Missing []string `json:"missing"`
}

// RouterPart is the record of the router in a pod.
type RouterPart struct {
	Pod string `json:"pod"`
	RouterRecord
}

// EnginePart is the record of an engine in a pod.
type EnginePart struct {
	Pod  string `json:"pod"`
	Pool string `json:"pool"`
	Role string `json:"role"`
	EngineRecord
}

// Sort puts the engines in order.
func (t *Trace) Sort() {
	place := func(role string) int { return slices.Index([]string{"Prefill", "Decode"}, role) }
	slices.SortStableFunc(t.Engines, func(a, b EnginePart) int {
		return cmp.Or(cmp.Compare(place(a.Role), place(b.Role)), cmp.Compare(a.ReceivedWall, b.ReceivedWall), strings.Compare(a.Pod, b.Pod))
	})
}

// window is the time that the waterfall shows: Unix nanoseconds of its beginning, and its length.
func (t *Trace) window() (begin, length int64) {
	end := int64(0)
	add := func(start, nanos int64) {
		if begin == 0 || start < begin {
			begin = start
		}
		end = max(end, start+nanos)
	}
	if t.Router != nil {
		add(t.Router.ReceivedWall, t.Router.Nanos)
	}
	for i := range t.Engines {
		add(t.Engines[i].ReceivedWall, t.Engines[i].E2ENanos)
	}
	return begin, end - begin
}

// Text draws the request, each process on the scale of the whole.
func (t *Trace) Text() string {
	var b strings.Builder
	begin, scale := t.window()
	fmt.Fprintf(&b, "%s/%s  %s ms from the first record's beginning to the last one's end\n", t.Namespace, t.Service, waterfall.Millis(scale))
	if t.Router != nil {
		t.Router.draw(&b, begin, scale)
	}
	for i := range t.Engines {
		t.Engines[i].draw(&b, begin, scale)
	}
	if t.several() {
		b.WriteString("Clocks of two hosts differ: between processes compare lengths and order; within one, times may be subtracted.\n")
	}
	for _, text := range t.Missing {
		fmt.Fprintf(&b, "missing: %s\n", waterfall.OneLine(text))
	}
	return b.String()
}

// several says whether records of more than one pod are shown.
func (t *Trace) several() bool {
	n := len(t.Engines)
	if t.Router != nil {
		n++
	}
	return n > 1
}

func (r *RouterPart) draw(b *strings.Builder, begin, scale int64) {
	fmt.Fprintf(b, "router %s  %s  %s %s", r.Pod, waterfall.OneLine(cmp.Or(r.RID, "(no rid)")), waterfall.OneLine(r.Route), outcome(r.Outcome, r.Stage))
	if r.Status != 0 {
		fmt.Fprintf(b, " (%d)", r.Status)
	}
	fmt.Fprintf(b, ", received %s\n", r.Received)
	for i, a := range r.Attempts {
		fmt.Fprintf(b, "  attempt %d:", i+1)
		if a.Prefill != nil {
			fmt.Fprintf(b, " prefill %s, decode %s", a.Prefill.Name, a.Decode.Name)
		} else {
			fmt.Fprintf(b, " %s", a.Decode.Name)
		}
		if a.Room != nil {
			fmt.Fprintf(b, ", room %d", *a.Room)
		}
		if a.Failed != "" {
			fmt.Fprintf(b, ": %s: %s", waterfall.OneLine(a.Failed), waterfall.OneLine(a.Error))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(b, "  router: %s ms\n", waterfall.Millis(r.Nanos))
	for _, v := range r.Stages {
		b.WriteString(waterfall.Line(v.Stage, r.ReceivedWall-begin+v.Start, v.Nanos, scale))
	}
}

func (e *EnginePart) draw(b *strings.Builder, begin, scale int64) {
	fmt.Fprintf(b, "%s %s  %s  %s", strings.ToLower(cmp.Or(e.Role, "engine")), e.Pod, waterfall.OneLine(e.RID), outcome(e.Outcome, e.Stage))
	if e.DPRank != nil {
		fmt.Fprintf(b, ", DP rank %d", *e.DPRank)
	}
	fmt.Fprintf(b, "\n  %d prompt tokens: %d cached, %d computed; %d answer tokens; %d retractions, %d tokens computed again\n",
		e.PromptTokens, e.CachedTokens, e.ComputedTokens, e.CompletionTokens, e.Retractions, e.ReprocessedTokens)
	if e.Message != "" {
		fmt.Fprintf(b, "  %s\n", waterfall.OneLine(e.Message))
	}
	for _, t := range []*Timeline{e.API, e.Rank} {
		if t != nil {
			t.draw(b, begin, scale)
		}
	}
}

func (t *Timeline) draw(b *strings.Builder, begin, scale int64) {
	fmt.Fprintf(b, "  %s: %s ms\n", t.Form, waterfall.Millis(t.Nanos))
	for _, v := range t.Visits {
		b.WriteString(waterfall.Line(v.Stage, t.StartWall-begin+v.Start, v.Nanos, scale))
	}
	if t.Folded > 0 {
		fmt.Fprintf(b, "    and %d more visits, which the sums have:\n", t.Folded)
		for _, s := range t.Stages {
			fmt.Fprintf(b, "      %-26s %6d visits %12s ms\n", s.Stage, s.Count, waterfall.Millis(s.Nanos))
		}
	}
	for _, lap := range t.Laps {
		fmt.Fprintf(b, "    %-26s %6d laps, %s ms in all, %s ms each\n", lap.Stage, lap.Count, waterfall.Millis(lap.Nanos), waterfall.Millis(lap.Nanos/int64(max(lap.Count, 1))))
	}
}
