package server

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// books keep account of the sequences that clients asked for: each is entered once and ends in exactly one outcome (law E3).
//
//	submitted = endings + len(open),  endings = Σ ended
type books struct {
	events Events
	log    *slog.Logger

	mu        sync.Mutex
	submitted int
	ended     map[request.Outcome]int // all outcomes
	endings   int                     // Σ ended
	open      map[*entry]bool
}

// entry is one sequence in the books.
type entry struct{ _ byte } // not empty, so that no two are at the same address

func newBooks(events Events, log *slog.Logger) *books {
	b := &books{events: events, log: log, ended: map[request.Outcome]int{}, open: map[*entry]bool{}}
	for _, outcome := range request.Outcomes() {
		b.ended[outcome] = 0
	}
	return b
}

// enter books n sequences that a client asks for.
func (b *books) enter(n int) []*entry {
	entries := make([]*entry, n)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range entries {
		entries[i] = &entry{}
		b.open[entries[i]] = true
	}
	b.book(n, 0, "")
	return entries
}

// end books that a sequence has ended.
func (b *books) end(e *entry, outcome request.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, e)
	b.book(0, 1, outcome)
}

// endOpen books the end of those of entries that have not ended.
func (b *books) endOpen(entries []*entry, outcome request.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, e := range entries {
		if b.open[e] {
			delete(b.open, e)
			n++
		}
	}
	if n > 0 {
		b.book(0, n, outcome)
	}
}

// refuse books a request that ends as soon as it comes.
func (b *books) refuse(outcome request.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.book(1, 1, outcome)
}

// book counts and tells, and checks the sum. The caller holds the lock and has changed open.
func (b *books) book(submitted, ended int, outcome request.Outcome) {
	b.submitted += submitted
	if ended > 0 {
		if _, exists := b.ended[outcome]; !exists {
			b.log.Error("a request ended in an outcome that does not exist: it counts as an internal error", "outcome", string(outcome))
			outcome = request.OutcomeInternal
		}
		b.ended[outcome] += ended
		b.endings += ended
	}
	b.events.Requests(submitted, ended, outcome, len(b.open))
	b.check()
}

// check compares the sum, which the set of open entries enters on its own.
func (b *books) check() {
	if b.submitted != b.endings+len(b.open) {
		b.violated()
	}
}

// checkEmpty is called when no client request is being answered: then no sequence can be open.
func (b *books) checkEmpty() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.open) > 0 {
		b.violated()
		lost := len(b.open) // nobody will end them any more
		clear(b.open)
		b.book(0, lost, request.OutcomeInternal)
	}
}

func (b *books) violated() {
	b.events.Violated(ledger.LawOutcomes)
	b.log.Error("a conservation law does not hold", "law", ledger.LawOutcomes.Number(), "name", ledger.LawOutcomes.String(),
		"submitted", b.submitted, "ended", fmt.Sprint(b.ended), "in_flight", len(b.open))
	if kvcache.Invariants {
		panic("server: submitted requests are not those that ended and those in flight")
	}
}
