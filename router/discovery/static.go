package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Static is a fixed list of engines whose readiness is found by asking GET /health.
type Static struct {
	engines  []Engine
	interval time.Duration // between two checks of an engine
	timeout  time.Duration // of one check
	client   *http.Client
}

// maxSlow is how many checks in a row may time out before an engine counts as not ready: a busy engine answers late.
// A refused connection or an answer other than 200 counts at once.
const maxSlow = 3

// NewStatic makes a source of engines that are checked every interval.
func NewStatic(engines []Engine, interval time.Duration) (*Static, error) {
	if interval <= 0 {
		return nil, fmt.Errorf("--health-interval is %v: give more than 0s, for example 2s", interval)
	}
	seen := map[string]bool{}
	for _, e := range engines {
		if seen[e.ID] {
			return nil, fmt.Errorf("engine %s is given twice: name it once", e.Name)
		}
		seen[e.ID] = true
	}
	return &Static{
		engines: slices.Clone(engines), interval: interval, timeout: 10 * time.Second,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}, nil
}

// Run checks all engines until ctx ends.
func (s *Static) Run(ctx context.Context, update func([]Engine)) error {
	current := slices.Clone(s.engines)
	update(slices.Clone(current))
	type result struct {
		index  int
		state  State
		reason string
	}
	results := make(chan result)
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, e := range s.engines {
		wg.Go(func() {
			tick := time.NewTicker(s.interval)
			defer tick.Stop()
			slow := 0
			for {
				state, reason, timedOut := s.check(ctx, e.URL)
				if slow++; !timedOut {
					slow = 0
				}
				if slow == 0 || slow >= maxSlow {
					select {
					case results <- result{i, state, reason}:
					case <-ctx.Done():
						return
					}
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-results:
			e := &current[r.index]
			if e.State == r.state && e.Reason == r.reason {
				continue
			}
			e.State, e.Reason = r.state, r.reason
			update(slices.Clone(current))
		}
	}
}

// check asks one engine once.
func (s *Static) check(ctx context.Context, base string) (state State, reason string, timedOut bool) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", nil)
	if err != nil {
		return StateNotReady, err.Error(), false
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return StateNotReady, "health check: " + err.Error(), errors.Is(err, context.DeadlineExceeded)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) //nolint:errcheck // only the status counts
	if resp.StatusCode != http.StatusOK {
		return StateNotReady, fmt.Sprintf("health check: HTTP %d", resp.StatusCode), false
	}
	return StateReady, "", false
}
