package trace

import (
	"fmt"
	"strings"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// Label says what a thread does; an engine's role goes before it.
type Label string

// The labels.
const (
	Tokenizer    Label = "Tokenizer"
	DPController Label = "DP Controller"
	Scheduler    Label = "Scheduler"
)

// Place is which thread of an engine makes spans.
type Place struct {
	Label  Label
	Role   string // prefill or decode; empty on a unified engine
	TPRank *int   // nil where there is none
	PPRank *int
	DPRank *int
}

// label is the label as it is shown.
func (p Place) label() string {
	if p.Role == "" {
		return string(p.Label)
	}
	role := strings.ToUpper(p.Role[:1]) + p.Role[1:]
	if p.Label == Tokenizer {
		return role + string(p.Label)
	}
	return role + " " + string(p.Label)
}

// Tracer makes the spans of one thread of a process. A nil Tracer makes none, and all its methods may be called. Safe for
// concurrent use.
type Tracer struct {
	process    *Process
	role       string
	name       string      // of thread spans
	attributes []attribute // of thread spans
}

// Tracer gives the tracer of a thread.
func (p *Process) Tracer(place Place) *Tracer {
	if p == nil {
		return nil
	}
	t := &Tracer{process: p, role: place.Role}
	name := place.label()
	for _, r := range []struct {
		name, key string
		rank      *int
	}{{"TP", "tp_rank", place.TPRank}, {"PP", "pp_rank", place.PPRank}, {"DP", "dp_rank", place.DPRank}} {
		if r.rank != nil {
			name += fmt.Sprintf(" [%s %d] ", r.name, *r.rank)
			t.attributes = append(t.attributes, integer(r.key, int64(*r.rank)))
		}
	}
	t.name = fmt.Sprintf("%s(host:%s | pid:%d)", name, p.host[:min(8, len(p.host))], p.pid)
	t.attributes = append(t.attributes, text("host_id", p.host), integer("pid", int64(p.pid)), text("thread_label", place.label()))
	return t
}

// Enabled reports whether a request that begins now may be traced.
func (t *Tracer) Enabled() bool { return t != nil && t.process.level.Load() > LevelOff }

// Follow begins the spans that this thread makes of a request which another thread sent; nil when it is not traced. started
// is when this thread's timeline of it began.
func (t *Tracer) Follow(r *request.Request, started ledger.Instant) *Thread {
	if t == nil || r.Trace == nil {
		return nil
	}
	return t.follow(r, started)
}

func (t *Tracer) follow(r *request.Request, started ledger.Instant) *Thread {
	if r.Trace.Level <= LevelOff || !t.process.cfg.traces(r.Trace.Module) {
		return nil
	}
	root, ok := traceparent.Parse(r.Trace.Parent, r.Trace.State)
	if !ok {
		return nil
	}
	th := t.thread(root, r.Trace.Level, r.Trace.Module, started)
	th.remote = true
	if span, ok := parseSpanID(r.Trace.Previous); ok {
		th.previous, th.previousRemote = span, true
	}
	return th
}

// thread begins a thread span below a root.
func (t *Tracer) thread(root traceparent.Context, level int, module string, started ledger.Instant) *Thread {
	return &Thread{
		tracer: t, root: root, level: level, module: module, id: traceparent.NewSpanID(),
		anchor: started, wall: t.process.clock.Wall(started),
	}
}
