package server

import (
	"errors"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/sluice-dev/sluice/internal/bearer"
)

// countedWriter reports the status when the answer begins, and gives the client a time to take each piece of it: a write
// that blocks for longer fails, and so do all later ones.
type countedWriter struct {
	http.ResponseWriter
	started  func(status int)
	begun    bool
	patience time.Duration
	bodyDue  time.Time // until when the server may wait for a body that the handler leaves, before it writes
	due      time.Time // until when the whole answer must be taken; zero: as long as the client takes pieces of it
}

// allow sets the deadline of what is written next. Deadlines are the connection's, so they are by the operating system's
// clock. They stay when the request ends, for the last of an answer goes out after that; the next request sets its own.
func (w *countedWriter) allow() {
	from := time.Now()
	if from.Before(w.bodyDue) {
		from = w.bodyDue
	}
	until := from.Add(w.patience)
	if !w.due.IsZero() && w.due.Before(until) {
		until = w.due
	}
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(until) // not every server can
}

// SetWriteDeadline is for http.ResponseController: a handler may bound the time of its whole answer.
func (w *countedWriter) SetWriteDeadline(due time.Time) error {
	w.due = due
	w.allow()
	return nil
}

func (w *countedWriter) WriteHeader(status int) {
	w.allow()
	if !w.begun && status >= 200 {
		w.begun = true
		w.started(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *countedWriter) Write(data []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	w.allow()
	return w.ResponseWriter.Write(data)
}

// Unwrap lets http.ResponseController reach Flush.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// recover turns a panic of a handler into a 500, or into a broken connection when an answer has begun already.
func (s *Server) recover(w *countedWriter, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(cause)
	}
	s.log.Error("a handler panicked", "route", r.URL.Path, "panic", cause, "stack", string(debug.Stack()))
	if w.begun {
		panic(http.ErrAbortHandler)
	}
	w.begun = true // what no handler gave is not counted as a response
	writeError(w, panicked())
}

func panicked() *apiError {
	return failure(http.StatusInternalServerError, codeInternal, "the engine failed on this request; its log says why")
}

// authorized checks the bearer token against the key that guards the route.
func (s *Server) authorized(a access, r *http.Request) bool {
	key := ""
	switch a {
	case accessOpen:
	case accessUser:
		key = s.cfg.APIKey
	case accessAdmin:
		key = s.cfg.AdminAPIKey
		if key == "" {
			key = s.cfg.APIKey
		}
	}
	return bearer.Has(r, key)
}

// boundBody gives the client a time to send its body, whether the handler reads it or not: the HTTP server itself reads
// what a handler leaves before it answers. The deadline is of the connection, so it is by the operating system's clock;
// the server lifts it before the next request.
func (s *Server) boundBody(w *countedWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	w.bodyDue = time.Now().Add(s.cfg.ClientTimeout)
	_ = http.NewResponseController(w).SetReadDeadline(w.bodyDue) // not every server can
}

// body reads and decodes a request's body. A body over the limit is read to a few times the limit, so that a client that
// writes before it reads still sees the answer.
func (s *Server) body(w http.ResponseWriter, r *http.Request) (*object, *apiError) {
	data, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}
	return s.decode(data)
}

// decode reads a body's object.
func (s *Server) decode(data []byte) (*object, *apiError) {
	o, err := decodeObject(data)
	if o != nil {
		o.seen = s.fieldSeen
	}
	return o, err
}

func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	limit := s.cfg.MaxBodyBytes
	tooLarge := failure(http.StatusRequestEntityTooLarge, codeTooLarge, "the request body is larger than the %d bytes that --max-body-bytes allows", limit)
	if r.ContentLength > limit && r.Header.Get("Expect") != "" {
		return nil, tooLarge // the client waits for this answer before it sends
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, failure(http.StatusRequestTimeout, "", "the request body did not come within %v", s.cfg.ClientTimeout)
	case err != nil && r.Context().Err() != nil:
		return nil, clientGone()
	case err != nil:
		return nil, failure(http.StatusBadRequest, "", "read the request body: %v", err)
	case int64(len(data)) <= limit:
		// The body is whole; what is read from now on only tells when the client goes.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return data, nil
	}
	if _, err := io.CopyN(io.Discard, r.Body, 4*limit); !errors.Is(err, io.EOF) {
		w.Header().Set("Connection", "close")
	}
	return nil, tooLarge
}
