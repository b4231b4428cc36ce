package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// step is what a scripted server does next: wait, then write.
type step struct {
	wait time.Duration
	text string
}

// scripted is a server inside a fake clock: it answers the n-th request with a script of that request. It counts what is in
// flight.
type scripted struct {
	script func(n int, body map[string]any) []step
	kind   string // content type; "": an event stream

	mu       sync.Mutex
	requests []map[string]any
	headers  []http.Header
	at       []time.Time
	now, top int
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	body := map[string]any{"path": r.URL.Path}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &body); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	n := len(s.requests)
	s.requests, s.at, s.headers = append(s.requests, body), append(s.at, time.Now()), append(s.headers, r.Header.Clone())
	s.now++
	s.top = max(s.top, s.now)
	s.mu.Unlock()

	read, write := io.Pipe()
	go func() {
		err := play(r.Context(), write, s.script(n, body))
		s.mu.Lock()
		s.now--
		s.mu.Unlock()
		write.CloseWithError(err)
	}()
	context.AfterFunc(r.Context(), func() { read.CloseWithError(r.Context().Err()) })
	kind := s.kind
	if kind == "" {
		kind = "text/event-stream; charset=utf-8"
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {kind}}, Body: read, Request: r,
	}, nil
}

// play writes a script; a text of "!" loses the connection.
func play(ctx context.Context, w io.Writer, script []step) error {
	for _, one := range script {
		timer := time.NewTimer(one.wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		if one.text == "!" {
			return io.ErrUnexpectedEOF
		}
		if _, err := io.WriteString(w, one.text); err != nil {
			return err
		}
	}
	return nil
}

func event(format string, args ...any) string {
	return "data: " + fmt.Sprintf(format, args...) + "\n\n"
}

const done = "data: [DONE]\n\n"

// completion is a stream of so many tokens: the first after first, the others each after gap, with usage at the end.
func completion(tokens int, first, gap time.Duration) []step {
	script := []step{{first, event(`{"choices":[{"text":"a","finish_reason":null}],"usage":null}`)}}
	for range tokens - 1 {
		script = append(script, step{gap, event(`{"choices":[{"text":"b","finish_reason":null}]}`)})
	}
	return append(script,
		step{0, event(`{"choices":[{"text":"","finish_reason":"length"}]}`)},
		step{0, event(`{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":4}}}`, tokens)},
		step{0, done})
}

// steady gives each request the same script.
func steady(script []step) func(int, map[string]any) []step {
	return func(int, map[string]any) []step { return script }
}

// client speaks to a scripted server.
func (s *scripted) client(api API) *Client {
	return &Client{
		URL: "http://scripted", Target: Target{API: api, Model: "m", Stream: true, Header: http.Header{}},
		HTTP: &http.Client{Transport: s},
	}
}
