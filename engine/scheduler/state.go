package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// state is where a sequence is. A live sequence is in the list of its state (Scheduler.in) and nowhere else.
//
//	unified  new → waiting → prefilling → running → finished
//	prefill  new → bootstrapping → waiting → prefilling → inflight → finished
//	decode   new → preallocating → transferring → waiting → running → finished
//
// A sequence that loses its pages goes from prefilling or running to waiting, on decode to retracted, and from there to
// prefilling: it is computed again from its tokens.
//
// One with a grammar goes from new to compiling, and from there where others go from new.
//
// Every state may go to finished.
type state uint8

const (
	stateNew           state = iota // received, not judged yet; holds nothing
	stateCompiling                  // its grammar is compiled; holds nothing
	stateBootstrapping              // prefill: until the decode rank is there with its pages; holds nothing
	statePreallocating              // decode: until the peers have met and pages are there; holds nothing
	stateTransferring               // decode: KV arrives in its pages
	stateWaiting                    // for a place in a batch; on decode with the prompt's pages, else without
	stateRetracted                  // decode: lost its pages, waits to be recomputed
	statePrefilling                 // has pages for all its tokens, some are computed
	stateRunning                    // decodes: all tokens but the last are computed
	stateInflight                   // prefill: all is computed, KV leaves its pages
	stateFinished                   // the sink has the Finish; holds nothing

	numStates
)

var stateNames = [numStates]string{
	"new", "compiling", "bootstrapping", "preallocating", "transferring", "waiting", "retracted", "prefilling", "running", "inflight", "finished",
}

func (s state) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// legal lists the transitions of each role besides those to finished, which every state but finished has.
var legal = map[Role]map[state][]state{
	Unified: {
		stateNew:        {stateCompiling, stateWaiting},
		stateCompiling:  {stateWaiting},
		stateWaiting:    {statePrefilling},
		statePrefilling: {stateRunning, stateWaiting},
		stateRunning:    {stateWaiting},
	},
	Prefill: {
		stateNew:           {stateCompiling, stateBootstrapping},
		stateCompiling:     {stateBootstrapping},
		stateBootstrapping: {stateWaiting},
		stateWaiting:       {statePrefilling},
		statePrefilling:    {stateInflight, stateWaiting},
	},
	Decode: {
		stateNew:           {stateCompiling, statePreallocating},
		stateCompiling:     {statePreallocating},
		statePreallocating: {stateTransferring},
		stateTransferring:  {stateWaiting},
		stateWaiting:       {stateRunning, statePrefilling},
		stateRunning:       {stateRetracted},
		stateRetracted:     {statePrefilling},
		statePrefilling:    {stateRunning, stateRetracted},
	},
}

// stages maps the states of a role to the stages of its timeline. Unified sequences enter decode_forward with their first
// decode step.
var stages = map[Role]map[state]ledger.Stage{
	Unified: {
		stateNew:        ledger.StageRequestProcess,
		stateCompiling:  ledger.StageRequestProcess,
		stateWaiting:    ledger.StagePrefillWaiting,
		statePrefilling: ledger.StagePrefillForward,
		stateRunning:    ledger.StageDecodeWaiting,
		stateFinished:   ledger.StageDone,
	},
	Prefill: {
		stateNew:           ledger.StagePrefillPrepare,
		stateCompiling:     ledger.StagePrefillPrepare,
		stateBootstrapping: ledger.StagePrefillBootstrap,
		stateWaiting:       ledger.StagePrefillWaiting,
		statePrefilling:    ledger.StagePrefillForward,
		stateInflight:      ledger.StagePrefillTransferKVCache,
		stateFinished:      ledger.StageDone,
	},
	Decode: {
		stateNew:           ledger.StageDecodePrepare,
		stateCompiling:     ledger.StageDecodePrepare,
		statePreallocating: ledger.StageDecodeBootstrap,
		stateTransferring:  ledger.StageDecodeTransferred,
		stateWaiting:       ledger.StageDecodeWaiting,
		stateRetracted:     ledger.StageDecodeWaiting,
		statePrefilling:    ledger.StageDecodeForward,
		stateRunning:       ledger.StageDecodeForward,
		stateFinished:      ledger.StageDone,
	},
}

// The transitions. Each says what must hold; move panics for one that the role does not have.

// becomeCompiling: its compilation has begun.
func (s *Scheduler) becomeCompiling(q *sequence) { s.move(q, stateCompiling) }

// becomeBootstrapping: a transfer is open.
func (s *Scheduler) becomeBootstrapping(q *sequence) { s.move(q, stateBootstrapping) }

// becomePreallocating: a transfer is open.
func (s *Scheduler) becomePreallocating(q *sequence) { s.move(q, statePreallocating) }

// becomeTransferring: the transfer has the pages of the prompt.
func (s *Scheduler) becomeTransferring(q *sequence) { s.move(q, stateTransferring) }

// becomeWaiting: nothing but the batch is missing.
func (s *Scheduler) becomeWaiting(q *sequence) { s.move(q, stateWaiting) }

// becomePrefilling: there are pages for all tokens.
func (s *Scheduler) becomePrefilling(q *sequence) { s.move(q, statePrefilling) }

// becomeRunning: all tokens but the last are computed, and the last one doesn't end the request.
func (s *Scheduler) becomeRunning(q *sequence) { s.move(q, stateRunning) }

// becomeInflight: all pages and the first token were given to the transfer.
func (s *Scheduler) becomeInflight(q *sequence) { s.move(q, stateInflight) }

// becomeRetracted: the pages are back in the pool.
func (s *Scheduler) becomeRetracted(q *sequence) {
	if s.cfg.Role == Decode {
		s.move(q, stateRetracted)
		return
	}
	s.move(q, stateWaiting)
}

// becomeFinished: the pages are back in the pool or held for the transfer. Only finish calls it.
func (s *Scheduler) becomeFinished(q *sequence) { s.move(q, stateFinished) }

func (s *Scheduler) move(q *sequence, to state) {
	from := q.state
	if from == stateFinished || to != stateFinished && !slices.Contains(legal[s.cfg.Role][from], to) {
		panic(fmt.Sprintf("scheduler: %s request %s moves from %s to %s, which is not a transition", s.cfg.Role, q.req.RID, from, to))
	}
	s.in[from].remove(q)
	q.state = to
	if to != stateFinished {
		s.in[to].add(q)
	}
	s.enter(q, stages[s.cfg.Role][to])
	if to == stateWaiting || to == stateRetracted {
		q.since = s.watch.read(int64(q.timeline.Entered()))
	}
}

// list holds the sequences of one state, the more urgent first, of those in order of arrival.
type list []*sequence

func (l list) search(q *sequence) (at int, found bool) {
	return slices.BinarySearchFunc(l, q, compareListed)
}

func compareListed(a, b *sequence) int {
	return cmp.Or(cmp.Compare(b.urgency, a.urgency), cmp.Compare(a.arrival, b.arrival))
}

func (l *list) add(q *sequence) {
	at, _ := l.search(q)
	*l = slices.Insert(*l, at, q)
}

func (l *list) remove(q *sequence) {
	at, found := l.search(q)
	if !found {
		panic(fmt.Sprintf("scheduler: request %s is not in the list of its state, %s", q.req.RID, q.state))
	}
	*l = slices.Delete(*l, at, at+1)
}
