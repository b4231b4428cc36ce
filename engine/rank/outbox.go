package rank

import (
	"sync"

	"github.com/sluice-dev/sluice/engine/request"
)

// outbox holds what the scheduler said and the connection has not taken yet: one joined piece per request, so it is
// bounded by the answers of the live requests, and putting never waits for the connection.
type outbox struct {
	ready chan struct{} // capacity 1: there may be something to take

	mu      sync.Mutex
	live    map[string]struct{} // submitted over this connection, not finished
	pending map[string]*request.Output
	order   []string // keys of pending, by first put
}

func newOutbox() *outbox {
	return &outbox{ready: make(chan struct{}, 1), live: map[string]struct{}{}, pending: map[string]*request.Output{}}
}

// expect notes that outputs of rid will come.
func (b *outbox) expect(rid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.live[rid] = struct{}{}
}

// Put implements scheduler.Sink.
func (b *outbox) Put(o request.Output) {
	b.mu.Lock()
	before := b.pending[o.RID]
	if before == nil {
		b.order = append(b.order, o.RID)
	}
	b.pending[o.RID] = Join(before, o)
	if o.Finish != nil {
		delete(b.live, o.RID)
	}
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take gives all pieces, in the order in which their requests first spoke.
func (b *outbox) take() []request.Output {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.order) == 0 {
		return nil
	}
	outputs := make([]request.Output, len(b.order))
	for i, rid := range b.order {
		outputs[i] = *b.pending[rid]
	}
	b.order = b.order[:0]
	clear(b.pending)
	return outputs
}

// unfinished gives the rids whose Finish was not put.
func (b *outbox) unfinished() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	rids := make([]string, 0, len(b.live))
	for rid := range b.live {
		rids = append(rids, rid)
	}
	return rids
}
