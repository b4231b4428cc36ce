package trace

import (
	"encoding/hex"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// Thread makes the spans of one request in one thread: slices for its stages and laps, and the thread's own span around
// them. One goroutine uses it, and calls Close once, after everything else. A nil Thread makes none, and all its methods may
// be called.
//
// All its times are converted with the offset between monotonic and wall clock that it found at its begin, so a span is
// exactly as long as what the timeline measured, and slices that follow each other share their ends.
//
// Invariants: root.Valid(); level > 0; slices come in the order of their ends.
type Thread struct {
	tracer *Tracer
	root   traceparent.Context // the span above the thread's
	remote bool                // another process made the root
	level  int
	module string
	id     traceparent.SpanID // of the thread span

	anchor ledger.Instant // the begin, and its wall time
	wall   int64

	previous       traceparent.SpanID // the newest slice that stands for a stage; zero: none
	previousRemote bool               // another process made it

	open    traceparent.SpanID // of the slice of the current stage, which has not ended; zero: nothing has asked for it
	lapped  bool               // the current stage had a lap
	lapEnd  ledger.Instant     // of the last one, valid when lapped
	decodes int64              // decode steps so far

	events []event // not in a span yet, in order
}

// maxEvents bounds the events that wait for a span.
const maxEvents = 128

// unix gives the Unix nanoseconds of an instant, as the spans have it.
func (t *Thread) unix(i ledger.Instant) int64 { return t.wall + i.Sub(t.anchor) }

// Slice makes the span of what has ended: a stage, a lap of the current stage, or a detail within it. in is the stage that the
// request is in from now on.
func (t *Thread) Slice(s ledger.Slice, in ledger.Stage) {
	if t != nil { // here and in others: small enough to be inlined, so that no trace costs a comparison
		t.slice(s, in)
	}
}

func (t *Thread) slice(s ledger.Slice, in ledger.Stage) {
	info := s.Stage.Info()
	switch {
	case info.Detail:
		t.nested(info, s.Start, s.End, in.Info().Level, nil)
		return
	case info.Parent != ledger.StageNone:
		t.lap(s, info)
		return
	case !info.Exposed:
		t.turn()
		return
	}
	if rest := restOf(s.Stage); rest != ledger.StageNone && t.lapped && t.lapEnd < s.End {
		t.nested(rest.Info(), t.lapEnd, s.End, info.Level, nil)
	}
	if info.Level <= t.level {
		id := t.current()
		t.emit(span{name: info.Name, id: id, parent: t.id, link: t.previous, linkRemote: t.previousRemote}, s.Start, s.End, nil)
		t.previous, t.previousRemote = id, false
	}
	t.turn()
	if requeued(s.Stage, in) {
		t.note(LevelStages, event{name: "retract", at: t.unix(s.End)})
	}
}

// requeued reports whether a move leads back to the waiting queue.
func requeued(from, to ledger.Stage) bool {
	switch to {
	case ledger.StagePrefillWaiting:
		return from == ledger.StagePrefillForward || from == ledger.StageDecodeWaiting || from == ledger.StageDecodeForward
	case ledger.StageDecodeWaiting:
		return from == ledger.StageDecodeForward
	default:
		return false
	}
}

// restOf is the name of what is left of a stage after its last lap, if it has one.
func restOf(stage ledger.Stage) ledger.Stage {
	switch stage {
	case ledger.StagePrefillForward:
		return ledger.StageChunkedPrefill
	case ledger.StageDecodeBootstrap:
		return ledger.StageDecodeKVAllocationWait
	default:
		return ledger.StageNone
	}
}

// turn begins the next stage.
func (t *Thread) turn() { t.open, t.lapped = traceparent.SpanID{}, false }

func (t *Thread) lap(s ledger.Slice, info ledger.StageInfo) {
	var own []attribute
	if s.Stage == ledger.StageDecodeLoop {
		if info.Level <= t.level {
			own = []attribute{integer("decode_ct", t.decodes)}
		}
		t.decodes++
	}
	t.nested(info, s.Start, s.End, info.Parent.Info().Level, own)
	t.lapped, t.lapEnd = true, s.End
}

// nested makes a span below that of the current stage, whose level is given.
func (t *Thread) nested(info ledger.StageInfo, start, end ledger.Instant, stageLevel int, own []attribute) {
	if info.Level > t.level {
		return
	}
	parent := t.id
	if stageLevel > LevelOff && stageLevel <= t.level {
		parent = t.current()
	}
	t.emit(span{name: info.Name, id: traceparent.NewSpanID(), parent: parent}, start, end, own)
}

// current is the id of the current stage's slice.
func (t *Thread) current() traceparent.SpanID {
	if t.open == (traceparent.SpanID{}) {
		t.open = traceparent.NewSpanID()
	}
	return t.open
}

// emit hands a slice to the export, with the events that fall into it.
func (t *Thread) emit(s span, start, end ledger.Instant, own []attribute) {
	s.trace, s.state = t.root.TraceID, t.root.State
	s.start, s.end = t.unix(start), t.unix(end)
	s.attributes[1] = own
	if len(t.events) > 0 {
		s.events = t.within(s.start, s.end)
	}
	t.tracer.process.out.queue.put(s)
}

// within takes the events of [from, to).
func (t *Thread) within(from, to int64) (taken []event) {
	if t.events[0].at >= from && t.events[len(t.events)-1].at < to { // they are in order
		taken, t.events = t.events, nil
		return taken
	}
	kept := t.events[:0]
	for _, e := range t.events {
		if from <= e.at && e.at < to {
			taken = append(taken, e)
			continue
		}
		kept = append(kept, e)
	}
	clear(t.events[len(kept):])
	t.events = kept
	return taken
}

// Scheduled notes that the request is in a batch: the number of the batch, how many requests it has, and what it does
// (prefill, decode or prebuilt).
func (t *Thread) Scheduled(at ledger.Instant, batch int64, size int, mode string) {
	if t != nil && t.level >= LevelSteps {
		t.note(LevelSteps, event{name: "schedule", at: t.unix(at), batch: batch, size: size, mode: mode})
	}
}

// note keeps an event until a span of its time ends.
func (t *Thread) note(level int, e event) {
	if level <= t.level && len(t.events) < maxEvents {
		t.events = append(t.events, e)
	}
}

// Close ends the thread's span. f says how the request ended; of one that goes on elsewhere it is the zero Finish. An abort
// makes the span an error and is described by its attributes.
func (t *Thread) Close(at ledger.Instant, f request.Finish) {
	if t != nil {
		t.close(at, f)
	}
}

func (t *Thread) close(at ledger.Instant, f request.Finish) {
	s := span{
		name: t.tracer.name, trace: t.root.TraceID, id: t.id, state: t.root.State, parent: t.root.SpanID, parentRemote: t.remote,
		start: t.wall, end: t.unix(at), attributes: [2][]attribute{t.tracer.attributes}, events: t.events,
	}
	s.failure, s.attributes[1] = failure(f)
	t.events = nil
	t.tracer.process.out.queue.put(s)
}

// failure describes an abort; empty for an end that is none.
func failure(f request.Finish) (status string, attributes []attribute) {
	if f.Type != request.FinishAbort {
		return "", nil
	}
	status = string(f.Outcome)
	if f.Message != "" {
		status += ": " + f.Message
	}
	return status, []attribute{text("abort_info.outcome", string(f.Outcome)), text("abort_info.message", f.Message)}
}

// Carry gives what another thread needs to go on; nil when the request is not traced. The slice that the next one follows
// is the one of the current stage, given here, if that stage has a span, else the newest that ended.
func (t *Thread) Carry(current ledger.Stage) *request.Trace {
	if t == nil {
		return nil
	}
	return t.carry(current)
}

func (t *Thread) carry(current ledger.Stage) *request.Trace {
	c := &request.Trace{Parent: t.root.String(), State: t.root.State, Level: t.level, Module: t.module}
	previous := t.previous
	if info := current.Info(); info.Exposed && info.Level <= t.level {
		previous = t.current()
	}
	if previous != (traceparent.SpanID{}) {
		c.Previous = previous.String()
	}
	return c
}

func parseSpanID(text string) (id traceparent.SpanID, ok bool) {
	if len(text) != hex.EncodedLen(len(id)) {
		return traceparent.SpanID{}, false
	}
	if _, err := hex.Decode(id[:], []byte(text)); err != nil {
		return traceparent.SpanID{}, false
	}
	return id, id != traceparent.SpanID{}
}
