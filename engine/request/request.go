// Package request holds a request as plain data: what the API process sends to a rank and what comes back. It knows no
// HTTP, tensor or queue. Values are sent whole; after Submit the sender must not change them.
package request

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// Request is one sequence to generate. Prompt tokens are final: special tokens and chat templates are already applied.
type Request struct {
	RID       string  // unique in the engine while the request lives
	PromptIDs []int32 // [promptTokens], at least one
	Sampling  Sampling

	Grammar  *Grammar      // nil: the answer may be any text
	Logprobs *WantLogprobs // nil: none are wanted
	Session  *Turn         // nil: no session

	// Bootstrap is set on prefill and decode engines: where the two halves meet.
	Bootstrap *Bootstrap

	Priority   *int   // nil when the client gave none
	DPRank     *int   // the DP rank that the client or the router chose; nil: the DP controller chooses
	CacheKey   string // prefixes are shared between requests with the same key alone
	RoutingKey string // of the router, for the metrics
	LogMetrics bool   // false for health checks: nothing of it is counted

	// ReceivedWallNanos is the wall time at which the API process received the request.
	ReceivedWallNanos int64

	Trace *Trace // where its spans belong; nil: it is not traced
}

// Trace is what a process needs to make spans of a request that another process has begun to trace.
type Trace struct {
	Parent   string // the root span, as a W3C traceparent
	State    string // its tracestate; empty: none
	Level    int    // what gets a span, > 0; fixed when the request began
	Module   string // whose request it is
	Previous string // the slice that the next one follows, 16 hexadecimal digits, of the same trace; empty: none
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
	MinNewTokens int     // end and stop tokens are not sampled before, stop strings ignored
	Temperature  float32 // 0 is greedy
	TopP         float32 // (0, 1]
	TopK         int     // 0 or -1: all
	MinP         float32 // [0, 1]: tokens less likely than MinP times the likeliest are cut; 0: none
	Seed         *int64  // nil: the rank draws one and the tokens are not repeatable

	FrequencyPenalty  float32     // [-2, 2], subtracted once per occurrence in the answer
	PresencePenalty   float32     // [-2, 2], subtracted once when the token is in the answer
	RepetitionPenalty float32     // > 0, of tokens in the answer; 1, or 0 for a field that was not set: none
	LogitBias         []TokenBias // by ascending token, each once

	Stop         []string // stop strings, cut from the text by the API process
	StopTokenIDs []int32  // besides the model's own end tokens
	IgnoreEOS    bool
}

// TokenBias is what is added to the logit of one token.
type TokenBias struct {
	Token int32
	Bias  float32 // [-100, 100]
}

// GrammarKind says how Source describes the answer.
type GrammarKind string

// The kinds.
const (
	GrammarJSONSchema GrammarKind = "json_schema" // Source is a JSON schema
	GrammarRegex      GrammarKind = "regex"       // Source is a regular expression that the whole answer matches
)

// Grammar bounds what the answer may be.
type Grammar struct {
	Kind   GrammarKind
	Source string
}

// WantLogprobs says which logprobs a client wants besides those of the answer's tokens themselves.
type WantLogprobs struct {
	Top      int     // the likeliest tokens at each position; 0: none
	TokenIDs []int32 // the logprobs of these tokens at each position
	// PromptFrom is the first position of the prompt whose token's logprob is wanted, 1 <= PromptFrom < promptTokens; the
	// token at position 0 has none. 0: no logprobs of the prompt. In a session it counts from the turn's own prompt on.
	PromptFrom int
}

// TokenLogprob is a token with the natural logarithm of its probability.
type TokenLogprob struct {
	Token   int32
	Logprob float32
}

// TokenLogprobs is what is known about one position.
type TokenLogprobs struct {
	TokenLogprob
	Top   []TokenLogprob // [WantLogprobs.Top], likeliest first, the lowest id among equals
	Asked []TokenLogprob // in the order of WantLogprobs.TokenIDs
}

