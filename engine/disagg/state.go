package disagg

import (
	"errors"
	"fmt"

	"github.com/sluice-dev/sluice/engine/request"
)

// State is where a session is. A Sender goes Bootstrapping → Ready → Sending → Done, a Receiver Bootstrapping →
// WaitingPages → Transferring → Done; every state but Done may go to Failed.
type State uint8

const (
	// Bootstrapping means: the peers have not met yet.
	Bootstrapping State = iota
	// WaitingPages (decode): the peer is there; Allocate is due.
	WaitingPages
	// Ready (prefill): the peer is there and has pages for the whole prompt; the forward may start.
	Ready
	// Sending (prefill): at least one page was queued, or Finish was called.
	Sending
	// Transferring (decode): pages were allocated and are being filled.
	Transferring
	// Done means: all pages and the first token arrived, and both sides know. Settled.
	Done
	// Failed means: Err says why. Settled.
	Failed
)

var stateNames = [...]string{"Bootstrapping", "WaitingPages", "Ready", "Sending", "Transferring", "Done", "Failed"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Terminal reports whether the session is over and its pages are no longer touched.
func (s State) Terminal() bool { return s == Done || s == Failed }

// legal lists the transitions; everything else is a programming error.
var legal = map[State][]State{
	Bootstrapping: {WaitingPages, Ready, Failed},
	WaitingPages:  {Transferring, Failed},
	Ready:         {Sending, Failed},
	Sending:       {Done, Failed},
	Transferring:  {Done, Failed},
}

// checkTransition panics with both states when a session may not go from one to the other.
func checkTransition(from, to State) {
	for _, s := range legal[from] {
		if s == to {
			return
		}
	}
	panic(fmt.Sprintf("disagg: illegal transition %v → %v", from, to))
}

// Reason is why a session failed: a closed set, fit for a label.
type Reason string

const (
	// ReasonTimeout means: the peer, its pages or its ack did not come in time.
	ReasonTimeout Reason = "timeout"
	// ReasonPeerDied means: the connection broke, or the peer was silent longer than IdleTimeout.
	ReasonPeerDied Reason = "peer_died"
	// ReasonUnreachable means: the bootstrap server or the prefill rank could not be reached.
	ReasonUnreachable Reason = "unreachable"
	// ReasonAuth means: the peers do not share the secret.
	ReasonAuth Reason = "auth"
	// ReasonMismatch means: the peers differ in model, layout or prompt length.
	ReasonMismatch Reason = "mismatch"
	// ReasonStale means: the peer is not the process that was registered, or the room is over already.
	ReasonStale Reason = "stale"
	// ReasonDamaged means: a page's checksum is wrong.
	ReasonDamaged Reason = "damaged"
	// ReasonProtocol means: a frame that is not allowed here: wrong order, ordinal, size, a duplicate, or missing pages.
	ReasonProtocol Reason = "protocol"
	// ReasonAborted means: this side ended the session with Abort or Close.
	ReasonAborted Reason = "aborted"
	// ReasonPeerAborted means: the other side did.
	ReasonPeerAborted Reason = "peer_aborted"
	// ReasonOverload means: the prefill rank holds as many waiting peers as it may.
	ReasonOverload Reason = "overload"
	// ReasonLocal means: this rank's own memory refused a page, or its scheduler broke the calling rules.
	ReasonLocal Reason = "local"
)

// fault is the failure again, as it is passed on: to other sessions of the room and to peers that come later.
func (e *Error) fault() *fault { return &fault{reason: e.Reason, outcome: e.Outcome, err: e.Err} }

// Error is the end of a failed session.
type Error struct {
	Step     State  // the state in which it failed
	Reason   Reason // the label
	Room     int64
	Peer     string // address of the other side, empty when it was never met
	FromPeer bool   // the other side noticed and told us
	Err      error  // the detail

	// Outcome is what the request ended in at the side that ended it: Common. Empty when that side did not say.
	Outcome request.Outcome
}

func (e *Error) Error() string {
	who := ""
	if e.Peer != "" {
		who = " with " + e.Peer
	}
	told := ""
	if e.FromPeer {
		told = "the peer reports: "
	}
	return fmt.Sprintf("kv transfer of room %d%s failed in %v (%s): %s%v", e.Room, who, e.Step, e.Reason, told, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Bootstrap reports whether the peers had not finished meeting: the request counts as a failed bootstrap, otherwise as
// a failed transfer.
func (e *Error) Bootstrap() bool { return e.Step == Bootstrapping }

// ReasonOf gives the reason in err's chain, ReasonLocal when there is none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	var f *fault
	if errors.As(err, &f) {
		return f.reason
	}
	return ReasonLocal
}

// fault is an error with its reason, before the session that it ends adds room, peer and step.
type fault struct {
	reason   Reason
	outcome  request.Outcome // of the request, Common; empty: not known
	fromPeer bool
	told     bool // the peer of this connection is to hear of it, although it is another one that died
	err      error
}

// Ended is the reason for Abort when the request has ended here. The peer hears the text, and the outcome when that is Common.
type Ended struct {
	Outcome request.Outcome
	Text    string
}

func (e *Ended) Error() string { return e.Text }

// common is the outcome that the peer of an aborted hand-over ends its half with; empty: the reason says nothing about that.
func common(reason error) request.Outcome {
	var e *Ended
	if errors.As(reason, &e) && e.Outcome.Common() {
		return e.Outcome
	}
	return ""
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func faultf(r Reason, format string, args ...any) *fault {
	return &fault{reason: r, err: fmt.Errorf(format, args...)}
}

// Event is something an operator wants to see in the log; nothing in it is secret.
type Event struct {
	Kind EventKind
	Room int64  // 0 when none is known
	Peer string // address
	Err  error  // nil for Registered and Met
}

// EventKind tells events apart.
type EventKind uint8

const (
	// EventRegistered means: the prefill rank is known to its bootstrap server.
	EventRegistered EventKind = iota
	// EventRegisterRetry means: registration failed and will be tried again.
	EventRegisterRetry
	// EventRefused means: a connection to the prefill rank was refused before it could touch a room.
	EventRefused
	// EventFailed means: a session ended in Failed.
	EventFailed
)
