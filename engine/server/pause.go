package server

import (
	"context"
	"net/http"
	"time"

	"github.com/sluice-dev/sluice/engine/request"
)

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
