// Package request holds a request as plain data: what the API process sends to a rank and what comes back. It knows no
// HTTP, tensor or queue. Values are sent whole; after Submit the sender must not change them.
package request

import "fmt"

// Request is one sequence to generate. Prompt tokens are final: special tokens and chat templates are already applied.
type Request struct {
	RID       string  // unique in the engine while the request lives
	PromptIDs []int32 // [promptTokens], at least one
	Sampling  Sampling

	// Bootstrap is set on prefill and decode engines: where the two halves meet.
	Bootstrap *Bootstrap

	Priority   *int // nil when the client gave none
	LogMetrics bool // false for health checks: nothing of it is counted

	// ReceivedWallNanos is the wall time at which the API process received the request.
	ReceivedWallNanos int64
}

// Bootstrap is the meeting point of a prefill and a decode engine.
type Bootstrap struct {
	Host string // of the prefill engine's bootstrap server
	Port int
	Room int64 // random, the same on both sides, 63 bits
}

// Fake reports whether this is the health-check path, which needs no peer: room 0 at host 2.2.2.2.
func (b Bootstrap) Fake() bool { return b.Host == FakeBootstrapHost && b.Room == 0 }

// FakeBootstrapHost marks a request that runs on one PD engine without a peer.
const FakeBootstrapHost = "2.2.2.2"

// Sampling says how the next token is picked and when to stop.
type Sampling struct {
	MaxNewTokens int     // > 0 once validated
	MinNewTokens int     // stop tokens and stop strings are ignored before
	Temperature  float32 // 0 is greedy
	TopP         float32 // (0, 1]
	TopK         int     // 0 or -1: all
	Seed         *int64  // nil: the rank draws one and the tokens are not repeatable

	Stop         []string // stop strings, cut from the text by the API process
	StopTokenIDs []int32  // besides the model's own end tokens
	IgnoreEOS    bool
}

// Output is a piece of a request's answer. For one request the pieces arrive in order, and exactly one, the last, has
// Finish set.
type Output struct {
	RID      string
	TokenIDs []int32 // new tokens, may be empty

	PromptTokens     int
	CachedTokens     int
	CompletionTokens int // so far, 0 <= len(TokenIDs) <= CompletionTokens

	Finish *Finish // nil while the request lives
}

// FinishType is the type in finish_reason.
type FinishType string

const (
	// FinishStop is the type of an answer that ended at an end token, a stop token or a stop string.
	FinishStop FinishType = "stop"
	// FinishLength is the type of an answer that reached MaxNewTokens or the context length.
	FinishLength FinishType = "length"
	// FinishAbort is the type of everything else; Outcome and Message say what.
	FinishAbort FinishType = "abort"
)

// Outcome is how a request ended. Every request ends in exactly one.
type Outcome string

// The outcomes.
const (
	OutcomeStop            Outcome = "stop"
	OutcomeLength          Outcome = "length"
	OutcomeAbortedClient   Outcome = "aborted_client"   // the client went away
	OutcomeAbortedOperator Outcome = "aborted_operator" // /abort_request, pause or shutdown
	OutcomeTimeout         Outcome = "timeout"
	OutcomeRefused         Outcome = "refused"          // queue full: 503 before the first byte
	OutcomeTooLong         Outcome = "too_long"         // cannot ever fit: 400
	OutcomeInvalid         Outcome = "invalid"          // wrong on every engine: 400
	OutcomeBootstrapFailed Outcome = "bootstrap_failed" // PD peers did not meet
	OutcomeTransferFailed  Outcome = "transfer_failed"  // a PD peer died or the KV was damaged
	OutcomeInternal        Outcome = "internal_error"
)

// HTTPStatus gives the status code that agrees with the outcome when nothing was sent to the client yet.
func (o Outcome) HTTPStatus() int {
	switch o {
	case OutcomeStop, OutcomeLength:
		return 200
	case OutcomeAbortedClient:
		return 499
	case OutcomeTooLong, OutcomeInvalid:
		return 400
	case OutcomeRefused, OutcomeAbortedOperator:
		return 503
	case OutcomeTimeout:
		return 504
	case OutcomeBootstrapFailed, OutcomeTransferFailed:
		return 502
	default:
		return 500
	}
}

// Finish is the end of a request.
type Finish struct {
	Type    FinishType
	Outcome Outcome

	// Matched is what stopped a request of type stop: the token, or the string.
	MatchedToken *int32
	MatchedStop  string

	// Message is for the client when Type is abort.
	Message string

	// QueueNanos is the time in waiting queues over all entries; Forward and Prefill are wall times (0: never happened).
	QueueNanos            int64
	ForwardEntryWallNanos int64
	PrefillEndWallNanos   int64
}

func (f Finish) String() string {
	if f.Type == FinishAbort {
		return fmt.Sprintf("%s (%s): %s", f.Type, f.Outcome, f.Message)
	}
	return string(f.Type)
}
