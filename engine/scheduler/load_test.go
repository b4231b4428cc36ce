package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestLoadIsTheReport: after a step with a report the load says what the report said, as far as both say it.
func TestLoadIsTheReport(t *testing.T) {
	type told struct {
		Running, Waiting, Grammar, Paused, Used, Capacity int
		Bootstrap, Inflight, Prealloc, Transfer           int
		Throughput, HitRate, Utilization                  float64
	}
	for _, roles := range [][]Role{{Unified}, {Prefill, Decode}} {
		for life := range 6 {
			seed := uint64(time.Now().UnixNano()) + uint64(life)
			t.Run(fmt.Sprintf("%v seed %d", roles, seed), func(t *testing.T) {
				l := newLife(t, rand.New(rand.NewPCG(seed, 8)), roles)
				reports := 0
				for range 200 {
					l.ask()
					for _, x := range l.sides {
						before := len(x.said.snapshots)
						if _, _, err := x.s.step(false); err != nil {
							t.Fatal(err)
						}
						if len(x.said.snapshots) == before {
							continue
						}
						reports++
						s, load := x.said.snapshots[len(x.said.snapshots)-1], x.s.Load()
						want := told{
							s.NumRunningReqs.Total, s.NumQueueReqs.Total, s.NumGrammarQueueReqs, s.NumPausedReqs, s.NumUsedTokens, s.MaxTotalNumTokens,
							s.NumPrefillBootstrapQueueReqs.Total, s.NumPrefillInflightQueueReqs.Total, s.NumDecodePreallocQueueReqs.Total, s.NumDecodeTransferQueueReqs.Total,
							round(s.GenThroughput, 2), round(s.CacheHitRate, 4), round(s.Utilization, 4),
						}
						got := told{
							load.NumRunningReqs, load.Queues.Waiting, load.Queues.Grammar, load.Queues.Paused, load.NumUsedTokens, load.MaxTotalNumTokens,
							load.Disaggregation.PrefillBootstrapQueueReqs, load.Disaggregation.PrefillInflightQueueReqs,
							load.Disaggregation.DecodePreallocQueueReqs, load.Disaggregation.DecodeTransferQueueReqs,
							load.GenThroughput, load.CacheHitRate, load.Utilization,
						}
						if x.s.cfg.Role == Prefill { // the report has the batch just computed
							want.Running = got.Running
						}
						if diff := cmp.Diff(want, got); diff != "" {
							t.Fatalf("(-report +load):\n%s", diff)
						}
					}
				}
				if reports == 0 {
					t.Error("there was no report")
				}
			})
		}
	}
}
