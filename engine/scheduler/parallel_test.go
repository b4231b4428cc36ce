package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/request"
)

var _ Peers = (*parallel.Peers)(nil)

// TestRanksAgreeOverParallel: the connection that ranks really have is such Peers: followers sleep in Share, the leader's
// end is everybody's.
func TestRanksAgreeOverParallel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, size := range [][2]int{{2, 1}, {1, 3}, {2, 2}} {
		tp, pp := size[0], size[1]
		t.Run(fmt.Sprintf("tp %d pp %d", tp, pp), func(t *testing.T) {
			worlds, err := parallel.Local(tp, pp)
			if err != nil {
				t.Fatal(err)
			}
			cfg := testConfig(Unified, 4, 256)
			cfg.Overlap, cfg.Stages, cfg.ChunkTokens, cfg.TestRetractSteps = true, pp, 20, 5
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			var done sync.WaitGroup
			var scheds []*Scheduler
			errs := make([]error, len(worlds))
			for rank, w := range worlds {
				s, err := New(cfg, Deps{
					Executor: stage{newTape(4)}, Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(),
					Grammars: testGrammars{}, Peers: w.Peers(),
				})
				if err != nil {
					t.Fatal(err)
				}
				s.checked = true
				scheds = append(scheds, s)
				own := ctx
				if rank > 0 {
					own = context.Background()
				}
				done.Go(func() { errs[rank] = s.Run(own) })
			}
			reqs := randomRequests(rand.New(rand.NewPCG(seed, 5)), 40, 90, 40)
			var sinks []*inboxSink
			for _, r := range reqs {
				sink := newSink()
				if err := scheds[0].Submit(r, sink); err != nil {
					t.Fatal(err)
				}
				sinks = append(sinks, sink)
			}
			for i, sink := range sinks {
				await(t, "a request never ended", sink.ended)
				if sink.finish.Type == request.FinishAbort || !slices.Equal(expected(reqs[i], 1<<20), sink.tokens) {
					t.Errorf("request %d ends with %v (-alone +here):\n%s", i, sink.finish, cmp.Diff(expected(reqs[i], 1<<20), sink.tokens))
				}
				sink.checkLogprobs(t, reqs[i])
			}
			stop()
			done.Wait()
			for rank, w := range worlds {
				if errs[rank] != nil || scheds[rank].digest != scheds[0].digest {
					t.Errorf("rank %d ends with %v, digest %s; rank 0 has %s", rank, errs[rank], scheds[rank].digest, scheds[0].digest)
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
