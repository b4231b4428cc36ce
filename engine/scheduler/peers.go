package scheduler

import "context"

// Peers are the schedulers of all ranks of a world, which take the same decisions. Its methods are called from the
// scheduler's goroutine, in the same order on every rank. An error means that a rank is gone; the rank ends with it.
type Peers interface {
	// Leader reports whether this rank takes requests and reads the clock for all.
	Leader() bool
	// Share gives the leader's own to all ranks; others pass nil and wait in it as long as the leader has nothing to say.
	Share(ctx context.Context, own []byte) ([]byte, error)
	// Exchange gives every rank's own to all, by rank.
	Exchange(ctx context.Context, own []byte) ([][]byte, error)
}
