package scheduler

import (
	"sync"

	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/request"
)

// message is what others may ask of the scheduler's goroutine. Messages are handled in the order in which they came, as far
// as an intake does not say otherwise.
type message interface{ isMessage() }

type submitMsg struct {
	req  *request.Request
	sink Sink
}

// abortMsg ends the request rid, or with prefix every request whose rid begins so.
type abortMsg struct {
	rid    string
	prefix bool
	reason request.Outcome
}

// flushMsg empties the prefix cache when nothing lives; reply has room for the answer.
type flushMsg struct{ reply chan<- error }

// controlMsg asks for what its kind says; reply has room for the answer.
type controlMsg struct {
	kind    controlKind
	mode    request.PauseMode // of controlPause
	session request.Session   // of controlOpenSession; its ID of controlCloseSession
	reply   chan<- error
}

// controlKind is what a controlMsg asks for.
type controlKind uint8

const (
	controlPause        controlKind = iota // stop computing
	controlContinue                        // compute again
	controlOpenSession                     // keep the KV of the turns that name it
	controlCloseSession                    // free what it holds
)

// grammarMsg tells what became of the grammar of the request that arrived as the arrival-th.
type grammarMsg struct {
	arrival int64
	verdict verdict
	message string // of grammarFailed, for the client
}

// ofSession reports whether it is about one session.
func (m controlMsg) ofSession() bool {
	return m.kind == controlOpenSession || m.kind == controlCloseSession
}

// abortsAll reports whether it ends all requests that live.
func (m controlMsg) abortsAll() bool { return m.kind == controlPause && m.mode == request.PauseAbort }

func (grammarMsg) isMessage() {}

// maskMsg tells what the newest token of the request that arrived as the arrival-th did in its grammar. With neither ended nor
// fault the mask of the next token is there.
type maskMsg struct {
	arrival     int64
	ended, left bool   // see masking
	fault       string // why there is no mask
}

func (maskMsg) isMessage()    {}
func (submitMsg) isMessage()  {}
func (abortMsg) isMessage()   {}
func (flushMsg) isMessage()   {}
func (controlMsg) isMessage() {}

// inbox is the one place where other goroutines meet the scheduler. The load that it publishes counts each request once
// from the moment Submit returns: in pending until the load that includes it is published.
type inbox struct {
	wake  chan struct{} // capacity 1: there may be something to do
	bound bound         // of what a step takes

	mu            sync.Mutex
	left          backlog   // by the last take; it comes before messages
	messages      []message // since then
	looks         []look
	closed        bool
	pendingReqs   int // submitted, not in load yet
	pendingTokens int // of their prompts
	load          loads.Load
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1), bound: stepBound} }

// put hands a message over; false when the scheduler has ended and nobody will handle it.
func (b *inbox) put(m message) bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	b.messages = append(b.messages, m)
	if m, ok := m.(submitMsg); ok {
		b.pendingReqs++
		b.pendingTokens += len(m.req.PromptIDs)
	}
	b.mu.Unlock()
	b.signal()
	return true
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take gives what one step may act on. Where something is left there is something to do for the next.
func (b *inbox) take() intake {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.bound.take(b.left, b.messages)
	b.messages = nil
	if b.left = t.backlog; len(t.left) > 0 {
		b.signal()
	}
	return t
}

// close makes put refuse, and returns what nobody handled.
func (b *inbox) close() ([]message, []look) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	m, l := append(b.left.left, b.messages...), b.looks
	b.left, b.messages, b.looks = backlog{}, nil, nil
	return m, l
}

// publish replaces the load. reqs and tokens are the submissions that l includes and the load before did not.
func (b *inbox) publish(l loads.Load, reqs, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.load = l
	b.pendingReqs -= reqs
	b.pendingTokens -= tokens
}

// current is the published load, and what was submitted since.
func (b *inbox) current() (l loads.Load, reqs, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.load, b.pendingReqs, b.pendingTokens
}
