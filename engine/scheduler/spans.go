package scheduler

import (
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// Tracer makes spans of the requests that are traced.
type Tracer interface {
	// Follow gives the spans of a request whose timeline started just now; nil when it is not traced.
	Follow(r *request.Request, started ledger.Instant) Spans
}

// Spans is told what happens to one traced request, in order. Calls come from the scheduler's goroutine and must not block.
type Spans interface {
	// Slice gets a stage, a lap or a detail that has ended; in is the stage that the request is in from now on.
	Slice(s ledger.Slice, in ledger.Stage)
	// Scheduled gets a batch that has the request: its number, its requests, and whether they decode, prefill or come with
	// their KV (prebuilt).
	Scheduled(at ledger.Instant, batch int64, size int, mode string)
	// Close is the last call: the request has ended.
	Close(at ledger.Instant, f request.Finish)
}

// The modes of a batch, as Scheduled tells them.
const (
	modePrefill  = "prefill"
	modeDecode   = "decode"
	modePrebuilt = "prebuilt"
)

// trace begins the spans of a sequence, if it is traced. Its timeline has started.
func (s *Scheduler) trace(q *sequence) {
	if s.deps.Tracer == nil || q.req.Trace == nil {
		return
	}
	if q.spans = s.deps.Tracer.Follow(q.req, q.timeline.Started()); q.spans != nil {
		s.traced++
	}
}

// traceEnd ends the spans of a sequence that is finished.
func (s *Scheduler) traceEnd(q *sequence, at ledger.Instant, f request.Finish) {
	if q.spans != nil {
		q.spans.Close(at, f)
		q.spans = nil
		s.traced--
	}
}

// traceStart reads the clock at the begin of a launch, if anybody will ask for it.
func (s *Scheduler) traceStart() ledger.Instant {
	if s.traced == 0 {
		return 0
	}
	return s.deps.Clock.Now()
}

// traceLaunch tells the traced sequences of a step that they are in it, and what deciding it has cost since began.
func (s *Scheduler) traceLaunch(st *launched, began ledger.Instant) {
	if s.traced == 0 {
		return
	}
	now := s.deps.Clock.Now()
	for _, i := range st.items {
		q := i.seq
		if q.spans == nil {
			continue
		}
		mode := modePrefill
		if i.decode {
			mode = modeDecode
		}
		q.spans.Scheduled(began, st.number, len(st.items), mode)
		q.spans.Slice(ledger.Slice{Stage: ledger.StageRunBatchCPU, Start: began, End: now}, q.timeline.Stage())
	}
}

// tracePrebuilt tells a sequence that it runs with the KV that came from its peer.
func (s *Scheduler) tracePrebuilt(q *sequence) {
	if q.spans != nil {
		q.spans.Scheduled(q.timeline.Entered(), s.flight.last, 1, modePrebuilt)
	}
}
