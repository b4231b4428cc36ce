package server

import (
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/request"
)

// Events listens to the API process; metrics.Front does. Calls come from many goroutines and must not block. Requests with
// log_metrics=false are told to nobody.
type Events interface {
	// FirstToken gets the time from arrival to the first output, once per request, never on a prefill engine.
	FirstToken(s metrics.Subject, nanos int64)
	// InterToken gets the time between two outputs, the later of which brought newTokens > 0.
	InterToken(s metrics.Subject, nanos int64, newTokens int)
	// Finished gets the end of a request, aborted ones included.
	Finished(s metrics.Subject, f metrics.Finished)
	// Requests gets sequences that clients have asked for, and some that have ended with the outcome, in the order of these
	// events; inFlight is how many have not ended after that.
	Requests(submitted, ended int, outcome request.Outcome, inFlight int)
	// Aborted counts an abort that was sent to the rank.
	Aborted()
	// LoadsServed gets the time that one /v1/loads took.
	LoadsServed(nanos int64)
	// FuncLatency gets the time that one call of a function of the front took.
	FuncLatency(name string, nanos int64)
	// StartupTime gets the time of a phase of the start, StartupStep that of a step, of which there may be several of a name.
	StartupTime(phase string, nanos int64)
	StartupStep(name string, nanos int64)
	// Violated counts a breach of a conservation law.
	Violated(law ledger.Law)

	// RequestStarted, ResponseStarted and RequestEnded follow one HTTP request; endpoint is its route's pattern.
	RequestStarted(endpoint, method string)
	ResponseStarted(endpoint, method string, status int)
	RequestEnded(endpoint, method string)
	// RoutingKeyHeld and RoutingKeyFreed follow one request with a routing key.
	RoutingKeyHeld(key string)
	RoutingKeyFreed(key string)
}

var _ Events = (*metrics.Front)(nil)

// noEvents drops everything: metrics are off.
type noEvents struct{}

func (noEvents) FirstToken(metrics.Subject, int64)          {}
func (noEvents) InterToken(metrics.Subject, int64, int)     {}
func (noEvents) Finished(metrics.Subject, metrics.Finished) {}
func (noEvents) Aborted()                                   {}
func (noEvents) LoadsServed(int64)                          {}
func (noEvents) Requests(int, int, request.Outcome, int)    {}
func (noEvents) FuncLatency(string, int64)                  {}
func (noEvents) StartupTime(string, int64)                  {}
func (noEvents) StartupStep(string, int64)                  {}
func (noEvents) Violated(ledger.Law)                        {}
func (noEvents) RequestStarted(string, string)              {}
func (noEvents) ResponseStarted(string, string, int)        {}
func (noEvents) RequestEnded(string, string)                {}
func (noEvents) RoutingKeyHeld(string)                      {}
func (noEvents) RoutingKeyFreed(string)                     {}
