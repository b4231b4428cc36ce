package bench

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Bar gives a run's progress as one line for a terminal of so many columns.
func (s Status) Bar(now time.Time, columns int) string {
	text := fmt.Sprintf(" %3.0f%% %s", 100*s.share(now), s.Line(now))
	width := min(30, columns-len(text)-3)
	if width < 5 {
		return text[:max(0, min(len(text), columns-1))]
	}
	full := int(s.share(now) * float64(width))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", width-full) + "]" + text
}

// Line gives a run's progress in words.
func (s Status) Line(now time.Time) string {
	if s.Started.IsZero() {
		return "not started"
	}
	elapsed := now.Sub(s.Started)
	text := fmt.Sprintf("%d", s.Done())
	if s.Planned > 0 {
		text += fmt.Sprintf("/%d", s.Planned)
	}
	text += fmt.Sprintf(" done, %d in flight", s.InFlight)
	if s.Failed > 0 {
		text += fmt.Sprintf(", %d failed", s.Failed)
	}
	if s.Cancelled > 0 {
		text += fmt.Sprintf(", %d cancelled", s.Cancelled)
	}
	if seconds := elapsed.Seconds(); seconds > 0 {
		text += fmt.Sprintf(", %.1f tokens/s", float64(s.OutputTokens)/seconds)
	}
	return text + fmt.Sprintf(", %v", elapsed.Round(time.Second))
}

// share is how much of the run is over, by requests or by time, whichever is further; 0 <= share <= 1.
func (s Status) share(now time.Time) float64 {
	share := 0.0
	if s.Planned > 0 {
		share = float64(s.Done()) / float64(s.Planned)
	}
	if s.Duration > 0 && !s.Started.IsZero() {
		share = max(share, float64(now.Sub(s.Started))/float64(s.Duration))
	}
	return min(share, 1)
}

// Watch writes a run's progress until stop is closed: a bar that replaces itself on a terminal of so many columns, a plain
// line at each tick when columns is 0.
func Watch(w io.Writer, columns int, tick <-chan time.Time, stop <-chan struct{}, status func() Status) {
	for {
		select {
		case <-stop:
			if columns > 0 {
				fmt.Fprint(w, "\r\x1b[K")
			}
			return
		case now := <-tick:
			if columns > 0 {
				fmt.Fprintf(w, "\r%s\x1b[K", status().Bar(now, columns))
			} else {
				fmt.Fprintln(w, status().Line(now))
			}
		}
	}
}
