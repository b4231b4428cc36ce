package trial

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Load is a number of clients that send requests one after the other until it is stopped.
type Load struct {
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu       sync.Mutex
	done     int            // requests answered in full
	failures map[string]int // failed requests by error text
}

// Report counts what a load did. A request that was under way when the load was stopped counts in neither.
type Report struct {
	Done     int
	Failures map[string]int
}

// Failed is the number of requests that did not succeed.
func (r Report) Failed() int {
	sum := 0
	for _, n := range r.Failures {
		sum += n
	}
	return sum
}

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests answered, %d failed", r.Done, r.Failed())
	for _, text := range slices.Sorted(maps.Keys(r.Failures)) {
		fmt.Fprintf(&b, "\n    %d x %s", r.Failures[text], text)
	}
	return b.String()
}

// StartLoad starts clients that each repeat request(ctx, n); n counts up over all clients and makes prompts differ.
func StartLoad(ctx context.Context, clients int, request func(ctx context.Context, n int) error) *Load {
	ctx, cancel := context.WithCancel(ctx)
	l := &Load{cancel: cancel, failures: map[string]int{}}
	next := 0
	for range clients {
		l.group.Go(func() {
			for ctx.Err() == nil {
				l.mu.Lock()
				n := next
				next++
				l.mu.Unlock()
				err := request(ctx, n)
				l.mu.Lock()
				switch {
				case err == nil:
					l.done++
				case ctx.Err() == nil:
					l.failures[err.Error()]++
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

// Now counts what was done so far.
func (l *Load) Now() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Report{Done: l.done, Failures: maps.Clone(l.failures)}
}

// Stop ends the clients, cutting off what is under way, and gives the final count.
func (l *Load) Stop() Report {
	l.cancel()
	l.group.Wait()
	return l.Now()
}
