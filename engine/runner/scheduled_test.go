package runner

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// answer collects one request's tokens; finish gets its end.
type answer struct {
	tokens []int32
	finish chan request.Outcome
}

func (a *answer) Put(o request.Output) {
	a.tokens = append(a.tokens, o.TokenIDs...)
	if o.Finish != nil {
		a.finish <- o.Finish.Outcome
	}
}

// silence is a decoder whose text nobody reads.
type silence struct{}

func (silence) Decode(ids []int32, _ bool) string { return fmt.Sprint(ids) }

// serve runs a scheduler for every rank of a team, gives the requests to the leader and collects their answers.
func serve(t *testing.T, runners []*Runner, worlds []*parallel.World, change func(*scheduler.Config), requests []*request.Request) [][]int32 {
	t.Helper()
	info := runners[0].Info()
	cfg := scheduler.Config{
		PageSize: info.PageSize, CapacityTokens: info.MaxTotalTokens, ContextLength: info.ContextLength, VocabSize: info.VocabSize,
		MaxRunning: 8, MaxRunningUnderSLO: 8, ChunkTokens: 24, MaxPrefillTokens: 64, DecodeInterval: 40, Seed: 1,
	}
	change(&cfg)
	schedulers := make([]*scheduler.Scheduler, len(runners))
	for rank, r := range runners {
		deps := scheduler.Deps{Executor: r, Clock: ledger.System(), Reporter: report.Silent(), Decoder: silence{}, Log: slog.New(slog.DiscardHandler)}
		if worlds != nil {
			deps.Peers = worlds[rank].Peers()
		}
		var err error
		if schedulers[rank], err = scheduler.New(cfg, deps); err != nil {
			t.Fatal(err)
		}
	}
	leader, end := context.WithCancel(context.Background())
	defer end()
	var ranks errgroup.Group
	for rank, s := range schedulers {
		ranks.Go(func() error {
			if rank == 0 {
				return s.Run(leader)
			}
			return s.Run(context.Background())
		})
	}
	answers := make([]*answer, len(requests))
	for i, r := range requests {
		answers[i] = &answer{finish: make(chan request.Outcome, 1)}
		if err := schedulers[0].Submit(r, answers[i]); err != nil {
			t.Fatal(err)
		}
	}
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	tokens := make([][]int32, len(answers))
	for i, a := range answers {
		select {
		case outcome := <-a.finish:
			if outcome != request.OutcomeLength {
				t.Errorf("request %d ended with %s, want length", i, outcome)
			}
		case <-patience.C:
			t.Fatal("the requests take for ever")
		}
		tokens[i] = a.tokens
	}
	end()
	if err := ranks.Wait(); err != nil {
		t.Errorf("a scheduler ended with %v", err)
	}
	return tokens
}

func requests() []*request.Request {
	var all []*request.Request
	for i := range 6 {
		seed := int64(i)
		r := &request.Request{RID: fmt.Sprint(i), PromptIDs: countUp(5*i, 8+9*i), Sampling: request.Sampling{MaxNewTokens: 12 + i, TopP: 1}}
		if i%3 == 2 {
			r.Sampling.Temperature, r.Sampling.Seed = 0.8, &seed
		}
		all = append(all, r)
	}
	return all
}

// TestSchedulersOfAWorld serves requests with real schedulers on teams: the answers are one rank's. The model and the
// prompts are fixed, so that no near tie can turn rounding into another token.
func TestSchedulersOfAWorld(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Layers: 4, VocabSize: 301, Seed: 11})
	cfg := Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 512, Threads: 1}
	want := serve(t, []*Runner{newRunner(t, cfg)}, nil, func(*scheduler.Config) {}, requests())
	if len(want) != 6 || slices.ContainsFunc(want, func(tokens []int32) bool { return len(tokens) < 12 }) {
		t.Fatalf("one rank answers %v", want)
	}
	for _, shape := range []struct{ tp, pp int }{{2, 1}, {1, 2}, {2, 2}, {1, 4}} {
		for _, overlap := range []bool{false, true} {
			for _, retract := range []int{0, 3} {
				t.Run(fmt.Sprintf("tp=%d,pp=%d,overlap=%t,retract=%d", shape.tp, shape.pp, overlap, retract), func(t *testing.T) {
					team := newTeam(t, cfg, shape.tp, shape.pp)
					got := serve(t, team.runners, team.worlds, func(c *scheduler.Config) {
						c.Overlap, c.Stages, c.TestRetractSteps = overlap, shape.pp, retract
					}, requests())
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("answers (-one rank +team):\n%s", diff)
					}
				})
			}
		}
	}
}
