package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
)

// stage is a tape that gives its tokens late, as a pipeline's first stage does.
type stage struct{ *tape }

func (x stage) Begin(ctx context.Context, rows []Row, layerDone func(int)) (func(context.Context) ([]Sampled, error), error) {
	sampled, err := x.Execute(ctx, rows, layerDone)
	return func(context.Context) ([]Sampled, error) { return sampled, nil }, err
}

// pipeline is the virtual time of a pipeline: a step occupies one stage after the other, each for the same time.
type pipeline struct {
	free []float64         // when each stage is free
	ends map[int64]float64 // when each step's tokens are there
	busy float64           // time that the first stage computes; all others do as much
	now  float64
}

func (p *pipeline) launch(step int64, items int) {
	cost := 1 + 0.05*float64(items)
	at := p.now
	for i := range p.free {
		at = max(at, p.free[i]) + cost
		p.free[i] = at
	}
	p.ends[step] = at
	p.busy += cost
}

// bubbles runs requests to their ends and gives the part of the time in which a stage has nothing to do.
func bubbles(t *testing.T, stages int, depth int, reqs []*request.Request) float64 {
	t.Helper()
	cfg := testConfig(Unified, 16, 1<<16)
	cfg.Stages, cfg.MaxRunning, cfg.ChunkTokens = depth, 64, 64
	s, err := New(cfg, Deps{Executor: stage{newTape(16)}, Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	s.checked = true
	begin(t, s)
	for _, r := range reqs {
		if err := s.Submit(r, newSink()); err != nil {
			t.Fatal(err)
		}
	}
	p := &pipeline{free: make([]float64, stages), ends: map[int64]float64{}}
	for {
		before := s.flight
		worked, err := s.turn()
		if err != nil {
			t.Fatal(err)
		}
		if s.flight.last > before.last {
			p.launch(s.flight.last, s.flight.newest.items)
		}
		if s.flight.over > before.over {
			p.now = max(p.now, p.ends[s.flight.over])
		}
		if !worked {
			break
		}
	}
	return 1 - p.busy/p.now
}

// TestMicroBatchesFillThePipeline: with as many steps in flight as stages, stages are seldom idle, whatever runs; with one
// step in flight all but one always are.
func TestMicroBatchesFillThePipeline(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	loads := []struct {
		name, reason string
		reqs         func(rng *rand.Rand) []*request.Request
		most         float64
	}{
		{name: "alike", reason: "all decode for the same time", most: 0.1, reqs: func(*rand.Rand) (reqs []*request.Request) {
			for i := range 32 {
				reqs = append(reqs, &request.Request{RID: fmt.Sprint(i), PromptIDs: testPrompt(40, i),
					Sampling: request.Sampling{MaxNewTokens: 100, IgnoreEOS: true}})
			}
			return reqs
		}},
		{name: "mixed", reason: "answers of all lengths, the last of which run alone", most: 0.3, reqs: func(rng *rand.Rand) (reqs []*request.Request) {
			for i := range 100 {
				reqs = append(reqs, &request.Request{RID: fmt.Sprint(i), PromptIDs: testPrompt(1+rng.IntN(200), i),
					Sampling: request.Sampling{MaxNewTokens: 1 + rng.IntN(100), IgnoreEOS: true}})
			}
			return reqs
		}},
		{name: "one long prompt", reason: "its chunks follow each other", most: 0.1, reqs: func(*rand.Rand) []*request.Request {
			return []*request.Request{{RID: "a", PromptIDs: testPrompt(5000, 1), Sampling: request.Sampling{MaxNewTokens: 1}}}
		}},
	}
	for _, tt := range loads {
		for _, stages := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s, stages %d", tt.name, stages), func(t *testing.T) {
				one := bubbles(t, stages, 1, tt.reqs(rand.New(rand.NewPCG(seed, 9))))
				all := bubbles(t, stages, stages, tt.reqs(rand.New(rand.NewPCG(seed, 9))))
				t.Logf("idle %.1f %% of the time with one step in flight, %.1f %% with %d", 100*one, 100*all, stages)
				if want := 1 - 1/float64(stages); one < want-0.001 || all > tt.most {
					t.Errorf("%s: stages are idle %.3f of the time with one step in flight, want %.3f, and %.3f with %d, want at most %.3f",
						tt.reason, one, want, all, stages, tt.most)
				}
			})
		}
	}
}
