package scheduler

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// The books: sums that say the same twice, kept by different hands, and compared while the scheduler runs. See
// docs/ledger.md.

// pass is one way of a sequence through prefill: from its admission until its last token is computed.
//
// Invariant: 0 <= found + computed <= tokens, and at its end found + computed = tokens.
type pass struct {
	open     bool
	tokens   int // of the sequence at its admission
	found    int // of these in the prefix cache
	computed int // by steps that are over
}

// left is what a pass still has to compute.
func (p pass) left() int { return p.tokens - p.found - p.computed }

// passes sums over all passes. Invariant: admitted = found + computed + cut + Σ left over open passes.
type passes struct {
	admitted int64 // tokens of passes that began
	found    int64 // of these in the prefix cache
	computed int64 // by steps that are over
	cut      int64 // left over by passes that ended early
	vain     int64 // computed by steps for requests that had ended meanwhile; in no pass any more
}

// promptBook is where the KV of a sequence's prompt came from the first time that the sequence had it. What it computes again
// after it lost its pages is counted apart.
//
// Invariant: received + cached + computed = min(reached, the prompt's length); a pass ends with reached >= that length.
type promptBook struct {
	received int // from a prefill rank
	cached   int // from the prefix cache
	computed int // by its own steps
	again    int // tokens of prompt and answer that its steps computed once more
	reached  int // tokens whose KV it had at one time or another
}

// extend says that the sequence has the KV of its first to tokens, and gives how many of the prompt are new.
func (b *promptBook) extend(to, prompt int) (fresh int) {
	fresh = max(min(to, prompt)-min(b.reached, prompt), 0)
	b.reached = max(b.reached, to)
	return fresh
}

// beginPass follows the admission of a sequence, which found so many of its tokens.
func (s *Scheduler) beginPass(q *sequence, found int) {
	q.book.cached += q.book.extend(found, q.prompt)
	q.pass = pass{open: true, tokens: len(q.tokens), found: found}
	s.passes.admitted += int64(q.pass.tokens)
	s.passes.found += int64(found)
}

// bookChunk follows the computation of a chunk that ends at q.computed; last says that it ends the pass.
func (s *Scheduler) bookChunk(q *sequence, tokens int, last bool) {
	q.pass.computed += tokens
	s.passes.computed += int64(tokens)
	fresh := min(q.book.extend(q.computed, q.prompt), tokens)
	q.book.computed += fresh
	q.book.again += tokens - fresh
	if !last {
		return
	}
	if p := q.pass; p.left() != 0 {
		s.violate(ledger.LawPromptTokens, fmt.Errorf("request %s: %d tokens are computed, %d were found and %d computed, %d times retracted",
			q.req.RID, p.tokens, p.found, p.computed, q.retractions))
	}
	if b := q.book; q.prompt != b.received+b.cached+b.computed {
		s.violate(ledger.LawPromptTokens, fmt.Errorf("request %s: the prompt has %d tokens, %d were received, %d cached and %d computed",
			q.req.RID, q.prompt, b.received, b.cached, b.computed))
	}
	q.pass.open = false
}

// bookVain follows the computation of a chunk of a request that has ended.
func (s *Scheduler) bookVain(tokens int) { s.passes.vain += int64(tokens) }

// cutPass follows the loss of a sequence's pages.
func (s *Scheduler) cutPass(q *sequence) {
	if q.pass.open {
		s.passes.cut += int64(q.pass.left())
		q.pass.open = false
	}
}

// audit compares what can be compared at any time between two steps' results. Every report begins with it.
func (s *Scheduler) audit() {
	if err := s.auditPages(); err != nil {
		s.violate(ledger.LawPages, err)
	}
	if err := s.auditPasses(); err != nil {
		s.violate(ledger.LawPromptTokens, err)
	}
}

// holders are the states in which a sequence may have pages, waiting on decode ranks alone.
var holders = [...]state{statePrefilling, stateRunning, stateTransferring, stateInflight, stateWaiting}

// auditPages counts the pages at those who have them: the pool its free ones, the tree its own, sequences theirs, and the
// list of held pages those that wait for a transfer or a step. The pool's ledger says the same.
func (s *Scheduler) auditPages() error {
	var own, window, held, heldWindow, tree int
	for _, st := range holders {
		if st == stateWaiting && s.cfg.Role != Decode {
			continue // a long queue without pages
		}
		for _, q := range s.in[st] {
			own += len(q.pages) - q.prefix.Pages()
			if s.windowed() {
				window += q.ownWindowPages(s.cfg.PageSize)
			}
		}
	}
	for _, h := range s.held {
		held += len(h.pages)
		heldWindow += len(h.window)
	}
	if s.tree != nil {
		tree = s.tree.Size()
	}
	size := s.cfg.PageSize
	if err := balance("KV pool", s.pool.Stats(), own*size, held*size, tree); err != nil || !s.windowed() {
		return err
	}
	windowTree := 0
	if s.tree != nil {
		windowTree = s.tree.WindowSize()
	}
	return balance("window pool", s.window.Stats(), window*size, heldWindow*size, windowTree)
}

