package trace

import "sync"

// queue holds finished spans until they are exported, in batches. Putting never waits. Safe for concurrent use.
//
// Invariants: count = Σ len(batches) <= size; all batches but the last are full; a span that was put is in a batch, was
// taken, or is counted in dropped.
type queue struct {
	size, batch int
	ready       chan struct{} // capacity 1: there is a full batch, or the queue is closed

	mu      sync.Mutex
	batches [][]span // oldest first, each with capacity batch
	spare   [][]span // given back, empty
	count   int
	dropped int64 // since the last take
	closed  bool
}

func newQueue(size, batch int) *queue {
	return &queue{size: size, batch: batch, ready: make(chan struct{}, 1)}
}

// put adds a span, or drops it: when there is no room, and after close.
func (q *queue) put(s span) {
	q.mu.Lock()
	if q.closed || q.count == q.size {
		q.dropped++
		q.mu.Unlock()
		return
	}
	last := len(q.batches) - 1
	if last < 0 || len(q.batches[last]) == q.batch {
		q.batches = append(q.batches, q.empty())
		last++
	}
	q.batches[last] = append(q.batches[last], s)
	q.count++
	full := len(q.batches[last]) == q.batch
	q.mu.Unlock()
	if full {
		q.signal()
	}
}

func (q *queue) empty() []span {
	if n := len(q.spare); n > 0 {
		b := q.spare[n-1]
		q.spare = q.spare[:n-1]
		return b
	}
	return make([]span, 0, q.batch)
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take gives the oldest batch, full or not; empty when there is none. more says that a full one is left, dropped how many
// spans were lost since the last call. The caller gives the batch back.
func (q *queue) take() (spans []span, more bool, dropped int64, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped, q.dropped = q.dropped, 0
	if len(q.batches) == 0 {
		return nil, false, dropped, q.closed
	}
	spans = q.batches[0]
	q.batches[0] = nil
	q.batches = q.batches[1:]
	q.count -= len(spans)
	more = len(q.batches) > 0 && (q.closed || len(q.batches[0]) == q.batch)
	return spans, more, dropped, q.closed
}

// maxSpare is how many empty batches are kept for the next spans.
const maxSpare = 4

// giveBack takes a batch whose spans nobody needs any more.
func (q *queue) giveBack(spans []span) {
	clear(spans)
	q.mu.Lock()
	defer q.mu.Unlock()
	if cap(spans) == q.batch && len(q.spare) < maxSpare {
		q.spare = append(q.spare, spans[:0])
	}
}

// close refuses what comes from now on.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}
