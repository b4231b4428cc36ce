package server

import (
	"fmt"
	"net/http"

	"github.com/sluice-dev/sluice/engine/request"
)

// apiError is a refusal or a failure as the client sees it. It names the field at fault where there is one.
type apiError struct {
	status  int    // HTTP status when nothing was sent yet
	param   string // the body field, "" when no single field is at fault
	code    string // a short stable word for programs, "" for none
	message string // what is wrong and what to do instead

	ended request.Outcome // how the sequence ended that the error is of; "": outcome derives it
}

func (e *apiError) Error() string { return e.message }

// Words of apiError.code.
const (
	codeModelNotFound  = "model_not_found"
	codeContextLength  = "context_length_exceeded"
	codeInvalidJSON    = "invalid_json"
	codeInvalidKey     = "invalid_api_key"
	codeNotFound       = "not_found"
	codeMethod         = "method_not_allowed"
	codeTooLarge       = "body_too_large"
	codeNotSupported   = "not_supported"
	codeNotReady       = "not_ready"
	codeEngineFailed   = "engine_failed"
	codeInternal       = "internal_error"
	codeNotFlushed     = "not_idle"
	codeGrammar        = "invalid_grammar" // the schema or expression can't bound an answer
	codeSession        = "invalid_session"
	codeNotKept        = "request_not_kept" // the timeline is not, or no more, remembered
	codeRefused        = "refused"          // the ranks say no to a control call
	statusClientClosed = 499                // the client went away; nobody reads the answer
)

// badField is a 400 about one field of the body.
func badField(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, param: param, message: param + " " + fmt.Sprintf(format, args...)}
}

// unsupportedField is a 400 about a field that exists in the API but not yet in this engine.
func unsupportedField(param, remedy string) *apiError {
	return &apiError{status: http.StatusBadRequest, param: param, code: codeNotSupported, message: param + " is not supported: " + remedy}
}

// failure is an error without a field.
func failure(status int, code, format string, args ...any) *apiError {
	return &apiError{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// outcomeError turns the end of an aborted sequence into the client's error.
func (q *sequence) outcomeError(finish request.Finish) *apiError {
	message := finish.Message
	if message == "" {
		message = "request " + q.rid + " ended: " + string(finish.Outcome)
	}
	err := &apiError{status: finish.Outcome.HTTPStatus(), code: string(finish.Outcome), message: message, ended: finish.Outcome}
	if finish.Outcome == request.OutcomeInvalid && q.sampling.grammar != nil {
		// All else that makes a request invalid was refused before it went to the rank.
		err.param, err.code = q.sampling.grammarField, codeGrammar
	}
	if finish.Outcome == request.OutcomeInvalid && q.turn != nil && q.sampling.grammar == nil {
		err.param, err.code = "session_params", codeSession
	}
	return err
}

// outcome is how a request ends that is answered with the error.
func (e *apiError) outcome() request.Outcome {
	switch {
	case e.ended != "":
		return e.ended
	case e.code == codeContextLength, e.status == http.StatusRequestEntityTooLarge:
		return request.OutcomeTooLong
	case e.status == statusClientClosed, e.status == http.StatusRequestTimeout: // a body that does not come is a client's that has gone
		return request.OutcomeAbortedClient
	case e.status == http.StatusServiceUnavailable:
		return request.OutcomeRefused
	case e.status == http.StatusGatewayTimeout:
		return request.OutcomeTimeout
	case e.status >= 500:
		return request.OutcomeInternal
	default:
		return request.OutcomeInvalid
	}
}

// kind is the OpenAI error type of a status.
func (e *apiError) kind() string {
	switch {
	case e.status == http.StatusUnauthorized:
		return "authentication_error"
	case e.status == http.StatusTooManyRequests, e.status == http.StatusServiceUnavailable:
		return "overloaded_error"
	case e.status == http.StatusGatewayTimeout:
		return "timeout_error"
	case e.status >= 500:
		return "server_error"
	default:
		return "invalid_request_error"
	}
}

// retryable reports whether the same request may succeed on another engine or later.
func (e *apiError) retryable() bool { return e.status >= 500 }

// errorDetail is the error object that OpenAI's clients read.
type errorDetail struct {
	Message   string  `json:"message"`
	Type      string  `json:"type"`
	Param     *string `json:"param"`
	Code      *string `json:"code"`
	Retryable *bool   `json:"retryable,omitempty"` // in streams only
}

// errorBody is the body of a refused request: SGLang's flat fields, and the same as OpenAI's clients expect it.
type errorBody struct {
	Object  string      `json:"object"` // always "error"
	Message string      `json:"message"`
	Type    string      `json:"type"`
	Param   *string     `json:"param"`
	Code    int         `json:"code"` // the HTTP status
	Error   errorDetail `json:"error"`
}

// errorEvent is the data of a stream's error event.
type errorEvent struct {
	Error errorDetail `json:"error"`
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func (e *apiError) detail() errorDetail {
	return errorDetail{Message: e.message, Type: e.kind(), Param: optional(e.param), Code: optional(e.code)}
}

func (e *apiError) body() errorBody {
	return errorBody{Object: "error", Message: e.message, Type: e.kind(), Param: optional(e.param), Code: e.status, Error: e.detail()}
}

func (e *apiError) event() errorEvent {
	detail, retryable := e.detail(), e.retryable()
	detail.Retryable = &retryable
	return errorEvent{Error: detail}
}

// retryAfterSeconds is when a client that was refused for lack of room may come again.
const retryAfterSeconds = "1"

// writeError answers with an error; nothing must have been written before.
func writeError(w http.ResponseWriter, err *apiError) {
	switch err.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		w.Header().Set("Retry-After", retryAfterSeconds)
	}
	writeJSON(w, err.status, err.body())
}

// writeJSON answers with a value.
func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := encodeJSON(value)
	if err != nil {
		status = err.status
		body, _ = encodeJSON(err.body())
	}
	writeBody(w, status, body)
}

// encodeJSON gives a value as the body of an answer.
func encodeJSON(value any) ([]byte, *apiError) {
	body, err := encodeValue(value)
	if err != nil {
		return nil, failure(http.StatusInternalServerError, codeInternal, "encode the answer: %v", err)
	}
	return append(body, '\n'), nil
}

// writeBody answers with JSON. The write's error is dropped on purpose: it can only say that the client has gone.
func writeBody(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