// balance compares a pool's ledger with what others hold of it, all in tokens.
func balance(pool string, st kvcache.Stats, own, held, tree int) error {
	sum := st.Available + st.Evictable + st.Used + st.Reserved
	if sum == st.Capacity && st.Available+tree+own+held == st.Capacity && st.Reserved == held && st.Used+st.Evictable == own+tree {
		return nil
	}
	return fmt.Errorf("%s: capacity %d, available %d + evictable %d + used %d + reserved %d = %d; the tree has %d, sequences %d, %d are held",
		pool, st.Capacity, st.Available, st.Evictable, st.Used, st.Reserved, sum, tree, own, held)
}

func (s *Scheduler) auditPasses() error {
	var left int64
	for _, q := range s.in[statePrefilling] {
		if q.pass.open {
			left += int64(q.pass.left())
		}
	}
	if p := s.passes; p.admitted != p.found+p.computed+p.cut+left {
		return fmt.Errorf("%d tokens were admitted; %d found + %d computed + %d cut short + %d left = %d",
			p.admitted, p.found, p.computed, p.cut, left, p.found+p.computed+p.cut+left)
	}
	return nil
}

// closeBooks gives the ended sequence's Finish its numbers and verifies them.
func (s *Scheduler) closeBooks(q *sequence, f *request.Finish) {
	r := q.timeline.Record()
	r.Transfer = s.transferred(q)
	s.tellMoved(q)
	f.Timeline, f.QueueNanos = r, r.QueueNanos
	f.ComputedTokens, f.ReprocessedTokens = q.book.computed, q.book.again
	if err := r.Check(); err != nil {
		s.violate(ledger.LawStages, fmt.Errorf("request %s: %w", q.req.RID, err))
	}
	if s.cfg.AssertTimes {
		if err := q.timeline.Assert(r); err != nil {
			panic(fmt.Sprintf("scheduler: times of request %s: %v", q.req.RID, err))
		}
	}
}

// transferred gives what has gone over for a sequence so far; nil: nothing. It is the one reading of that for the record, the
// metrics and the load.
func (s *Scheduler) transferred(q *sequence) *ledger.Transfer {
	if q.hand == nil || q.hand.transfer == nil {
		return nil
	}
	stats := q.hand.transfer.Stats()
	if stats.TotalBytes == 0 {
		return nil
	}
	t := &ledger.Transfer{OwnBytes: stats.TotalBytes, Nanos: stats.LatencyNanos}
	if stats.PeerKnown {
		t.PeerBytes = &stats.PeerBytes
	}
	if t.Nanos <= 0 && q.sending != nil {
		t.Nanos = q.timeline.Duration(ledger.StagePrefillTransferKVCache)
	}
	return t
}

// tellMoved reports the bytes of a hand-over that has ended on this rank, once.
func (s *Scheduler) tellMoved(q *sequence) {
	if q.hand == nil || q.hand.transfer == nil || q.hand.told {
		return
	}
	q.hand.told = true
	if stats := q.hand.transfer.Stats(); stats.TotalBytes > 0 {
		s.deps.Reporter.KVMoved(report.KVMoved{Bytes: stats.TotalBytes, Received: q.receiving != nil, Done: q.hand.own() == disagg.Done})
	}
}

// auditTransfer compares what both sides of a hand-over that is done say of its bytes.
func (s *Scheduler) auditTransfer(q *sequence) {
	s.tellMoved(q)
	if q.hand == nil || q.hand.transfer == nil || q.hand.own() != disagg.Done {
		return
	}
	if stats := q.hand.transfer.Stats(); !stats.PeerKnown || stats.PeerBytes != stats.TotalBytes {
		s.violate(ledger.LawKVBytes, fmt.Errorf("request %s: this rank counts %d bytes of KV, its peers %d (said: %t)",
			q.req.RID, stats.TotalBytes, stats.PeerBytes, stats.PeerKnown))
	}
}

// meetPeer notes when the two halves of a hand-over had met, before the sequence leaves the queue for that.
func (s *Scheduler) meetPeer(q *sequence) {
	if q.hand == nil || q.hand.transfer == nil {
		return
	}
	if nanos := q.hand.transfer.Stats().BootstrapNanos; nanos > 0 {
		q.timeline.MeetPeer(q.timeline.Entered() + ledger.Instant(nanos))
	}
}

// violate tells of a breach of a conservation law. It may not happen; builds with invariants don't survive it.
func (s *Scheduler) violate(law ledger.Law, numbers error) {
	s.deps.Reporter.Violated(law)
	s.deps.Log.Error("a conservation law does not hold", "law", law.Number(), "name", law.String(), "numbers", numbers)
	if kvcache.Invariants {
		panic(fmt.Sprintf("scheduler: %s, %s: %v", law.Number(), law, numbers))
	}
}
