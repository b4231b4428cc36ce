package server

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strconv"
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
	runtime.GC()
	writeText(w, "Garbage collected in all processes.\n")
}

// writeText answers a person.
func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text))
}
