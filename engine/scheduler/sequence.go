package scheduler

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// Sink gets the pieces of one request's answer, in order, the last with Finish. Put must not block.
type Sink interface {
	Put(request.Output)
}

// sequence is a request in the scheduler.
//
// Invariants, verified by check:
//
//	0 <= computed <= launched <= len(tokens) + future;  prompt <= len(tokens);  0 <= delivered <= len(tokens) - prompt
//	0 <= future <= the steps in flight that it is in;  in none of them: launched = computed and future = 0
//	pages cover [0, launched), and in prefilling, running, inflight and transferring [0, launched or prompt) exactly as
//	their comments in state.go say
//	running: launched = len(tokens) + future - 1
//	prefix.Pages() <= computed / pageSize
//
// A step in flight computes tokens [computed, launched) or a part of them; the token that it samples is a future one until
// its result is taken:
//
//	tokens  [ prompt ........ | answer ..... ] + future
//	KV      [ computed ........ | launched ..... )
type sequence struct {
	req     *request.Request
	sink    Sink
	arrival int64 // order of receipt, unique
	urgency urgency

	state    state
	timeline ledger.Timeline
	spans    Spans // nil: it is not traced
	waited   bool  // the first wait was reported

	tokens    []int32        // the prompt, then the answer; elements never change once written
	prompt    int            // length of the prompt
	computed  int            // tokens whose KV is in pages, of steps that are over
	launched  int            // and of those in flight
	future    int            // tokens that steps in flight sample; they follow tokens
	step      int64          // the newest step that it was in, 0: none
	row       int            // its row there
	pages     []int32        // page table; see launch for what steps in flight expect of it
	window    []int32        // page table of sliding-window layers, see window.go; nil without them, else len(window) <= len(pages)
	slid      int            // entries of window below it have no page
	prefix    kvcache.Handle // of the first pages, which are the cache's
	delivered int            // answer tokens that the sink has

	seed uint64

	logprobs logprobs

	compilation *compilation // in compiling
	matcher     Matcher      // has accepted the answer; nil without a grammar
	enders      []int32      // see Scheduler.enders; nil until it is asked for
	masking     *masking     // of the newest token; nil: mask is there
	mask        []uint64     // which tokens may follow; not changed while a step in flight has q

	masks maskTimes

	since   int64 // unpaused time at which it entered the waiting queue for the last time
	forward int64 // unpaused time of its first forward, valid when began
	began   bool

	overtaken   int // later requests that were admitted before it
	retractions int // times that it lost its pages, for whatever reason
	pass        pass
	book        promptBook

	session *session // that it is a turn of; nil: of none
	follows int      // the session's turn that it goes on from, -1: none

	hand      *handoff     // of sending or receiving; nil on the fake path and where there is none
	sending   Sending      // prefill, nil on the fake path
	sent      int          // pages that launched steps give to sending, all layers
	receiving Receiving    // decode, nil on the fake path
	first     disagg.First // what prefill handed over
}

// maskTimes is how long the masks of an answer took to find, in nanoseconds. Invariant: most <= total.
type maskTimes struct{ count, total, most int64 }

func (m *maskTimes) add(nanos int64) {
	m.count, m.total, m.most = m.count+1, m.total+nanos, max(m.most, nanos)
}

// generated is the number of answer tokens.
func (q *sequence) generated() int { return len(q.tokens) - q.prompt }

// check verifies the invariants; steps up to over are over.
func (q *sequence) check(pageSize int, over int64) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("request %s, %s, prompt %d, tokens %d + %d, computed %d, launched %d, pages %d: %s",
			q.req.RID, q.state, q.prompt, len(q.tokens), q.future, q.computed, q.launched, len(q.pages), fmt.Sprintf(format, args...))
	}
	covered := len(q.pages) * pageSize
	switch {
	case q.computed < 0 || q.computed > q.launched || q.launched > len(q.tokens)+q.future || q.prompt > len(q.tokens):
		return fail("want 0 <= computed <= launched <= tokens + future and prompt <= tokens")
	case q.future < 0 || q.step <= over && (q.future > 0 || q.launched > q.computed):
		return fail("its newest step, %d, is over: want no future tokens and all that was launched computed", q.step)
	case q.delivered < 0 || q.delivered > q.generated():
		return fail("delivered is %d, want 0 <= delivered <= tokens - prompt", q.delivered)
	case q.prefix.Pages()*pageSize > q.computed:
		return fail("%d pages are the cache's, want no more than are computed", q.prefix.Pages())
	case covered < q.launched:
		return fail("pages cover %d tokens, want at least launched", covered)
	case covered >= len(q.tokens)+q.future+pageSize:
		return fail("pages cover %d tokens, a page more than tokens", covered)
	}
	switch q.state {
	case stateNew, stateCompiling, stateBootstrapping, statePreallocating, stateRetracted, stateFinished:
		if len(q.pages) > 0 || q.launched > 0 {
			return fail("want no pages and nothing computed")
		}
	case stateWaiting:
		if q.computed > 0 != (len(q.pages) > 0) || q.computed > 0 && q.computed != len(q.tokens)-1 {
			return fail("want no pages, or all but the last token computed")
		}
	case stateTransferring:
		if q.hand != nil && covered < q.prompt || q.computed != 0 {
			return fail("want pages for the prompt and nothing computed")
		}
	case statePrefilling:
		if covered < len(q.tokens) || q.computed == len(q.tokens) {
			return fail("want pages for all tokens, not all computed")
		}
	case stateRunning:
		if q.launched != len(q.tokens)+q.future-1 {
			return fail("want all tokens but the last launched")
		}
	case stateInflight:
		if q.computed != q.prompt || q.generated() != 1 {
			return fail("want the prompt computed and one token")
		}
	}
	return nil
}
