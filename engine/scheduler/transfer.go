package scheduler

import (
	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/request"
)

// Transfer is one request's hand-over, seen from either side. Its methods never block and are called from the
// scheduler's goroutine. While the state isn't terminal the other side may touch the pages; from then on nobody does.
type Transfer interface {
	State() disagg.State
	Err() error // why, once the state is Failed
	// Abort ends the transfer, with a reason that the peer is told. The state becomes terminal some time later.
	Abort(reason error)
	Stats() disagg.TransferStats
}

// Sending is the prefill side. After Ready come Send for every page of every layer, in any order, and then Finish.
type Sending interface {
	Transfer
	// Send queues page, the ordinal-th of the sequence, of one layer. Its KV is final.
	Send(layer, ordinal int, page int32)
	// Finish queues the first token. It comes after all pages.
	Finish(first disagg.First)
}

// Receiving is the decode side. After WaitingPages comes Allocate, once.
type Receiving interface {
	Transfer
	// Allocate gives the pages of the prompt, in order. The receiver may write them from now on.
	Allocate(pages []int32)
	// First is what came with the KV; ok once the state is Done.
	First() (first disagg.First, ok bool)
}

// Sender opens hand-overs on a prefill rank. It calls the scheduler's Wake after a state has changed.
type Sender interface {
	// Open gives an error when the request can't be handed over, and then there is nothing to abort.
	Open(room int64, promptTokens int) (Sending, error)
}

// Receiver opens hand-overs on a decode rank. It calls the scheduler's Wake after a state has changed.
type Receiver interface {
	// Open gives an error when the request can't be handed over, and then there is nothing to abort.
	Open(at request.Bootstrap, promptTokens int) (Receiving, error)
}
