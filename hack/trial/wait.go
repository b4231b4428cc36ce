package trial

import (
	"context"
	"fmt"
	"time"
)

// pollPeriod is the time between two looks at a condition.
const pollPeriod = 300 * time.Millisecond

// Until looks at a condition until it holds. look tells the state in words, whether it is the wanted one, and an error that
// ends the wait at once. Each new state is logged. When the limit passes, the error holds what was awaited and the last state.
func (t *Trial) Until(ctx context.Context, limit time.Duration, what string, look func(context.Context) (state string, done bool, err error)) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	last := ""
	for {
		state, done, err := look(ctx)
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if done {
			return nil
		}
		if state != "" && state != last {
			last = state
			t.logf("  waiting for %s: %s", what, state)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last seen: %s", what, context.Cause(ctx), last)
		case <-end.C:
			return fmt.Errorf("waited %s for %s; last seen: %s", limit, what, last)
		case <-ticker.C:
		}
	}
}
