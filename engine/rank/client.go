package rank

import (
	"context"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/request"
)

// Client is the API process's view of a rank, in another process or in this one. Safe for concurrent use.
type Client interface {
	// Submit hands a request over; it must not change afterwards. The stream gets the answer even when ctx ends: ctx
	// bounds the hand-over alone. Who loses interest calls Abort and may drop the stream.
	Submit(ctx context.Context, r *request.Request) (*Stream, error)
	// Abort ends the request with outcome reason, at any stage; an unknown or ended rid is no error. The stream still
	// gets the Finish.
	Abort(rid string, reason request.Outcome) error
	// AbortAll ends every request whose rid begins with prefix, with OutcomeAbortedOperator.
	AbortAll(prefix string) error
	// Loads gives the load at this moment, one for each DP rank in their order, all sections filled.
	Loads(ctx context.Context) ([]loads.Load, error)
	// Timelines gives the scheduler's timelines of requests that live, by rid, as far as they have come; those that the scheduler
	// has not taken yet and those that have ended are left out. With an error there may be some. It may wait for a step.
	Timelines(ctx context.Context, rids []string) (map[string]*ledger.Record, error)
	// Info gives the facts of the rank.
	Info() Info
	// Flush empties the prefix cache; an error when the rank isn't idle.
	Flush(ctx context.Context) error
	// Pause stops computing until Continue; mode says what becomes of the requests that run. New ones queue, and so may some
	// that were handed over just before: calls other than Submit and Abort are not in order with these.
	Pause(ctx context.Context, mode request.PauseMode) error
	// Continue ends a pause; there need not be one.
	Continue(ctx context.Context) error
	// OpenSession opens a session; an error when its id is in use or when the rank has no sessions.
	OpenSession(ctx context.Context, s request.Session) error
	// CloseSession closes a session, ends its turn if one runs and frees what it holds; an error when there is none.
	CloseSession(ctx context.Context, id string) error
	// StartProfile begins to record profiles of every process of the rank's; an error when one records already, and then the
	// others record no more than before. With steps each counts its own.
	StartProfile(ctx context.Context, o profile.Options) error
	// StopProfile ends the recording, if it has not ended by itself, and gives its files, also those of the processes that could
	// write theirs when others could not.
	StopProfile(ctx context.Context) (files []string, err error)
	// AwaitStep waits until step n of the scheduler is over and gives the newest that is; of several DP ranks what counts is
	// the one that has come furthest. n = 0 waits for none.
	AwaitStep(ctx context.Context, n int64) (newest int64, err error)
	// Collect makes every process of the rank's collect its garbage now.
	Collect(ctx context.Context) error
	// Done is closed when the rank has ended, in order or not; Err then says why: nil after Close, else a named error.
	Done() <-chan struct{}
	Err() error
	// Close ends the rank: running requests are aborted. It waits for the end until ctx ends, then kills.
	Close(ctx context.Context) error
}
