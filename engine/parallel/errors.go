package parallel

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is the cause of operations of a world that this rank closed.
	ErrClosed = errors.New("this rank left the world")
	// ErrLeft is the cause inside a PeerError when that rank closed its world in order.
	ErrLeft = errors.New("left the world")
)

// PeerError names the rank that ended a world.
type PeerError struct {
	Rank int
	Err  error
}

func (e *PeerError) Error() string { return fmt.Sprintf("rank %d %v", e.Rank, e.Err) }

func (e *PeerError) Unwrap() error { return e.Err }

func peerErrorf(rank int, format string, args ...any) *PeerError {
	return &PeerError{Rank: rank, Err: fmt.Errorf(format, args...)}
}
