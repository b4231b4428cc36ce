package server

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// flushCache empties the prefix cache when the rank is idle, or becomes idle within ?timeout= seconds.
func (s *Server) flushCache(w http.ResponseWriter, r *http.Request) {
	e, err := s.running()
	if err != nil {
		writeError(w, err)
		return
	}
	wait := 0.0
	if text := r.URL.Query().Get("timeout"); text != "" {
		seconds, parseErr := strconv.ParseFloat(text, 64)
		if parseErr != nil || !(seconds >= 0 && seconds <= 3600) {
			writeError(w, badField("timeout", "must be seconds from 0 to 3600, not %q", clip(text)))
			return
		}
		wait = seconds
	}
	if flushErr := s.flushWithin(r.Context(), e, time.Duration(wait*float64(time.Second))); flushErr != nil {
		writeError(w, controlError(codeNotFlushed, "the cache is not flushed", flushErr))
		return
	}
	writeText(w, "Cache flushed.\n")
}

// flushPoll is how often a flush that has time left is tried again.
const flushPoll = 100 * time.Millisecond

func (s *Server) flushWithin(ctx context.Context, e *engine, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		err := e.rank.Flush(ctx)
		if err == nil {
			return nil
		}
		again := time.NewTimer(flushPoll)
		select {
		case <-again.C:
		case <-deadline.C:
			again.Stop()
			return err
		case <-ctx.Done():
			again.Stop()
			return err
		}
	}
}

// abortRequest ends the requests whose rid begins with the given one, or all. One that does not exist is no error: it may
// have ended just now.
func (s *Server) abortRequest(w http.ResponseWriter, r *http.Request) {
	e, err := s.running()
	if err != nil {
		writeError(w, err)
		return
	}
	o, err := s.body(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	rid, all := o.string("rid", ""), o.boolean("abort_all", false)
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	if rid == "" && !all {
		writeError(w, badField("rid", "is missing: send the request's rid or a prefix of it, or abort_all true"))
		return
	}
	if all {
		rid = ""
	}
	if len(s.doom(rid)) > 0 || all {
		if abortErr := e.rank.AbortAll(rid); abortErr != nil {
			writeError(w, failure(http.StatusBadGateway, codeEngineFailed, "abort at the rank: %v", abortErr))
			return
		}
		s.events.Aborted()
	}
	w.WriteHeader(http.StatusOK)
}
