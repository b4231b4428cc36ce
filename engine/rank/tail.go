package rank

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

const (
	tailLines     = 8
	tailLineBytes = 400
)

// tailWriter passes a child's standard error on and remembers what may say why it died: the last lines, without those of
// an orderly log; of a panic its beginning, not the end of its stacks.
type tailWriter struct {
	to io.Writer

	mu     sync.Mutex
	lines  []string // complete ones, at most tailLines
	open   []byte   // the line that has no end yet, at most tailLineBytes of it
	frozen bool     // lines begins with a panic: no later line pushes it out
}

func newTailWriter(to io.Writer) *tailWriter { return &tailWriter{to: to} }

// Write never fails: a log that nobody can read must not end the rank.
func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = t.to.Write(p)
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		if room := tailLineBytes - len(t.open); room > 0 {
			t.open = append(t.open, line[:min(len(line), room)]...)
		}
		if whole {
			t.endLine()
		}
		rest = after
	}
	return len(p), nil
}

func (t *tailWriter) endLine() {
	line := string(t.open)
	t.open = t.open[:0]
	if !t.frozen && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) {
		t.lines, t.frozen = nil, true
	}
	switch {
	case line == "" || orderly(line) || t.frozen && len(t.lines) == tailLines:
	default:
		t.lines = append(t.lines, line)
		t.lines = t.lines[max(0, len(t.lines)-tailLines):]
	}
}

// orderly reports whether a line is the log of something that is no error.
func orderly(line string) bool {
	return strings.HasPrefix(line, "time=") && !strings.Contains(line, " level=ERROR ")
}

// tail gives the last lines, oldest first.
func (t *tailWriter) tail() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := append([]string(nil), t.lines...)
	if len(t.open) > 0 && !t.frozen {
		lines = append(lines, string(t.open))
	}
	return lines
}
