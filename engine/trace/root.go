package trace

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// Beginning is what a root span is made from.
type Beginning struct {
	RID     string
	Module  string              // ModuleRequest, …
	Parent  traceparent.Context // that the client sent; not Valid: none
	Room    int64               // of a prefill or decode engine; 0: none
	Started ledger.Instant      // the request's arrival
}

// Root is the whole trace of a sequence in the API process: its root span and the thread span of that process. One goroutine
// uses it; End ends both. A nil Root makes none, and all its methods may be called. Other processes have Threads below it,
// which cannot end it.
type Root struct {
	*Thread // closed by Dispatched, or else by End

	beginning Beginning
	span      traceparent.SpanID
	closed    bool // the thread's span is out
	ended     bool // the root's span is out
}

// Begin makes the root of a sequence; nil when it is not traced: tracing is off, its level is 0, its module is not among
// those that are traced, or the client said that its own trace is not recorded.
func (t *Tracer) Begin(b Beginning) *Root {
	if !t.Enabled() {
		return nil
	}
	level := t.process.Level()
	if level <= LevelOff || // it has changed just now
		!t.process.cfg.traces(b.Module) || b.Parent.Valid() && !b.Parent.Sampled {
		return nil
	}
	context := traceparent.Context{TraceID: b.Parent.TraceID, SpanID: traceparent.NewSpanID(), Sampled: true, State: b.Parent.State}
	if !b.Parent.Valid() {
		context.TraceID = traceparent.NewTraceID()
	}
	return &Root{Thread: t.thread(context, level, b.Module, b.Started), beginning: b, span: context.SpanID}
}

// Slice makes the span of a stage of the API process that has ended; the request is in another from now on.
func (r *Root) Slice(s ledger.Slice, in ledger.Stage) {
	if r != nil && !r.closed {
		r.Thread.slice(s, in)
	}
}

// Carry gives what the ranks need to go on; nil when the sequence is not traced. It is asked for in current.
func (r *Root) Carry(current ledger.Stage) *request.Trace {
	if r == nil {
		return nil
	}
	return r.Thread.carry(current)
}

// ID gives the trace's id, 32 hexadecimal digits; empty for a sequence that is not traced.
func (r *Root) ID() string {
	if r == nil {
		return ""
	}
	return r.root.TraceID.String()
}

// Dispatched makes the span of the dispatch that has ended, which was the last that the API process's thread had to do.
func (r *Root) Dispatched(s ledger.Slice) {
	if r != nil {
		r.dispatched(s)
	}
}

func (r *Root) dispatched(s ledger.Slice) {
	if !r.closed {
		r.Thread.slice(s, ledger.StageAwaitOutput)
		r.close(s.End, request.Finish{})
	}
}

func (r *Root) close(at ledger.Instant, f request.Finish) {
	if !r.closed {
		r.closed = true
		r.Thread.close(at, f)
	}
}

// Answer is what a root span says of a sequence besides its times.
type Answer struct {
	Model      string
	Prompt     int // tokens
	Cached     int // of them
	Completion int // tokens
	Choices    int // that the client asked for
	Sampling   request.Sampling
	Finish     request.Finish // of Type abort also when the ranks never answered
}

// End ends the root span, now that the timeline has ended, or as it is when the sequence was lost. Later calls do nothing.
func (r *Root) End(timeline *ledger.Timeline, now ledger.Instant, a Answer) {
	if r == nil || r.ended {
		return
	}
	r.ended = true
	at, done := timeline.Finished()
	if !done {
		at = now
	}
	r.close(at, a.Finish)
	s := span{
		name: rootName(r.tracer.role, r.beginning.RID), trace: r.root.TraceID, id: r.span, state: r.root.State,
		parent: r.beginning.Parent.SpanID, parentRemote: r.beginning.Parent.Valid(),
		start: r.wall, end: r.unix(at),
	}
	about := []attribute{text("rid", r.beginning.RID), text("module", "sglang::"+r.beginning.Module)}
	if r.beginning.Room != 0 {
		about = append(about, text("bootstrap_room", "0x"+strconv.FormatUint(uint64(r.beginning.Room), 16)))
	}
	s.attributes[0] = append(append(about, latencies(timeline)...), a.attributes(r.beginning.RID)...)
	s.failure, s.attributes[1] = failure(a.Finish)
	r.tracer.process.out.queue.put(s)
}

// latencies are the intervals of a timeline whose ends both exist, in seconds.
func latencies(t *ledger.Timeline) []attribute {
	var list []attribute
	add := func(key string, nanos int64) { list = append(list, number("gen_ai.latency."+key, float64(nanos)/1e9)) }
	first, answered := t.FirstToken()
	dispatched, handed := t.At(ledger.StageAwaitOutput)
	finished, done := t.Finished()
	if answered {
		add("time_to_first_token", first.Sub(t.Started()))
	}
	if done {
		add("e2e", finished.Sub(t.Started()))
	}
	if answered && done {
		add("time_in_model_decode", finished.Sub(first))
	}
	if handed && done {
		add("time_in_model_inference", finished.Sub(dispatched))
	}
	if handed && answered {
		add("time_in_model_prefill", first.Sub(dispatched))
	}
	return list
}

func (a Answer) attributes(rid string) []attribute {
	list := []attribute{
		integer("gen_ai.usage.completion_tokens", int64(a.Completion)),
		integer("gen_ai.usage.prompt_tokens", int64(a.Prompt)),
		integer("gen_ai.usage.cached_tokens", int64(a.Cached)),
		text("gen_ai.request.id", rid),
		integer("gen_ai.request.max_tokens", int64(a.Sampling.MaxNewTokens)),
		number("gen_ai.request.top_p", decimal(a.Sampling.TopP)),
		integer("gen_ai.request.top_k", int64(a.Sampling.TopK)),
		number("gen_ai.request.temperature", decimal(a.Sampling.Temperature)),
		integer("gen_ai.request.n", int64(a.Choices)),
		text("gen_ai.response.model", a.Model),
	}
	if reasons, err := json.Marshal([]request.FinishType{a.Finish.Type}); err == nil { // texts always encode
		list = append(list, text("gen_ai.response.finish_reasons", string(reasons)))
	}
	return list
}

// decimal gives the number that a client wrote, which 32 bits rounded: 0.7 and not 0.699999988079071.
func decimal(v float32) float64 {
	d, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
	if err != nil { // it is what a float was formatted as
		return float64(v)
	}
	return d
}

// shownRID is how much of a rid a root's name has.
const shownRID = 8

// rootName is the role, empty on a unified engine, and the begin of the rid.
func rootName(role, rid string) string {
	id := plainRID(rid)
	return role + " Req " + strings.ToValidUTF8(id[:min(shownRID, len(id))], "")
}

// maxNumbering is how many digits the number of a sequence within its request may have.
const maxNumbering = 4

// plainRID gives the part of a rid that tells requests apart: what follows the last underscore, behind which a front end
// with several workers puts its id, but not the number behind it that the sequences of one request have.
func plainRID(rid string) string {
	if at := strings.LastIndexByte(rid, '_'); at > 0 && isNumbering(rid[at+1:]) {
		rid = rid[:at]
	}
	return rid[strings.LastIndexByte(rid, '_')+1:]
}

func isNumbering(text string) bool {
	if text == "" || len(text) > maxNumbering {
		return false
	}
	return strings.Trim(text, "0123456789") == ""
}
