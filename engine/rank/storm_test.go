package rank

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/request"
)

// TestStorm: many clients at once, of which half go away at some point, on a small pool. Each request ends exactly once,
// what came of an answer is right, and in the end every page is free.
func TestStorm(t *testing.T) {
	dir := seededModel(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type job struct {
		req     *request.Request
		abortAt int // tokens after which the client goes; -1: never
	}
	var jobs []job
	for i := range 120 {
		j := job{req: newRequest(fmt.Sprint("r", i), prompt(1+rng.IntN(120)), 1+rng.IntN(50)), abortAt: -1}
		if rng.IntN(2) == 0 {
			j.abortAt = rng.IntN(30)
		}
		jobs = append(jobs, j)
	}
	reference := startClient(t, startKinds[0], testConfig(dir))
	want := make([][]int32, len(jobs))
	for i, j := range jobs {
		want[i], _ = answer(t, submit(t, reference, j.req))
	}
	cfg := testConfig(dir)
	cfg.MaxTotalTokens, cfg.MaxRunningRequests, cfg.ChunkedPrefillSize = 320, 6, 24
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			c := startClient(t, k, cfg)
			var clients sync.WaitGroup
			for i, j := range jobs {
				s := submit(t, c, j.req)
				clients.Go(func() {
					if j.abortAt == 0 {
						if err := c.Abort(j.req.RID, request.OutcomeAbortedClient); err != nil {
							t.Error(err)
						}
					}
					var got []int32
					for {
						o, err := s.Recv(waiting(t))
						if err != nil {
							t.Errorf("request %d: %v", i, err)
							return
						}
						got = append(got, o.TokenIDs...)
						if j.abortAt > 0 && len(got) >= j.abortAt {
							if err := c.Abort(j.req.RID, request.OutcomeAbortedClient); err != nil {
								t.Error(err)
							}
						}
						if o.Finish == nil {
							continue
						}
						switch f := *o.Finish; {
						case f.Outcome == request.OutcomeLength && !slices.Equal(got, want[i]):
							t.Errorf("request %d gets %v, alone %v", i, got, want[i])
						case f.Outcome == request.OutcomeAbortedClient && (j.abortAt < 0 || !slices.Equal(got, want[i][:len(got)])):
							t.Errorf("request %d gets %v before its abort, alone %v", i, got, want[i])
						case f.Outcome != request.OutcomeLength && f.Outcome != request.OutcomeAbortedClient:
							t.Errorf("request %d ends with %v", i, f)
						}
						return
					}
				})
			}
			clients.Wait()
			l := loadOf(t, c)
			if l.NumUsedTokens+l.NumRunningReqs+l.NumWaitingReqs != 0 {
				t.Errorf("after the storm the load is %+v", l)
			}
		})
	}
}
