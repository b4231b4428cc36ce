package rank

import (
	"bytes"
	"io"
	"sync"
)

const (
	tailLines     = 8
	tailLineBytes = 400
)

// tailWriter passes a child's standard error on and remembers its last lines, for the error that names its death.
type tailWriter struct {
	to io.Writer

	mu    sync.Mutex
	lines []string // complete ones, at most tailLines
	open  []byte   // the line that has no end yet, at most tailLineBytes of it
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
	if len(t.open) > 0 {
		t.lines = append(t.lines, string(t.open))
		t.lines = t.lines[max(0, len(t.lines)-tailLines):]
	}
	t.open = t.open[:0]
}

// tail gives the last lines, oldest first.
func (t *tailWriter) tail() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := append([]string(nil), t.lines...)
	if len(t.open) > 0 {
		lines = append(lines, string(t.open))
	}
	return lines
}