// Turn makes a request a turn of a session: its prompt follows the tokens that the session holds.
type Turn struct {
	SessionID string
	// RID is the earlier turn that this one goes on from; empty: the newest.
	RID string
	// Offset is the number of the session's tokens that are kept; nil: all.
	Offset *int
	// Replace drops the turns that followed RID.
	Replace bool
	// DropPreviousOutput drops the answer of the turn before and keeps its prompt.
	DropPreviousOutput bool
}

// Session is what opens a session.
type Session struct {
	ID             string
	CapacityTokens int   // of all its turns; 0: what a sequence may have
	Streaming      bool  // its KV stays in its pages between turns
	TimeoutNanos   int64 // without a turn, after which it is closed; 0: the engine's own
}

// PauseMode says what becomes of the requests that run when the engine pauses.
type PauseMode string

// The modes.
const (
	PauseAbort   PauseMode = "abort"    // they end
	PauseRetract PauseMode = "retract"  // they give their KV back and are computed again after the pause
	PauseInPlace PauseMode = "in_place" // they stay where they are, with their KV
)

// Output is a piece of a request's answer. For one request the pieces arrive in order, and exactly one, the last, has
// Finish set.
type Output struct {
	RID      string
	TokenIDs []int32 // new tokens, may be empty

	// Logprobs has an element for each of TokenIDs, or none when none are wanted.
	Logprobs []TokenLogprobs
	// PromptLogprobs are of the prompt's tokens from WantLogprobs.PromptFrom on, in order, all with or before the first
	// new token.
	PromptLogprobs []TokenLogprobs

	PromptTokens     int
	CachedTokens     int // of the prompt, found in a cache the first time that the request was computed
	CompletionTokens int // so far, 0 <= len(TokenIDs) <= CompletionTokens
	Retractions      int // so far

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
	OutcomePreempted       Outcome = "preempted"        // pushed out of a full queue by one of higher priority: 503
	OutcomeTooLong         Outcome = "too_long"         // cannot ever fit: 400
	OutcomeInvalid         Outcome = "invalid"          // wrong on every engine: 400
	OutcomeBootstrapFailed Outcome = "bootstrap_failed" // PD peers did not meet
	OutcomeTransferFailed  Outcome = "transfer_failed"  // a PD peer died or the KV was damaged
	OutcomeInternal        Outcome = "internal_error"
)

// Outcomes lists all outcomes.
func Outcomes() []Outcome {
	return []Outcome{
		OutcomeStop, OutcomeLength, OutcomeAbortedClient, OutcomeAbortedOperator, OutcomeTimeout, OutcomeRefused, OutcomePreempted,
		OutcomeTooLong, OutcomeInvalid, OutcomeBootstrapFailed, OutcomeTransferFailed, OutcomeInternal,
	}
}

// HTTPStatus gives the status code that agrees with the outcome when nothing was sent to the client yet.
func (o Outcome) HTTPStatus() int {
	switch o {
	case OutcomeStop, OutcomeLength:
		return 200
	case OutcomeAbortedClient:
		return 499
	case OutcomeTooLong, OutcomeInvalid:
		return 400
	case OutcomeRefused, OutcomePreempted, OutcomeAbortedOperator:
		return 503
	case OutcomeTimeout:
		return 504
	case OutcomeBootstrapFailed, OutcomeTransferFailed:
		return 502
	default:
		return 500
	}
}

// Common reports whether the outcome is one of the request itself, so that its other half ends in the same one, on prefill and
// decode engines. Any other is the one engine's alone, and the other half saw a hand-over that failed.
func (o Outcome) Common() bool {
	switch o {
	case OutcomeAbortedClient, OutcomeAbortedOperator, OutcomeTimeout, OutcomeTooLong, OutcomeInvalid:
		return true
	default:
		return false
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

	// ComputedTokens of the prompt were computed for the first time, and ReprocessedTokens of prompt and answer again after
	// retractions. PromptTokens = ComputedTokens + CachedTokens once the prompt is computed, on the engine that computes it.
	ComputedTokens    int
	ReprocessedTokens int

	// Timeline is the rank's, whole. Nil: no rank had the request.
	Timeline *ledger.Record
}

func (f Finish) String() string {
	if f.Type == FinishAbort {
		return fmt.Sprintf("%s (%s): %s", f.Type, f.Outcome, f.Message)
	}
	return string(f.Type)
}
