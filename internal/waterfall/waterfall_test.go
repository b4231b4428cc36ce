package waterfall

import (
	"strings"
	"testing"
)

func TestLine(t *testing.T) {
	for _, tc := range []struct {
		name, reason        string
		start, nanos, scale int64
		from, width         int
	}{
		{"half", "on the scale of the whole", 50, 50, 100, 24, 24},
		{"short", "it shows all the same", 10, 1, 1 << 40, 0, 1},
		{"short, at the end", "it shows there", 1 << 40, 1, 1 << 40, 47, 1},
		{"nothing", "what takes no time has no bar", 10, 0, 100, 4, 0},
		{"before the begin", "clocks of two hosts differ", -100, 150, 100, 0, 24},
		{"beyond the end", "", 50, 500, 100, 24, 24},
		{"no scale", "nothing to draw", 5, 5, 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			line := Line("x", tc.start, tc.nanos, tc.scale)
			want := strings.Repeat(" ", tc.from) + strings.Repeat("#", tc.width)
			_, bar, _ := strings.Cut(line, "|")
			if bar = strings.TrimSuffix(bar, "|\n"); len(bar) != columns || strings.TrimRight(bar, " ") != strings.TrimRight(want, " ") {
				t.Errorf("%s: %q, want %q", tc.reason, line, want)
			}
		})
	}
	if got := OneLine("a\nb\x7f\u009b31mé"); got != "a?b??31mé" {
		t.Errorf("%q", got)
	}
}
