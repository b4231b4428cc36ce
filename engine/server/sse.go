package server

import (
	"context"
	"net/http"
)

// eventStream writes server-sent events. The header goes out with the first event, so that a refusal before it still has
// its status.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	lost    context.CancelFunc // called when the client takes nothing any more
	begun   bool
}

// newEventStream gives a stream and the context of its work, which ends with the client. The caller calls end.
func (s *Server) newEventStream(w http.ResponseWriter, r *http.Request) (events *eventStream, ctx context.Context, end context.CancelFunc) {
	ctx, end = context.WithCancel(r.Context())
	return &eventStream{w: w, control: http.NewResponseController(w), lost: end}, ctx, end
}

// send writes one event and flushes it to the client.
func (s *eventStream) send(value any) {
	data, err := encodeValue(value)
	if err != nil {
		s.fail(failure(http.StatusInternalServerError, codeInternal, "encode the answer: %v", err))
		return
	}
	s.write(data)
}

// done writes the end that OpenAI's clients wait for.
func (s *eventStream) done() { s.write([]byte("[DONE]")) }

// fail reports an error: as the answer when nothing was sent yet, else as the stream's last event.
func (s *eventStream) fail(err *apiError) {
	if !s.begun {
		writeError(s.w, err)
		return
	}
	s.send(err.event())
}

func (s *eventStream) write(data []byte) {
	if !s.begun {
		s.begun = true
		header := s.w.Header()
		header.Set("Content-Type", "text/event-stream; charset=utf-8")
		header.Set("Cache-Control", "no-cache")
		header.Set("X-Accel-Buffering", "no")
		s.w.WriteHeader(http.StatusOK)
	}
	event := make([]byte, 0, len(data)+8)
	event = append(event, "data: "...)
	event = append(event, data...)
	event = append(event, '\n', '\n')
	_, err := s.w.Write(event)
	if err == nil {
		err = s.control.Flush()
	}
	if err != nil {
		s.lost()
	}
}
