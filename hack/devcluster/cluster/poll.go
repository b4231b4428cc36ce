package cluster

import (
	"context"
	"time"
)

// pollPeriod is the time between two looks at something that is being waited for.
const pollPeriod = 200 * time.Millisecond

// poll calls done until it reports true or fails, or until ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		finished, err := done()
		if finished || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
