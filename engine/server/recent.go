package server

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// recentBytes is what a finished request may take in the ring, on average: one that was retracted often takes more, and
// then others go earlier.
const recentBytes = 4 << 10

// recentRequests remembers the timelines of the sequences that live and of the last that ended. It holds numbers and names,
// never a prompt or an answer. Safe for concurrent use; nil remembers nothing.
//
// Invariants: len(ended) <= capacity; bytes = Σ size over ended <= capacity*recentBytes; newest[rid] is in live or in ended.
type recentRequests struct {
	capacity int

	mu     sync.Mutex
	live   map[*recent]struct{}
	newest map[string]*recent // by rid
	ended  []*recent          // a ring: the oldest is at first
	first  int
	bytes  int
	gone   int64 // ended ones that are not there any more
}

// recent is one sequence. The fields before mu don't change.
type recent struct {
	rid       string
	prompt    int
	streaming bool
	priority  *int
	started   ledger.Instant
	room      *int64 // where the halves of a request meet; nil on a unified engine
	size      int    // bytes, once it has ended

	tokens atomic.Int64 // of the answer so far
	dpRank atomic.Int64 // the data-parallel rank that has it; -1: not known, or there is one

	mu       sync.Mutex
	timeline ledger.Timeline // as of the last move
	ending   *ending         // nil: it lives; does not change any more
}

// ending is what is known when a sequence has ended.
type ending struct {
	outcome                                                  request.Outcome
	message                                                  string
	api                                                      *ledger.Record
	rank                                                     *ledger.Record // nil: no rank told
	prompt, cached, computed, reprocessed, tokens, retracted int
}

// newRecentRequests remembers as many ended sequences; nil when that is 0.
func newRecentRequests(capacity int) *recentRequests {
	if capacity == 0 {
		return nil
	}
	return &recentRequests{capacity: capacity, live: map[*recent]struct{}{}, newest: map[string]*recent{}}
}

// begin remembers a sequence from now on; nil when it is not to be remembered.
func (l *recentRequests) begin(spec *sequenceSpec) *recent {
	if l == nil || spec.uncounted {
		return nil
	}
	x := &recent{rid: spec.rid, prompt: len(spec.prompt), streaming: spec.streaming, priority: spec.priority, started: spec.timeline.Started(), timeline: spec.timeline}
	x.dpRank.Store(-1)
	if b := spec.bootstrap; b != nil {
		x.room = &b.Room
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[x] = struct{}{}
	l.newest[x.rid] = x
	return x
}

// moved takes over what the sequence's timeline says now.
func (x *recent) moved(t *ledger.Timeline) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.timeline = *t
}

// generated takes over the number of answer tokens.
func (x *recent) generated(tokens int) {
	if x != nil {
		x.tokens.Store(int64(tokens))
	}
}

// end puts a sequence into the ring, and lets the oldest ones go that have no room any more.
func (l *recentRequests) end(x *recent, e ending) {
	if l == nil || x == nil {
		return
	}
	x.mu.Lock()
	x.ending, x.timeline = &e, ledger.Timeline{}
	x.mu.Unlock()

	l.mu.Lock()
	defer l.mu.Unlock()
	x.size = sizeOf(x, &e)
	delete(l.live, x)
	l.bytes += x.size
	if len(l.ended) < l.capacity {
		l.ended = append(l.ended, x)
	} else {
		l.drop(l.first)
		l.ended[l.first] = x
		l.first = (l.first + 1) % l.capacity
	}
	for at := 0; l.bytes > l.capacity*recentBytes && at < len(l.ended); at++ {
		l.drop((l.first + at) % len(l.ended))
	}
}

// drop empties a place of the ring.
func (l *recentRequests) drop(at int) {
	x := l.ended[at]
	if x == nil {
		return
	}
	l.ended[at] = nil
	l.bytes -= x.size
	l.gone++
	if l.newest[x.rid] == x {
		delete(l.newest, x.rid)
	}
}

// sizeOf estimates the bytes that an ended sequence takes.
func sizeOf(x *recent, e *ending) int {
	size := 1600 + len(x.rid) + len(e.message) // the values themselves with their places in the maps, and a timeline
	for _, r := range []*ledger.Record{e.api, e.rank} {
		if r != nil {
			size += 200 + 24*(len(r.Visits)+len(r.Spent))
		}
	}
	return size
}

// find gives the newest sequence of a rid; nil when it is not remembered.
func (l *recentRequests) find(rid string) *recent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest[rid]
}

// all gives what is remembered: what lives, then what ended, the newest first.
func (l *recentRequests) all() []*recent {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*recent, 0, len(l.live)+len(l.ended))
	for x := range l.live {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *recent) int { // no order of the map shows
		return cmp.Or(-cmp.Compare(a.started, b.started), cmp.Compare(a.rid, b.rid))
	})
	for i := range l.ended {
		if x := l.ended[(l.first+len(l.ended)-1-i)%len(l.ended)]; x != nil {
			list = append(list, x)
		}
	}
	return list
}

// counts gives how many are remembered that live, that ended, and how many have been forgotten.
func (l *recentRequests) counts() (live, ended int, gone int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.ended {
		if x != nil {
			ended++
		}
	}
	return len(l.live), ended, l.gone
}

// publish puts the sequence's end into the ring.
func (q *sequence) publish(outcome request.Outcome, message string) {
	if q.recent == nil {
		return
	}
	e := ending{
		outcome: outcome, message: clip(message), api: q.timeline.Record(),
		prompt: q.promptTokens, cached: q.cachedTokens, tokens: q.completionTokens, retracted: q.retractions,
	}
	if f := q.finish; f != nil {
		e.rank, e.computed, e.reprocessed = f.Timeline, f.ComputedTokens, f.ReprocessedTokens
	}
	q.server.recent.end(q.recent, e)
}
