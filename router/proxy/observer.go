package proxy

import "time"

// Outcome is how a request ended for the client: a closed set, fit for a label.
type Outcome string

const (
	// OutcomeOK means: the whole answer of an engine, status below 400, was passed on.
	OutcomeOK Outcome = "ok"
	// OutcomeClientError means: the request was at fault: a status from 400 to 499.
	OutcomeClientError Outcome = "client_error"
	// OutcomeClientClosed means: the client went before its answer was complete.
	OutcomeClientClosed Outcome = "client_closed"
	// OutcomeNoEngine means: no engine became usable in time.
	OutcomeNoEngine Outcome = "no_engine"
	// OutcomeEngineError means: an engine failed, and so did every retry: a status from 500 on.
	OutcomeEngineError Outcome = "engine_error"
	// OutcomeBroken means: the engine broke off after the first byte.
	OutcomeBroken Outcome = "broken"
	// OutcomeTimeout means: the request took longer than --request-timeout.
	OutcomeTimeout Outcome = "timeout"
)

// Outcomes lists all of them.
func Outcomes() []Outcome {
	return []Outcome{OutcomeOK, OutcomeClientError, OutcomeClientClosed, OutcomeNoEngine, OutcomeEngineError, OutcomeBroken, OutcomeTimeout}
}

// RetryReason is why another pair was tried: a closed set, fit for a label.
type RetryReason string

// The reasons.
const (
	RetryConnect  RetryReason = "connect"  // an engine could not be reached
	RetryReset    RetryReason = "reset"    // an engine closed the connection before its first byte
	RetryTransfer RetryReason = "transfer" // 502 or 504: prefill and decode did not get together
	RetryBusy     RetryReason = "busy"     // 503
)

// RetryReasons lists all of them.
func RetryReasons() []RetryReason {
	return []RetryReason{RetryConnect, RetryReset, RetryTransfer, RetryBusy}
}

// Observer hears what happens to requests. It must not block. Route is one of Routes.
type Observer interface {
	// Started and Finished enclose each request.
	Started(route string)
	Finished(route string, status int, outcome Outcome, took time.Duration)
	// Waited means: a request waited that long for a usable engine.
	Waited(took time.Duration)
	// Forwarded means: the router's own work from the last byte of the request to handing it to the engines took that long,
	// without the wait for a usable engine.
	Forwarded(route string, took time.Duration)
	// FirstByte means: that long after its start the request's first answer byte went to the client.
	FirstByte(route string, took time.Duration)
	Retried(reason RetryReason)
}
