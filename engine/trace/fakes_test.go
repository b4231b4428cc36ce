package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// newKept makes a process that keeps its spans instead of exporting them.
func newKept(clock *ledgertest.Clock, level int) *Process {
	cfg := DefaultConfig()
	cfg.Enabled = true
	p := &Process{cfg: cfg, clock: clock, out: &exporter{queue: newQueue(QueueSize, 64)}, host: "0123456789abcdef", pid: 7}
	p.level.Store(int64(level))
	return p
}

// kept takes the spans that a process has made.
func kept(p *Process) (spans []span) {
	for {
		batch, _, _, _ := p.out.queue.take()
		if len(batch) == 0 {
			return spans
		}
		spans = append(spans, batch...)
	}
}

// draw gives spans as a text: one a line below its parent, in order of begin and then the longer first, with the begin and the
// end in milliseconds since zero, the name of the span that it is linked to, and its events.
func draw(spans []span, zero int64) string {
	names := map[traceparent.SpanID]string{}
	for _, s := range spans {
		names[s.id] = s.name
	}
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b span) int {
		if a.start != b.start {
			return int(a.start/1e6 - b.start/1e6)
		}
		return int(b.end/1e6 - a.end/1e6)
	})
	var b strings.Builder
	var below func(parent traceparent.SpanID, indent string)
	below = func(parent traceparent.SpanID, indent string) {
		for _, s := range spans {
			if s.parent != parent {
				continue
			}
			fmt.Fprintf(&b, "%s%s %d-%d", indent, s.name, (s.start-zero)/1e6, (s.end-zero)/1e6)
			if s.link != (traceparent.SpanID{}) {
				name, there := names[s.link]
				if !there {
					name = s.link.String()
				}
				fmt.Fprintf(&b, " <- %s", name)
				if s.linkRemote {
					b.WriteString(" (remote)")
				}
			}
			for _, a := range s.attributes[1] {
				fmt.Fprintf(&b, " %s", shown(a))
			}
			for _, e := range s.events {
				fmt.Fprintf(&b, " {%s %d", e.name, (e.at-zero)/1e6)
				for _, a := range e.attributes() {
					fmt.Fprintf(&b, " %s", shown(a))
				}
				b.WriteString("}")
			}
			if s.failure != "" {
				fmt.Fprintf(&b, " FAILED %q", s.failure)
			}
			b.WriteString("\n")
			below(s.id, indent+"  ")
		}
	}
	for _, s := range spans {
		if _, inside := names[s.parent]; !inside {
			below(s.parent, "")
			break
		}
	}
	return b.String()
}

func shown(a attribute) string {
	switch a.kind {
	case kindInteger:
		return fmt.Sprintf("%s=%d", a.key, a.integer)
	case kindNumber:
		return fmt.Sprintf("%s=%g", a.key, a.number)
	default:
		return fmt.Sprintf("%s=%q", a.key, a.text)
	}
}
