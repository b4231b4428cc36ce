package server

import (
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/metrics"
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
	// Aborted counts an abort that was sent to the rank.
	Aborted()
	// LoadsServed gets the time that one /v1/loads took.
	LoadsServed(nanos int64)
	// Violated counts a breach of a conservation law.
	Violated(law ledger.Law)

	// RequestStarted, ResponseStarted and RequestEnded follow one HTTP request; endpoint is its route's pattern.
	RequestStarted(endpoint, method string)
	ResponseStarted(endpoint, method string, status int)
	RequestEnded(endpoint, method string)
}

var _ Events = (*metrics.Front)(nil)

// noEvents drops everything: metrics are off.
type noEvents struct{}

func (noEvents) FirstToken(metrics.Subject, int64)          {}
func (noEvents) InterToken(metrics.Subject, int64, int)     {}
func (noEvents) Finished(metrics.Subject, metrics.Finished) {}
func (noEvents) Aborted()                                   {}
func (noEvents) LoadsServed(int64)                          {}
func (noEvents) Violated(ledger.Law)                        {}
func (noEvents) RequestStarted(string, string)              {}
func (noEvents) ResponseStarted(string, string, int)        {}
func (noEvents) RequestEnded(string, string)                {}
