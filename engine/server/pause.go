package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// controlAnswer is the body of control routes that say what they did.
type controlAnswer struct {
	Message string `json:"message"`
	Status  string `json:"status"` // ok
}

// controlBody reads the body of a control route, which may be empty.
func (s *Server) controlBody(w http.ResponseWriter, r *http.Request) (*engine, *object, *apiError) {
	e, err := s.running()
	if err != nil {
		return nil, nil, err
	}
	data, err := s.readBody(w, r)
	if err != nil {
		return nil, nil, err
	}
	if len(data) == 0 {
		data = []byte("{}")
	}
	o, err := s.decode(data)
	return e, o, err
}

// controlError is the answer to a control call that failed: the ranks say no, which has the code refusal, or they have ended,
// or the time for the call has.
func controlError(refusal, what string, err error) *apiError {
	status, code := http.StatusBadRequest, refusal
	var lost *rank.LostError
	switch {
	case errors.As(err, &lost):
		status, code = http.StatusBadGateway, codeEngineFailed
	case errors.Is(err, context.Canceled):
		return clientGone()
	case errors.Is(err, context.DeadlineExceeded):
		status, code = http.StatusGatewayTimeout, string(request.OutcomeTimeout)
	}
	return failure(status, code, "%s: %s", what, strings.ReplaceAll(err.Error(), "\n", "; ")) // of joined errors
}

// pauseGeneration stops the engine's computing. With mode abort it answers when no request lives any more.
func (s *Server) pauseGeneration(w http.ResponseWriter, r *http.Request) {
	e, o, err := s.controlBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	mode := request.PauseMode(o.string("mode", string(request.PauseAbort)))
	switch mode {
	case request.PauseAbort, request.PauseRetract, request.PauseInPlace:
	default:
		o.failField("mode", "must be abort, retract or in_place, not %q", clip(string(mode)))
	}
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	var before []string
	if mode == request.PauseAbort {
		before = s.doom("")
	}
	if pauseErr := e.rank.Pause(r.Context(), mode); pauseErr != nil {
		writeError(w, controlError(codeRefused, "the engine does not pause", pauseErr))
		return
	}
	if mode == request.PauseAbort {
		s.events.Aborted()
		// The pause may have overtaken requests that were handed over before it; these aborts come behind them.
		for _, rid := range before {
			if abortErr := e.rank.Abort(rid, request.OutcomeAbortedOperator); abortErr != nil {
				writeError(w, controlError(codeRefused, "the engine is paused, but requests have not ended", abortErr))
				return
			}
		}
		if waitErr := s.ended(r.Context(), before); waitErr != nil {
			writeError(w, controlError(codeRefused, "the engine is paused, but requests have not ended", waitErr))
			return
		}
	}
	writeJSON(w, http.StatusOK, controlAnswer{"Generation paused successfully.", "ok"})
}

// endPoll is how often a pause looks whether requests have ended.
const endPoll = 20 * time.Millisecond

// ended waits until none of rids lives any more.
func (s *Server) ended(ctx context.Context, rids []string) error {
	for s.anyClaimed(rids) {
		again := time.NewTimer(endPoll)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return ctx.Err()
		}
	}
	return nil
}

// continueGeneration ends a pause.
func (s *Server) continueGeneration(w http.ResponseWriter, r *http.Request) {
	e, o, err := s.controlBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	o.boolean("torch_empty_cache", true) // there is no such cache; clients send it all the same
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	if continueErr := e.rank.Continue(r.Context()); continueErr != nil {
		writeError(w, controlError(codeRefused, "the engine does not continue", continueErr))
		return
	}
	writeJSON(w, http.StatusOK, controlAnswer{"Generation continued successfully.", "ok"})
}

// freezeGC collects garbage in every process, so that the next collections find less to do. Go's collector keeps no
// generations, so nothing can be frozen.
func (s *Server) freezeGC(w http.ResponseWriter, r *http.Request) {
	e, err := s.running()
	if err != nil {
		writeError(w, err)
		return
	}
	if collectErr := e.rank.Collect(r.Context()); collectErr != nil {
		writeError(w, controlError(codeRefused, "the garbage is not collected", collectErr))
		return
	}
	s.collect()
	writeText(w, "Garbage collected in all processes.\n")
}
