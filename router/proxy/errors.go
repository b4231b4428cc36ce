package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// apiError is a failure of the router's own, in the shape that OpenAI's clients and SGLang's read.
type apiError struct {
	status     int
	code       string // a short stable word
	message    string // what is wrong and what to do
	retryAfter int    // seconds, 0: none
}

func (e *apiError) Error() string { return e.message }

// kind is the OpenAI error type.
func (e *apiError) kind() string {
	switch {
	case e.status == http.StatusServiceUnavailable:
		return "overloaded_error"
	case e.status >= 500:
		return "server_error"
	default:
		return "invalid_request_error"
	}
}

type errorDetail struct {
	Message   string  `json:"message"`
	Type      string  `json:"type"`
	Param     *string `json:"param"`
	Code      string  `json:"code"`
	Retryable *bool   `json:"retryable,omitempty"` // in streams only
}

func (e *apiError) detail() errorDetail {
	return errorDetail{Message: e.message, Type: e.kind(), Code: e.code}
}

// body is the answer's JSON.
func (e *apiError) body() []byte {
	b, _ := json.Marshal(struct { //nolint:errchkjson // strings and integers
		Object  string      `json:"object"`
		Message string      `json:"message"`
		Type    string      `json:"type"`
		Param   *string     `json:"param"`
		Code    int         `json:"code"`
		Error   errorDetail `json:"error"`
	}{"error", e.message, e.kind(), nil, e.status, e.detail()})
	return b
}

// event is the error as the last event of a stream.
func (e *apiError) event() []byte {
	d := e.detail()
	d.Retryable = new(true)
	b, _ := json.Marshal(struct { //nolint:errchkjson // strings and integers
		Error errorDetail `json:"error"`
	}{d})
	return append(append([]byte("data: "), b...), '\n', '\n')
}

func (e *apiError) write(w http.ResponseWriter) {
	body := e.body()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	w.WriteHeader(e.status)
	w.Write(body)
}
