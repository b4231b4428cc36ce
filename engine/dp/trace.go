package dp

import (
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/trace"
)

// Options are what a controller is given besides its ranks.
type Options struct {
	Tracer *trace.Tracer // makes spans of the dispatches; nil: nobody does
	Clock  ledger.Clock  // of the tracer's process; not needed without one
}

// dispatch is one request on its way to its DP rank.
type dispatch struct {
	request  *request.Request // as the DP rank gets it
	timeline ledger.Timeline  // valid with spans
	spans    *trace.Thread    // nil: it is not traced
}

// begin starts the dispatch of a request. A traced one goes on with this dispatch as the span before its next.
func (c *Controller) begin(r *request.Request) dispatch {
	d := dispatch{request: r}
	if c.options.Tracer == nil || r.Trace == nil {
		return d
	}
	d.timeline.Start(c.options.Clock, ledger.DPController)
	if d.spans = c.options.Tracer.Follow(r, d.timeline.Started()); d.spans != nil {
		own := *r // the caller's stays as it is
		own.Trace = d.spans.Carry(ledger.StageDPCDispatch)
		d.request = &own
	}
	return d
}

// end ends the dispatch: the DP rank has the request, or nobody does, for the reason given.
func (d *dispatch) end(refusal string, err error) {
	if d.spans == nil {
		return
	}
	slice := d.timeline.Move(ledger.StageDone)
	d.spans.Slice(slice, ledger.StageDone)
	var f request.Finish
	switch {
	case err != nil:
		f = request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeInternal, Message: err.Error()}
	case refusal != "":
		f = request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeInvalid, Message: refusal}
	}
	d.spans.Close(slice.End, f)
}
