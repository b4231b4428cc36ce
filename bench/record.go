package bench

import "time"

// Outcome is how a request ended; each has exactly one.
type Outcome string

const (
	// Completed is the outcome of a request whose whole answer came.
	Completed Outcome = "completed"
	// Cancelled is the outcome of one that the client dropped, as the plan said.
	Cancelled Outcome = "cancelled"
	// Interrupted is the outcome of one whose run was ended from outside before its answer was whole.
	Interrupted Outcome = "interrupted"
	// Failed is the outcome of one that has a Failure.
	Failed Outcome = "failed"
)

// Failure is the kind of an error, a closed set but for the status in "http 503".
type Failure string

const (
	// Refused means that nobody listens.
	Refused Failure = "refused"
	// Broken means that the connection could not be made, or was lost.
	Broken Failure = "connection"
	// TimedOut means that the answer was not whole within the time for one request.
	TimedOut Failure = "timeout"
	// ServerError means that the answer, begun well, carried an error.
	ServerError Failure = "error in answer"
	// Truncated means that the stream ended without the reason of its end.
	Truncated Failure = "truncated"
	// Malformed means that the answer is not what the API says.
	Malformed Failure = "malformed"
)

// Record is what was seen of one request. Times are since the start of the run.
type Record struct {
	Server int `json:"server"` // index of the server
	Index  int `json:"index"`  // in the plan
	Round  int `json:"round"`  // of the alternation; 0 without one

	Start time.Duration  `json:"start_ns"` // what latencies count from: when it was due (open loop) or sent (closed)
	Sent  time.Duration  `json:"sent_ns"`  // Start <= Sent
	First *time.Duration `json:"first_ns"` // first chunk with output, or the end without any; nil: none came, or the answer was not streamed
	End   time.Duration  `json:"end_ns"`   // last chunk, or the failure

	// Gaps between tokens: one for each token of the chunks after the first.
	Gaps []time.Duration `json:"gaps_ns,omitempty"`

	InputTokens  int  `json:"input_tokens"`
	OutputTokens int  `json:"output_tokens"`
	CachedTokens *int `json:"cached_tokens,omitempty"` // of the input; nil: the server does not say
	Counted      bool `json:"counted"`                 // the server counted the tokens; else they are wanted tokens and chunks

	Priority *int    `json:"priority,omitempty"`
	Outcome  Outcome `json:"outcome"`
	Failure  Failure `json:"failure,omitempty"`
	Message  string  `json:"message,omitempty"` // of the failure
}

// TTFT is the time to the first token.
func (r *Record) TTFT() (time.Duration, bool) {
	if r.First == nil {
		return 0, false
	}
	return *r.First - r.Start, true
}

// E2E is the time to the end.
func (r *Record) E2E() time.Duration { return r.End - r.Start }

// TPOT is the mean time per output token after the first.
func (r *Record) TPOT() (time.Duration, bool) {
	if r.First == nil || r.OutputTokens < 2 {
		return 0, false
	}
	return (r.End - *r.First) / time.Duration(r.OutputTokens-1), true
}
