package scheduler

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// Role is the part of a request's path that a scheduler has.
type Role uint8

// The roles.
const (
	Unified Role = iota // prefill and decode
	Prefill             // prefill; the KV leaves with the first token
	Decode              // decode from KV that arrives
)

func (r Role) String() string {
	switch r {
	case Unified:
		return "unified"
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	default:
		return fmt.Sprintf("Role(%d)", uint8(r))
	}
}

// form is the path of a request's timeline.
func (r Role) form() ledger.Form {
	switch r {
	case Prefill:
		return ledger.Prefill
	case Decode:
		return ledger.Decode
	default:
		return ledger.Unified
	}
}

// Config is what decides how a scheduler decides. New validates it; every number is positive unless its comment says
// otherwise.
type Config struct {
	Role Role

	PageSize       int // tokens
	CapacityTokens int // of the KV pool, rounded down to pages
	ContextLength  int // most tokens of a sequence, prompt and answer
	VocabSize      int
	EOS            []int32 // the model's end tokens, may be empty

	MaxRunning         int // sequences that hold a place in the batch
	MaxRunningUnderSLO int // the cap of utilization
	MaxQueued          int // waiting requests beyond which new ones are refused; 0: no limit
	ChunkTokens        int // prompt tokens of a step; 0: no chunks
	MaxPrefillTokens   int // prompt tokens that one prefill batch admits, one request excepted
	DecodeInterval     int // decode steps between decode reports

	// WindowTokens is how many tokens a sliding-window layer sees, the token itself included; 0: the model has no such layers.
	WindowTokens         int
	WindowCapacityTokens int    // of their KV pool, rounded down to pages
	Windowed             []bool // by layer of this rank; empty without such layers on it

	NoCache  bool           // there is no prefix cache; a decode role never has one
	Eviction kvcache.Policy // of the prefix cache

	StreamingSessions   bool  // sessions may keep their KV between turns
	SessionTokens       int   // that all sessions remember together, those that turns under way may add included; 0: no bound
	SessionTimeoutNanos int64 // without a turn, after which a session that names no time itself is closed; 0: never

	Policy           Policy
	Priorities       Priorities
	Retraction       RetractionPolicy // by priority only where Priorities are enabled
	Conservativeness float64          // of admission: more admits fewer requests at once; 0: 1, the usual one
	Timeouts         Timeouts
	HitWindowNanos   int64 // over which the share of cached prompt tokens is taken to estimate those of waiting requests; 0: 15 s
	MixedChunk       bool  // prefill chunks are computed together with decodes; needs ChunkTokens

	// Overlap lets a step be decided and launched while the one before is computed, also when it computes tokens that the
	// one before samples. With more than one stage there are other steps to launch instead, and it does nothing.
	Overlap bool
	// Stages is the pipeline's stages: so many steps are in flight, with sequences of their own. 0 and 1: no pipeline.
	Stages int

	GrammarTimeoutNanos int64 // until a grammar must be compiled; 0: no limit

	Seed uint64 // of the seeds drawn for requests that bring none

	// AssertTimes makes a request whose times can't be true end the process, with its rid and the times. For tests.
	AssertTimes bool
	// TestRetractSteps > 0 retracts one sequence every so many decode steps, memory or not.
	TestRetractSteps int

	// WeightBytes and KVBytes are facts for Load and reports; AvailableBytes, of the device's memory, is what they left free.
	WeightBytes, KVBytes, AvailableBytes int64
}

// maxConservativeness is more than any engine needs: admission is at its most careful well below.
const maxConservativeness = 100

