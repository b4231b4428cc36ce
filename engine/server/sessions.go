package server

import (
	"math"

	"github.com/sluice-dev/sluice/engine/request"
)

// readTurn reads session_params; nil when the request is no turn of a session. A session goes one turn at a time, so the
// request must have one sequence.
func readTurn(o *object, sequences int) *request.Turn {
	if o.has("session_id") && o.has("session_params") {
		o.failField("session_id", "and session_params exclude each other: send session_params for a turn of an open session")
	}
	o.string("session_id", "") // names a conversation for routers; it changes no prompt
	if !o.has("session_params") {
		return nil
	}
	inner := o.object("session_params")
	turn := &request.Turn{
		SessionID: inner.string("id", ""), RID: inner.string("rid", ""), Replace: inner.boolean("replace", false),
		DropPreviousOutput: inner.boolean("drop_previous_output", false),
	}
	if turn.SessionID == "" {
		inner.failField("id", "is missing: send the id that /open_session gave")
	}
	if inner.has("offset") {
		offset := int(inner.integerIn("offset", 0, 0, math.MaxInt32))
		turn.Offset = &offset
	}
	if sequences > 1 {
		o.failField("session_params", "is for one sequence, not %d: a session goes one turn at a time; send n=1 and one prompt", sequences)
	}
	return turn
}
