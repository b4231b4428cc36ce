package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is one engine, or a prefill and a decode engine with a wire between them, whose schedulers run.
type replica struct {
	t      testing.TB
	scheds []*Scheduler
	said   []*recorder
	wire   *wire
	stop   context.CancelFunc
	done   sync.WaitGroup
}

func newReplica(t testing.TB, cfgs ...Config) *replica {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &replica{t: t, wire: newWire(cfgs[0].PageSize), stop: stop}
	var tapes []*tape
	for _, cfg := range cfgs {
		x, said := newTapeOf(cfg), newRecorder()
		s, err := New(cfg, Deps{
			Executor: stage{x}, Clock: ledger.System(), Reporter: said, Decoder: letters{}, Log: quiet(),
			Sender: wireSender{r.wire}, Receiver: wireReceiver{r.wire}, Grammars: testGrammars{},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.checked = true
		r.scheds, r.said, tapes = append(r.scheds, s), append(r.said, said), append(tapes, x)
		r.wire.wake = append(r.wire.wake, s.Wake)
	}
	if len(cfgs) == 2 {
		r.wire.sender, r.wire.receiver = tapes[0], tapes[1]
	}
	for _, s := range r.scheds {
		r.done.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return r
}

// submit sends a request to all engines; the sink of the last one has the answer.
func (r *replica) submit(req *request.Request, room int64) (sinks []*inboxSink) {
	for _, s := range r.scheds {
		own := *req
		if len(r.scheds) > 1 {
			own.Bootstrap = &request.Bootstrap{Host: "10.0.0.1", Port: 1, Room: room}
		}
		sink := newSink()
		if err := s.Submit(&own, sink); err != nil {
			r.t.Fatal(err)
		}
		sinks = append(sinks, sink)
	}
	return sinks
}

func (r *replica) wait(sink *inboxSink) {
	r.t.Helper()
	await(r.t, "a request never ended", sink.ended)
}

// end stops the schedulers and checks that nothing is left.
func (r *replica) end() {
	r.t.Helper()
	for _, s := range r.scheds {
		deadline, cancel := context.WithTimeout(context.Background(), patience)
		for errors.Is(s.Flush(deadline), ErrBusy) { // held pages settle after the last finish
		}
		cancel()
	}
	r.stop()
	r.done.Wait()
	for _, s := range r.scheds {
		for _, pool := range []*kvcache.Pool{s.pool, s.window} {
			if pool == nil {
				continue
			}
			st := pool.Stats()
			if want := (kvcache.Stats{Capacity: st.Capacity, Available: st.Capacity}); st != want {
				r.t.Errorf("%s pool at the end is %+v, want all available", s.cfg.Role, st)
			}
		}
		if err := s.check(); err != nil {
			r.t.Error(err)
		}
	}
}

// randomPolicies sets what decides about the order of requests and their time.
func randomPolicies(rng *rand.Rand, cfg *Config) {
	cfg.Policy = Policy(rng.IntN(2))
	cfg.NoCache, cfg.Eviction = rng.IntN(3) == 0, kvcache.Policy(rng.IntN(7))
	cfg.MixedChunk = cfg.ChunkTokens > 0 && rng.IntN(2) == 0
	cfg.Priorities = Priorities{
		Enabled: rng.IntN(2) == 0, LowFirst: rng.IntN(2) == 0, Threshold: rng.IntN(3), NoPreemption: rng.IntN(4) == 0, RefuseWhenDisabled: rng.IntN(8) == 0,
	}
	if rng.IntN(2) == 0 {
		cfg.Priorities.Default = new(rng.IntN(5))
	}
	if cfg.Priorities.Enabled {
		cfg.Retraction = RetractionPolicy(rng.IntN(2))
	}
	if rng.IntN(4) == 0 {
		cfg.Timeouts = Timeouts{WaitingNanos: rng.Int64N(int64(time.Second)), RunningNanos: rng.Int64N(int64(time.Second))}
	}
}

func randomRequests(rng *rand.Rand, n, maxPrompt, maxNew int) []*request.Request {
	reqs := make([]*request.Request, n)
	for i := range reqs {
		reqs[i] = &request.Request{
			RID: fmt.Sprint("r", i), LogMetrics: true, PromptIDs: testPrompt(1+rng.IntN(maxPrompt), rng.IntN(1000)),
			Sampling: request.Sampling{
				MaxNewTokens: 1 + rng.IntN(maxNew), Seed: new(rng.Int64()), IgnoreEOS: rng.IntN(2) == 0,
			},
		}
		if n := len(reqs[i].PromptIDs); rng.IntN(3) == 0 {
			reqs[i].Logprobs = &request.WantLogprobs{Top: rng.IntN(3)}
			if n > 1 {
				reqs[i].Logprobs.PromptFrom = rng.IntN(n)
			}
		}
		if rng.IntN(6) == 0 {
			reqs[i].Grammar = &request.Grammar{Source: fmt.Sprint(1+rng.IntN(9), 14+rng.IntN(20))}
		}
	}
	for i := range reqs { // half of them begin like another
		if other := reqs[rng.IntN(n)].PromptIDs; rng.IntN(2) == 0 {
			copy(reqs[i].PromptIDs, other[:rng.IntN(len(other)+1)])
		}
		if rng.IntN(8) == 0 {
			reqs[i].CacheKey = "tenant"
		}
	}
	return reqs
}

// TestSameTokensUnderEveryConfiguration: what a request gets depends on the request alone.
func TestSameTokensUnderEveryConfiguration(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	pressures := []struct {
		name              string
		capacity, retract int
	}{{"roomy", 2048, 0}, {"tight", 256, 0}, {"retracting", 2048, 3}}
	for _, roles := range [][]Role{{Unified}, {Prefill, Decode}} {
		for _, pageSize := range []int{1, 16, 64} {
			for _, chunk := range []int{0, 7, -7} { // negative: mixed with decodes
				for _, running := range []int{1, 5} {
					for i, p := range slices.Concat(pressures, pressures, pressures) {
						way := i / len(pressures)
						name := fmt.Sprintf("%v page %d chunk %d running %d %s %s", roles, pageSize, chunk, running, p.name, []string{"alone", "overlap", "stages"}[way])
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							var cfgs []Config
							for _, role := range roles {
								cfg := testConfig(role, pageSize, p.capacity)
								cfg.Overlap, cfg.Stages = way == 1, way/2*3
								cfg.MaxRunning, cfg.ChunkTokens, cfg.TestRetractSteps, cfg.MaxPrefillTokens = running, max(chunk, -chunk), p.retract, 150
								cfg.MixedChunk = chunk < 0
								if running == 5 {
									slidingWindow(&cfg, 10, max(p.capacity/2/pageSize, 16))
								}
								cfgs = append(cfgs, cfg)
							}
							compareWithAlone(t, newReplica(t, cfgs...), randomRequests(rand.New(rand.NewPCG(seed, 1)), 12, 100, 40))
						})
					}
				}
			}
		}
	}
}

// slidingWindow gives the last layer a window of so many tokens, with a pool of so many pages.
func slidingWindow(cfg *Config, tokens, pages int) {
	cfg.WindowTokens, cfg.WindowCapacityTokens = tokens, pages*cfg.PageSize
	cfg.Windowed = make([]bool, testLayers)
	cfg.Windowed[testLayers-1] = true
}

func compareWithAlone(t *testing.T, r *replica, reqs []*request.Request) {
	var sinks []*inboxSink
	for i, req := range reqs {
		got := r.submit(req, int64(i+1))
		sinks = append(sinks, got[len(got)-1])
	}
	for i, sink := range sinks {
		r.wait(sink)
		if diff := cmp.Diff(expected(reqs[i], 1<<20), sink.tokens); diff != "" {
			t.Errorf("request %d, finish %v (-alone +here):\n%s", i, sink.finish, diff)
		}
		sink.checkLogprobs(t, reqs[i])
	}
	r.end()
}

// TestStorm: requests come and are cancelled at any time, peers die, memory is short. Every request ends once, answers
// that ended by themselves are right, and all pages come back.
func TestStorm(t *testing.T) {
	for _, roles := range [][]Role{{Unified}, {Prefill, Decode}} {
		for round := range 6 {
			seed := uint64(time.Now().UnixNano()) + uint64(round)
			t.Run(fmt.Sprintf("%v seed %d", roles, seed), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(seed, 2))
				var cfgs []Config
				window := rng.IntN(2) * (1 + rng.IntN(40))
				for _, role := range roles {
					cfg := testConfig(role, 1+rng.IntN(20), 200+rng.IntN(200))
					cfg.ChunkTokens, cfg.MaxRunning, cfg.TestRetractSteps = rng.IntN(40), 1+rng.IntN(10), rng.IntN(6)
					cfg.MaxQueued = rng.IntN(2) * 60
					cfg.Overlap, cfg.Stages = rng.IntN(2) == 0, rng.IntN(5)
					randomPolicies(rng, &cfg)
					if len(cfgs) > 0 {
						cfg.PageSize = cfgs[0].PageSize
					}
					if window > 0 {
						slidingWindow(&cfg, window, 2*window/cfg.PageSize+12+rng.IntN(20))
					}
					cfgs = append(cfgs, cfg)
				}
				r := newReplica(t, cfgs...)
				reqs := randomRequests(rng, 150, 90, 60)
				all := make([][]*inboxSink, len(reqs))
				for i, req := range reqs {
					if rng.IntN(3) > 0 {
						req.Priority = new(rng.IntN(5))
					}
					all[i] = r.submit(req, int64(i+1))
					switch victim := rng.IntN(i + 1); rng.IntN(6) {
					case 0, 1:
						for _, s := range r.scheds {
							s.Abort(reqs[victim].RID, request.OutcomeAbortedClient)
						}
					case 2:
						r.scheds[rng.IntN(len(r.scheds))].Abort(reqs[victim].RID, request.OutcomeAbortedClient)
					case 3:
						if len(roles) > 1 {
							r.wire.kill(int64(victim+1), rng.IntN(2) == 0)
						}
					case 4:
						switch s := r.scheds[rng.IntN(len(r.scheds))]; rng.IntN(5) {
						case 0:
							s.AbortAll("r1")
						case 1, 2:
							if err := s.Pause(t.Context(), []request.PauseMode{request.PauseInPlace, request.PauseRetract}[rng.IntN(2)]); err != nil {
								t.Error(err)
							}
						}
					}
				}
				for _, s := range r.scheds {
					s.Load()
					if err := s.Continue(t.Context()); err != nil {
						t.Error(err)
					}
				}
				r.wire.settleAll()
				if len(roles) > 1 { // as the router does: one half's error ends the other half
					for i, sinks := range all {
						for side, sink := range sinks {
							r.done.Go(func() {
								<-sink.ended
								if sink.finish.Type == request.FinishAbort {
									r.scheds[1-side].Abort(reqs[i].RID, request.OutcomeAbortedClient)
								}
							})
						}
					}
				}
				for i, sinks := range all {
					for _, sink := range sinks {
						r.wait(sink)
						sink.checkLogprobs(t, reqs[i])
					}
					last := sinks[len(sinks)-1]
					want := expected(reqs[i], 1<<20)
					switch o := last.finish.Outcome; o {
					case request.OutcomeLength, request.OutcomeStop:
						if !slices.Equal(want, last.tokens) && len(reqs[i].PromptIDs)+len(last.tokens) < r.scheds[len(r.scheds)-1].limit {
							t.Errorf("request %d ended by itself with %v, alone it gives %v", i, last.tokens, want)
						}
					case request.OutcomeAbortedClient, request.OutcomeAbortedOperator, request.OutcomeRefused, request.OutcomePreempted,
						request.OutcomeTransferFailed, request.OutcomeBootstrapFailed, request.OutcomeTimeout:
						if !slices.Equal(want[:min(len(want), len(last.tokens))], last.tokens) {
							t.Errorf("request %d got %v before %s, alone it gives %v", i, last.tokens, o, want)
						}
					default:
						t.Errorf("request %d ended as %v", i, last.finish)
					}
				}
				r.end()
			})
		}
	}
}

