package scheduler

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/disagg"
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
//	0 <= computed <= len(tokens);  prompt <= len(tokens);  0 <= delivered <= len(tokens) - prompt
//	pages cover [0, computed), and in prefilling, running, inflight and transferring [0, computed or prompt) exactly as
//	their comments in state.go say
//	running: computed = len(tokens) - 1
type sequence struct {
	req     *request.Request
	sink    Sink
	arrival int64 // order of receipt, unique

	state    state
	timeline ledger.Timeline
	waited   bool // the first wait was reported

	tokens    []int32 // the prompt, then the answer; elements never change once written
	prompt    int     // length of the prompt
	computed  int     // tokens whose KV is in pages
	pages     []int32 // page table
	delivered int     // answer tokens that the sink has

	seed uint64

	sending   Sending      // prefill, nil on the fake path
	sent      int          // pages given to sending, all layers
	receiving Receiving    // decode, nil on the fake path
	first     disagg.First // what prefill handed over
}

// generated is the number of answer tokens.
func (q *sequence) generated() int { return len(q.tokens) - q.prompt }

// transfer is the hand-over of either side, nil when there is none.
func (q *sequence) transfer() Transfer {
	switch {
	case q.sending != nil:
		return q.sending
	case q.receiving != nil:
		return q.receiving
	default:
		return nil
	}
}

// check verifies the invariants.
func (q *sequence) check(pageSize int) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("request %s, %s, prompt %d, tokens %d, computed %d, pages %d: %s",
			q.req.RID, q.state, q.prompt, len(q.tokens), q.computed, len(q.pages), fmt.Sprintf(format, args...))
	}
	covered := len(q.pages) * pageSize
	switch {
	case q.computed < 0 || q.computed > len(q.tokens) || q.prompt > len(q.tokens):
		return fail("want 0 <= computed <= tokens and prompt <= tokens")
	case q.delivered < 0 || q.delivered > q.generated():
		return fail("delivered is %d, want 0 <= delivered <= tokens - prompt", q.delivered)
	case covered < q.computed:
		return fail("pages cover %d tokens, want at least computed", covered)
	case covered >= len(q.tokens)+pageSize:
		return fail("pages cover %d tokens, a page more than tokens", covered)
	}
	switch q.state {
	case stateNew, stateBootstrapping, statePreallocating, stateRetracted, stateFinished:
		if len(q.pages) > 0 || q.computed > 0 {
			return fail("want no pages and nothing computed")
		}
	case stateWaiting:
		if q.computed > 0 != (len(q.pages) > 0) || q.computed > 0 && q.computed != len(q.tokens)-1 {
			return fail("want no pages, or all but the last token computed")
		}
	case stateTransferring:
		if q.receiving != nil && covered < q.prompt || q.computed != 0 {
			return fail("want pages for the prompt and nothing computed")
		}
	case statePrefilling:
		if covered < len(q.tokens) || q.computed == len(q.tokens) {
			return fail("want pages for all tokens, not all computed")
		}
	case stateRunning:
		if q.computed != len(q.tokens)-1 {
			return fail("want all tokens but the last computed")
		}
	case stateInflight:
		if q.computed != q.prompt || q.generated() != 1 {
			return fail("want the prompt computed and one token")
		}
	}
	return nil
}
