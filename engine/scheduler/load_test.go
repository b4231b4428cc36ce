package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/request"
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

// TestAnswersShowInTheLoad: who hears that the engine has paused finds it so in the load.
func TestAnswersShowInTheLoad(t *testing.T) {
	l := newLife(t, rand.New(rand.NewPCG(1, 8)), []Role{Unified})
	s := l.sides[0].s
	for range 200 {
		l.ask()
		if _, _, err := s.step(false); err != nil {
			t.Fatal(err)
		}
		if !s.paused && s.Load().NumRunningReqs > 0 {
			break
		}
	}
	if s.Load().NumRunningReqs == 0 {
		t.Fatal("nothing runs")
	}
	reply := make(chan error, 1)
	if err := s.apply(input{messages: []message{controlMsg{kind: controlPause, mode: request.PauseRetract, reply: reply}}}); err != nil {
		t.Fatal(err)
	}
	if len(reply) > 0 {
		t.Errorf("it is answered while the load says that %d requests run", s.Load().NumRunningReqs)
	}
	s.deliver(s.deps.Clock.Now())
	if load := s.Load(); len(reply) != 1 || <-reply != nil || load.NumRunningReqs != 0 || load.NumWaitingReqs == 0 {
		t.Errorf("%d answers, and the load is %+v", len(reply), load)
	}
}