// kill is the death of the connection of a room, if it is open; lingering ends settle with settleAll.
func (w *wire) kill(id int64, linger bool) {
	w.mu.Lock()
	if r := w.rooms[id]; r != nil && r.err == nil {
		r.lingering = linger
		r.failLocked(&disagg.Error{Step: r.state[0], Reason: disagg.ReasonPeerDied, Room: id, Err: errors.New("connection reset")})
	}
	w.mu.Unlock()
	w.changed()
}

// settleAll lets every failed room end.
func (w *wire) settleAll() {
	w.mu.Lock()
	for _, r := range w.rooms {
		r.lingering = false
		if r.err != nil {
			r.failLocked(r.err)
		}
	}
	w.mu.Unlock()
	w.changed()
}

func TestRunEndsWithEveryRequest(t *testing.T) {
	tests := []struct {
		name, reason string
		break_       func(*tape, context.CancelFunc)
		outcome      request.Outcome
		err          string
	}{
		{name: "stopped", reason: "shutdown is no error", break_: func(_ *tape, stop context.CancelFunc) { stop() },
			outcome: request.OutcomeAbortedOperator},
		{name: "broken", reason: "a device that fails ends the rank",
			break_: func(x *tape, _ context.CancelFunc) {
				x.mu.Lock()
				defer x.mu.Unlock()
				x.fail = errors.New("device lost")
			},
			outcome: request.OutcomeInternal, err: "compute decode batch of 1: device lost"},
	}
	for i, tt := range slices.Concat(tests, tests) {
		overlap := i >= len(tests)
		t.Run(fmt.Sprintf("%s, overlap %t", tt.name, overlap), func(t *testing.T) {
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			x := newTape(4)
			cfg := testConfig(Unified, 4, 16)
			cfg.Overlap = overlap
			s, err := New(cfg, Deps{Executor: x, Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
			if err != nil {
				t.Fatal(err)
			}
			running, waiting := newSink(), newSink()
			running.onPiece = func(o request.Output) {
				if o.Finish == nil {
					tt.break_(x, stop)
				}
			}
			reqs := randomRequests(rand.New(rand.NewPCG(1, 1)), 2, 1, 1)
			for i, sink := range []*inboxSink{running, waiting} {
				reqs[i].Sampling.MaxNewTokens, reqs[i].Sampling.IgnoreEOS, reqs[i].Grammar = 14, true, nil
				reqs[i].PromptIDs = []int32{1, 2, 3, 4, 5, 6}[:4+i]
				if err := s.Submit(reqs[i], sink); err != nil {
					t.Fatal(err)
				}
			}
			err = s.Run(ctx)
			if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("%s: Run gives %v, want %q", tt.reason, err, tt.err)
			}
			for _, sink := range []*inboxSink{running, waiting} {
				if sink.finish == nil || sink.finish.Outcome != tt.outcome {
					t.Errorf("%s: finish is %v, want %s", tt.reason, sink.finish, tt.outcome)
				}
			}
			if err := s.Submit(reqs[0], newSink()); !errors.Is(err, ErrEnded) {
				t.Errorf("submit after the end: %v, want ErrEnded", err)
			}
			if err := s.Flush(context.Background()); !errors.Is(err, ErrEnded) {
				t.Errorf("flush after the end: %v, want ErrEnded", err)
			}
			if l := s.Load(); l.NumRunningReqs+l.NumWaitingReqs+l.NumUsedTokens != 0 {
				t.Errorf("load after the end is %+v", l)
			}
		})
	}
}

func TestLoadCountsEveryRequestOnce(t *testing.T) {
	s, err := New(testConfig(Unified, 4, 64), Deps{Executor: newTape(4), Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s)
	reqs := randomRequests(rand.New(rand.NewPCG(1, 1)), 3, 4, 9)
	for i, r := range reqs {
		r.Sampling.MaxNewTokens, r.Sampling.IgnoreEOS, r.Grammar = 9, true, nil
		if err := s.Submit(r, newSink()); err != nil {
			t.Fatal(err)
		}
		if l := s.Load(); l.NumWaitingReqs != i+1 || l.Queues.Waiting != i+1 {
			t.Errorf("after %d submits before a step %d wait", i+1, l.NumWaitingReqs)
		}
	}
	if _, err := s.turn(); err != nil {
		t.Fatal(err)
	}
	if l := s.Load(); l.NumWaitingReqs != 0 || l.NumRunningReqs != 3 {
		t.Errorf("after a step %d run and %d wait, want 3 and 0", l.NumRunningReqs, l.NumWaitingReqs)
	}
}

func TestTransitions(t *testing.T) {
	s, err := New(testConfig(Unified, 4, 64), Deps{Executor: newTape(4), Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	q := &sequence{req: &request.Request{RID: "a"}, sink: newSink(), arrival: 1}
	q.timeline.Start(s.deps.Clock, ledger.Unified)
	s.in[stateNew].add(q)
	for _, tt := range []struct {
		do   func(*sequence)
		want string
	}{
		{s.becomeInflight, "moves from new to inflight"},
		{s.becomeRunning, "moves from new to running"},
		{s.becomeBootstrapping, "moves from new to bootstrapping"},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, tt.want) || !strings.Contains(got, "not a transition") {
					t.Errorf("panic is %q, want %q", got, tt.want)
				}
			}()
			tt.do(q)
		}()
	}
	s.finish(q, aborted(request.OutcomeTimeout, ""))
	func() {
		defer func() {
			if got := fmt.Sprint(recover()); !strings.Contains(got, "moves from finished to finished") {
				t.Errorf("a second finish gives %q", got)
			}
		}()
		s.finish(q, aborted(request.OutcomeTimeout, ""))
	}()
}
