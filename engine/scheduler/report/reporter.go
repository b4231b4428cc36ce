package report

import "github.com/sluice-dev/sluice/engine/ledger"

// Reporter listens. Calls come from the scheduler's goroutine and must not block.
type Reporter interface {
	// Started gets the constants of the rank, once, before everything else.
	Started(Constants)
	Report(Snapshot)
	// LoopTime gets what the loop did since the last call, about once a second and at the end.
	LoopTime(LoopTime)
	// QueueTime gets the first wait of a request, once per request, with the priority that decided over it.
	QueueTime(nanos int64, priority Priority)
	// StageTime gets the length of a stage that ended.
	StageTime(stage ledger.Stage, nanos int64)
	// KVTransfer gets a hand-over that is done on a prefill engine, or that got its pages on a decode engine.
	KVTransfer(t KVTransfer)

	// KVMoved gets the KV bytes of a hand-over that has ended on this rank, once. Every rank tells its own: their sum over the
	// prefill engines of a service is that over its decode engines.
	KVMoved(m KVMoved)
	// KVReleased gets an ended request's pages of a decode rank, which a transfer kept from being free for so long.
	KVReleased(outcome ReleaseOutcome, nanos int64)
	// BootstrapFailed and TransferFailed count requests that ended so.
	BootstrapFailed()
	TransferFailed()
	// PrefillRetried counts a prompt of a prefill rank that is computed again.
	PrefillRetried()
	// Rejected counts a request that ended while it waited for its first batch, or before.
	Rejected(reason Rejection)
	// Retracted counts one retraction of reqs > 0 requests.
	Retracted(reqs, inputTokens, outputTokens int)
	// RealtimeTokens counts tokens of a step: computed prompt tokens, prompt tokens found in the cache, decoded tokens.
	RealtimeTokens(prefillCompute, prefillCache, decode int)
	// PrefillTokens counts prompt tokens of a step with chunks, computed ones and those found in the cache, without those
	// of requests that are computed again.
	PrefillTokens(computed, cached int)
	// Forward gets the device's busy time in a step, where there is a device timer.
	Forward(mode ForwardMode, busyNanos int64)
	// Estimated counts what a step costs by the model's shapes, where that is wanted.
	Estimated(Cost)
	// Evicted gets one pass of eviction that freed tokens > 0 slots.
	Evicted(tokens int, nanos int64)
	// Grammar gets what became of a request's grammar, once per request that has one.
	Grammar(Grammar)
	// GrammarMasks gets how long a request's masks took to find, at its end, when it had some.
	GrammarMasks(meanNanos, maxNanos int64)
	// Violated counts a breach of a conservation law.
	Violated(law ledger.Law)
}

// Constants is what a rank knows about itself once its model is loaded.
type Constants struct {
	PageSize                   int // tokens
	NumPages                   int // of the full pool
	MaxTotalNumTokens          int // capacity of the full pool
	MaxTotalNumTokensSWA       int // capacity of the pool of sliding-window layers; 0: there is none
	ContextLen                 int // tokens
	MaxRunningRequestsUnderSLO int
	WeightBytes                int64
	KVBytes                    int64
	AvailableBytes             int64 // of the device's memory, once weights and KV are there
}

// KVTransfer is one hand-over: on a prefill engine when it is done, on a decode engine when its pages are allocated, and then
// without bytes and latency.
type KVTransfer struct {
	TotalBytes     int64 // of KV that was sent
	LatencyNanos   int64 // with pages on their way and until the last was acknowledged
	BootstrapNanos int64 // until the peers had met
	AllocNanos     int64 // from then until the decode engine had pages
}

// KVMoved is what a rank sent or received in one hand-over.
type KVMoved struct {
	Bytes    int64 // of KV pages, without framing
	Received bool  // on a decode engine; otherwise sent, on a prefill engine
	Done     bool  // the receiver has everything; the sender knows it. Otherwise the hand-over failed or was aborted
}

// ReleaseOutcome is why pages that a transfer kept were free in the end.
type ReleaseOutcome uint8

// The outcomes.
const (
	ReleaseDrained ReleaseOutcome = iota // the peers stopped in order
	ReleaseTimeout                       // they were not heard of for too long
	ReleaseError                         // the connection to them broke
)

// ReleaseOutcomes lists them.
func ReleaseOutcomes() []ReleaseOutcome {
	return []ReleaseOutcome{ReleaseDrained, ReleaseTimeout, ReleaseError}
}

func (o ReleaseOutcome) String() string { return [...]string{"drained", "timeout", "error"}[o] }

// Rejection is why a request got no place in a batch.
type Rejection uint8

// The reasons.
const (
	RejectedQueueFull Rejection = iota // the waiting queue was full
	RejectedPreempted                  // one of higher priority took its place in a full queue
	RejectedTimeout                    // it waited longer than the engine allows
)

// Rejections lists them.
func Rejections() []Rejection {
	return []Rejection{RejectedQueueFull, RejectedPreempted, RejectedTimeout}
}

func (r Rejection) String() string { return [...]string{"queue_full", "preempted", "timeout"}[r] }

// ForwardMode is what a step computes.
type ForwardMode uint8

// The modes.
const (
	ForwardExtend ForwardMode = iota // chunks of prompts
	ForwardDecode                    // one token of each sequence
	ForwardMixed                     // both
)

// ForwardModes lists them.
func ForwardModes() []ForwardMode { return []ForwardMode{ForwardExtend, ForwardDecode, ForwardMixed} }

func (m ForwardMode) String() string { return [...]string{"extend", "decode", "mixed"}[m] }

// Cost is what a step costs this rank's device by the model's shapes.
type Cost struct {
	Flops      float64
	ReadBytes  float64
	WriteBytes float64
}

// GrammarOutcome is what became of a grammar.
type GrammarOutcome uint8

// The outcomes.
const (
	GrammarReady    GrammarOutcome = iota // it is there
	GrammarAborted                        // it is wrong or not supported, or its request ended before it was there
	GrammarTimedOut                       // it was not there in time
)

// Grammar is what became of a request's grammar.
type Grammar struct {
	Outcome GrammarOutcome

	// Of a grammar that is ready.
	CompileNanos int64 // that the compiler took, with the wait for another request's compilation of the same, without that for a turn
	CacheHit     bool  // somebody had asked for the same before
	Schemas      int   // schemas in it, the outermost included; 0 for a regular expression
	Size         int   // states of its automaton
}