func (c Config) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int
	}{
		{"page size", c.PageSize}, {"capacity", c.CapacityTokens}, {"context length", c.ContextLength},
		{"vocabulary size", c.VocabSize}, {"maximum of running requests", c.MaxRunning},
		{"maximum of running requests under SLO", c.MaxRunningUnderSLO}, {"maximum of prefill tokens", c.MaxPrefillTokens},
		{"decode interval", c.DecodeInterval},
	} {
		if f.v < 1 {
			errs = append(errs, fmt.Errorf("%s is %d: give at least 1", f.name, f.v))
		}
	}
	if c.SessionTokens < 0 {
		errs = append(errs, fmt.Errorf("tokens of sessions are %d: give at least 1, or 0 for no bound", c.SessionTokens))
	}
	if c.MaxQueued < 0 || c.ChunkTokens < 0 || c.TestRetractSteps < 0 {
		errs = append(errs, fmt.Errorf("maximum of queued requests (%d), chunk tokens (%d) and test retract steps (%d) may be 0, not negative",
			c.MaxQueued, c.ChunkTokens, c.TestRetractSteps))
	}
	if !(c.Conservativeness >= 0 && c.Conservativeness <= maxConservativeness) {
		errs = append(errs, fmt.Errorf("conservativeness is %g: give more than 0 and at most %d, or 0 for 1", c.Conservativeness, maxConservativeness))
	}
	if c.Priorities.Threshold < 0 {
		errs = append(errs, fmt.Errorf("preemption threshold is %d: give 0 or more", c.Priorities.Threshold))
	}
	if c.Retraction == RetractByPriority && !c.Priorities.Enabled {
		errs = append(errs, errors.New("retraction is by priority, but priority scheduling is off: enable it, or retract by length"))
	}
	if c.HitWindowNanos < 0 {
		errs = append(errs, fmt.Errorf("hit window is %d ns: give more than 0, or 0 for 15 s", c.HitWindowNanos))
	}
	if c.Timeouts.WaitingNanos < 0 || c.Timeouts.RunningNanos < 0 {
		errs = append(errs, fmt.Errorf("time-outs of waiting (%d ns) and running (%d ns) may be 0, not negative", c.Timeouts.WaitingNanos, c.Timeouts.RunningNanos))
	}
	if c.MixedChunk && c.ChunkTokens == 0 {
		errs = append(errs, errors.New("chunks are mixed with decodes, but prompts are not cut into chunks: give a chunk size"))
	}
	if c.GrammarTimeoutNanos < 0 {
		errs = append(errs, fmt.Errorf("time-out of grammars is %d ns: give a positive one, or 0 for none", c.GrammarTimeoutNanos))
	}
	if c.WindowTokens < 0 || c.WindowTokens > 0 && c.WindowCapacityTokens < 1 {
		errs = append(errs, fmt.Errorf("sliding-window layers see %d tokens and have a pool of %d: give both, or 0 for none", c.WindowTokens, c.WindowCapacityTokens))
	}
	if c.Stages < 0 {
		errs = append(errs, fmt.Errorf("there are %d pipeline stages: give at least 1, or 0 for no pipeline", c.Stages))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("scheduler config: %w", err)
	}
	return nil
}

// depth is the number of steps that may be in flight before a result is waited for.
func (c Config) depth() int {
	switch {
	case c.Stages > 1:
		return c.Stages
	case c.Overlap:
		return 2
	default:
		return 1
	}
}

// overlaps reports whether a step may compute tokens that the step before samples.
func (c Config) overlaps() bool { return c.Overlap && c.Stages <= 1 }

// TailDecoder turns the last tokens of an answer into text, to find stop strings.
type TailDecoder interface {
	// Decode gives the text of ids; bytes that are no UTF-8 yet may read as U+FFFD.
	Decode(ids []int32, skipSpecial bool) string
}

// Deps are the parts that a scheduler works with. Sender is for Prefill, Receiver for Decode, Peers for a world of several
// ranks, Grammars where there are some; the rest is required.
type Deps struct {
	Executor Executor
	Clock    ledger.Clock
	Reporter report.Reporter
	Decoder  TailDecoder
	Sender   Sender
	Receiver Receiver
	Grammars Grammars // nil: requests with a grammar are refused
	Peers    Peers
	Tracer   Tracer       // nil: no request is traced
	CPU      func() int64 // nanoseconds of CPU time of this process; nil: not known
	// Busy gives the nanoseconds for which the device has computed since it was made. It is called around each call of the
	// executor, from its goroutine; nil: there is no device timer.
	Busy func() int64
	// Cost estimates what a step costs the device; nil: nobody wants to know.
	Cost func(rows []Row) report.Cost
	Log  *slog.Logger
}

func (d Deps) validate(role Role) error {
	switch {
	case d.Executor == nil || d.Clock == nil || d.Reporter == nil || d.Decoder == nil || d.Log == nil:
		return errors.New("scheduler: executor, clock, reporter, decoder and log are required")
	case role == Prefill && d.Sender == nil:
		return errors.New("scheduler: a prefill role needs a sender of KV")
	case role == Decode && d.Receiver == nil:
		return errors.New("scheduler: a decode role needs a receiver of KV")
	default:
		return nil
	}
}
