package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// TestE6SchedulerTime: the stages of the loop sum to its wall time, to the nanosecond, over random lives of engines of every
// role on a clock that moves on with every reading, and every turn of the loop is counted once.
func TestE6SchedulerTime(t *testing.T) {
	for _, roles := range [][]Role{{Unified}, {Prefill, Decode}} {
		for round := range 8 {
			seed := uint64(time.Now().UnixNano()) + uint64(round)
			t.Run(fmt.Sprintf("%v seed %d", roles, seed), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(seed, 6))
				l := newLife(t, rng, roles)
				l.clock.SetStep(time.Duration(1 + rng.IntN(1000)))
				turns := make([]int64, len(l.sides))
				for range 250 {
					l.ask()
					if rng.IntN(20) == 0 {
						l.clock.Advance(time.Duration(rng.IntN(3)) * time.Second)
					}
					for i, x := range l.sides {
						if _, _, err := x.s.step(false); err != nil {
							t.Fatal(err)
						}
						turns[i]++
						if err := x.s.time.check(); err != nil {
							t.Fatal(err)
						}
					}
				}
				for i, x := range l.sides {
					x.s.time.enter(report.LoopOther)
					x.s.tellLoopTime(true)
					told, wall := x.said.loop, x.s.time.at.Sub(x.s.time.began)
					if sum := told.WallNanos(); sum != wall || wall <= 0 {
						t.Errorf("%s: stages sum to %d ns of %d: %v", x.s.cfg.Role, sum, wall, told.StageNanos)
					}
					if told.Iterations != turns[i] {
						t.Errorf("%s: %d iterations were told of %d", x.s.cfg.Role, told.Iterations, turns[i])
					}
					if told.IdleNanos > wall || told.IdleNanos < 0 {
						t.Errorf("%s: idle for %d of %d ns", x.s.cfg.Role, told.IdleNanos, wall)
					}
					for _, line := range x.said.lines {
						if strings.HasPrefix(line, "violated") {
							t.Error(line)
						}
					}
				}
			})
		}
	}
}

// TestE6IsChecked: a nanosecond that is in no stage is told.
func TestE6IsChecked(t *testing.T) {
	said := newRecorder()
	s, err := New(testConfig(Unified, 4, 64), Deps{Executor: newTape(4), Clock: ledgertest.New(), Reporter: said, Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s)
	s.time.told++
	func() {
		defer func() {
			if fault := recover(); (fault != nil) != kvcache.Invariants {
				t.Errorf("with invariants: %t, it panics with %v", kvcache.Invariants, fault)
			}
		}()
		s.tellLoopTime(true)
	}()
	if want := "violated E6: scheduler_time"; len(said.lines) != 1 || said.lines[0] != want {
		t.Errorf("told %q, want %q", said.lines, want)
	}
}

// TestLoopTimeTwin compares the account with one that keeps every span.
func TestLoopTimeTwin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 7))
	for range 200 {
		clock := ledgertest.New()
		var l loopTime
		cpu := int64(0)
		l.start(clock, func() int64 { return cpu })
		type span struct {
			stage  report.LoopStage
			nanos  int64
			active [2]bool
		}
		var spans []span
		stage, since, active := report.LoopOther, ledger.Instant(0), false
		idleFrom, idle, idleNanos, turns := ledger.Instant(0), false, int64(0), int64(0)
		var got report.LoopTime
		flush := func(atOnce bool) {
			part, ok := l.flush(atOnce)
			if !ok {
				return
			}
			got.Iterations, got.IdleNanos, got.CPUNanos = got.Iterations+part.Iterations, got.IdleNanos+part.IdleNanos, got.CPUNanos+part.CPUNanos
			for s := range part.StageNanos {
				for o, n := range part.StageNanos[s] {
					got.StageNanos[s][o] += n
				}
			}
		}
		for range 100 {
			clock.Advance(time.Duration(rng.IntN(1 << 28)))
			cpu += rng.Int64N(1000)
			switch rng.IntN(6) {
			case 0:
				l.computing.Store(int32(rng.IntN(3)))
			case 1:
				flush(false)
			case 2:
				l.turn(idle)
				turns++
				if idle && idleFrom >= 0 {
					idleNanos += l.at.Sub(idleFrom)
				}
				if idleFrom = -1; idle {
					idleFrom = l.at
				}
				idle = rng.IntN(2) == 0
			default:
				to := report.LoopStage(rng.IntN(int(report.NumLoopStages)))
				now := l.enter(to)
				computing := l.computing.Load() > 0
				spans = append(spans, span{stage, now.Sub(since), [2]bool{active, computing}})
				stage, since, active = to, now, computing
			}
			if err := l.check(); err != nil {
				t.Fatal(err)
			}
			if turns == 0 {
				idleFrom = -1 // nothing is idle before the first turn
			}
		}
		flush(true)
		want := report.LoopTime{Iterations: turns, IdleNanos: idleNanos, CPUNanos: cpu}
		for _, s := range spans {
			o := report.OverlapNone
			if s.active[0] && s.active[1] {
				o = report.OverlapFull
			} else if s.active[0] != s.active[1] {
				o = report.OverlapPartial
			}
			want.StageNanos[s.stage][o] += s.nanos
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

// slowly is a device that a step takes a known time on.
type slowly struct {
	*tape
	clock *ledgertest.Clock
	took  time.Duration
}

func (x slowly) Execute(ctx context.Context, rows []Row, layerDone func(int)) ([]Sampled, error) {
	x.clock.Advance(x.took)
	return x.tape.Execute(ctx, rows, layerDone)
}

// TestLoopStages: the time of the device is in run_batch, what passes between steps with nothing to do is idle, and the time
// until something comes is idle although the step that takes it is not.
func TestLoopStages(t *testing.T) {
	clock, said := ledgertest.New(), newRecorder()
	s, err := New(testConfig(Unified, 4, 64), Deps{
		Executor: slowly{newTape(4), clock, 3 * time.Millisecond}, Clock: clock, Reporter: said, Decoder: letters{}, Log: quiet(),
		CPU: func() int64 { return int64(clock.Now()) / 2 },
	})
	if err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Hour) // a start that takes long is not the loop's
	begin(t, s)
	turn := func() {
		if _, err := s.turn(); err != nil {
			t.Fatal(err)
		}
	}
	turn()
	clock.Advance(2 * time.Second) // idle
	turn()
	clock.Advance(time.Second) // until the request comes
	sink := newSink()
	if err := s.Submit(&request.Request{RID: "a", PromptIDs: testPrompt(5, 1), Sampling: request.Sampling{MaxNewTokens: 3, IgnoreEOS: true}}, sink); err != nil {
		t.Fatal(err)
	}
	for sink.finish == nil {
		turn()
	}
	clock.Advance(5 * time.Second) // no step has seen yet that there is nothing to do
	turn()
	clock.Advance(7 * time.Second)
	s.time.enter(report.LoopOther)
	s.tellLoopTime(true)
	want := report.LoopTime{Iterations: 6, IdleNanos: int64(3 * time.Second), CPUNanos: int64(15*time.Second+9*time.Millisecond) / 2}
	want.StageNanos[report.LoopOther][report.OverlapNone] = int64(15 * time.Second)
	want.StageNanos[report.LoopRun][report.OverlapNone] = int64(9 * time.Millisecond)
	run := &said.loop.StageNanos[report.LoopRun] // whether the device was seen at the ends of a span is chance
	run[report.OverlapNone], run[report.OverlapPartial], run[report.OverlapFull] = run[0]+run[1]+run[2], 0, 0
	if diff := cmp.Diff(want, said.loop); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
