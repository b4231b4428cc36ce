package server

import (
	"encoding/json"
	"net/http"
)

// eventStream writes server-sent events. The header goes out with the first event, so that a refusal before it still has
// its status. Write errors are dropped on purpose: they mean that the client has gone, which the request's context says.
type eventStream struct {
	w       http.ResponseWriter
	flusher *http.ResponseController
	begun   bool
}

func newEventStream(w http.ResponseWriter) *eventStream {
	return &eventStream{w: w, flusher: http.NewResponseController(w)}
}

// send writes one event and flushes it to the client.
func (s *eventStream) send(value any) {
	data, err := json.Marshal(value)
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
	_, _ = s.w.Write(event)
	_ = s.flusher.Flush()
}
