package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// memoryPeers is one rank's end of a world in memory.
type memoryPeers struct {
	*memoryWorld
	rank int
}

// memoryWorld connects ranks: lines[from][to] carries bytes.
type memoryWorld struct {
	lines  [][]chan []byte
	gone   chan struct{} // closed when a rank has ended
	once   sync.Once
	shares atomic.Int64
}

var errGone = errors.New("a rank is gone")

func newMemoryWorld(n int) *memoryWorld {
	w := &memoryWorld{gone: make(chan struct{})}
	for range n {
		var to []chan []byte
		for range n {
			to = append(to, make(chan []byte, 1))
		}
		w.lines = append(w.lines, to)
	}
	return w
}

func (w *memoryWorld) end() { w.once.Do(func() { close(w.gone) }) }

func (p memoryPeers) Leader() bool { return p.rank == 0 }

func (p memoryPeers) put(ctx context.Context, to int, raw []byte) error {
	select {
	case p.lines[p.rank][to] <- slices.Clone(raw):
		return nil
	case <-p.gone:
		return errGone
	case <-ctx.Done():
		p.end()
		return ctx.Err()
	}
}

func (p memoryPeers) take(ctx context.Context, from int) ([]byte, error) {
	select {
	case raw := <-p.lines[from][p.rank]:
		return raw, nil
	default:
	}
	select {
	case raw := <-p.lines[from][p.rank]:
		return raw, nil
	case <-p.gone:
		return nil, errGone
	case <-ctx.Done():
		p.end()
		return nil, ctx.Err()
	}
}

func (p memoryPeers) Share(ctx context.Context, own []byte) ([]byte, error) {
	if !p.Leader() {
		return p.take(ctx, 0)
	}
	p.shares.Add(1)
	for to := 1; to < len(p.lines); to++ {
		if err := p.put(ctx, to, own); err != nil {
			return nil, err
		}
	}
	return own, nil
}

func (p memoryPeers) Exchange(ctx context.Context, own []byte) ([][]byte, error) {
	for to := range p.lines {
		if err := p.put(ctx, to, own); err != nil {
			return nil, err
		}
	}
	var all [][]byte
	for from := range p.lines {
		raw, err := p.take(ctx, from)
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
	}
	return all, nil
}

// world is replicas of several ranks: one, or a prefill and a decode one whose ranks hand over to each other.
type world struct {
	t      *testing.T
	scheds [][]*Scheduler // [role][rank]
	links  []*memoryWorld // [role]
	wires  []*wire        // [rank]
	tapes  [][]*tape
	errs   [][]error
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// newWorld starts n ranks of each configuration. change, when not nil, sees every tape before it runs.
func newWorld(t *testing.T, n int, change func(role, rank int, x *tape), cfgs ...Config) *world {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w := &world{t: t, stop: stop}
	for range n {
		w.wires = append(w.wires, newWire(cfgs[0].PageSize))
	}
	for role, cfg := range cfgs {
		link := newMemoryWorld(n)
		w.links = append(w.links, link)
		var scheds []*Scheduler
		var tapes []*tape
		for rank := range n {
			x := newTapeOf(cfg)
			if change != nil {
				change(role, rank, x)
			}
			own := cfg
			own.KVBytes = int64(rank) // a rank's own, and decides nothing
			s, err := New(own, Deps{
				Executor: stage{x}, Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(),
				Sender: wireSender{w.wires[rank]}, Receiver: wireReceiver{w.wires[rank]}, Grammars: testGrammars{}, Peers: memoryPeers{link, rank},
			})
			if err != nil {
				t.Fatal(err)
			}
			s.checked, s.inbox.bound = true, bound{requests: 3, bytes: 300} // so that bursts take several steps
			scheds, tapes = append(scheds, s), append(tapes, x)
			if rank == 0 || len(cfgs) > 1 {
				w.wires[rank].wake = append(w.wires[rank].wake, s.Wake)
			}
		}
		w.scheds, w.tapes, w.errs = append(w.scheds, scheds), append(w.tapes, tapes), append(w.errs, make([]error, n))
	}
	if len(cfgs) == 2 {
		for rank, x := range w.wires {
			x.sender, x.receiver = w.tapes[0][rank], w.tapes[1][rank]
		}
	}
	for role := range cfgs {
		for rank, s := range w.scheds[role] {
			// Followers end with the leader, and so not with its context.
			own := ctx
			if rank > 0 {
				own = context.Background()
			}
			w.done.Go(func() {
				err := s.Run(own)
				if err != nil {
					w.links[role].end()
				}
				w.errs[role][rank] = err
			})
		}
	}
	return w
}

// submit sends a request to the leaders; the sink of the last one has the answer.
func (w *world) submit(req *request.Request, room int64) (sinks []*inboxSink) {
	for _, ranks := range w.scheds {
		own := *req
		if len(w.scheds) > 1 {
			own.Bootstrap = &request.Bootstrap{Host: "10.0.0.1", Port: 1, Room: room}
		}
		sink := newSink()
		if err := ranks[0].Submit(&own, sink); err != nil {
			w.t.Fatal(err)
		}
		sinks = append(sinks, sink)
	}
	return sinks
}

// end stops the leaders and checks that all ranks ended in order, in the same state, with nothing left.
func (w *world) end() {
	w.t.Helper()
	for _, ranks := range w.scheds {
		deadline, cancel := context.WithTimeout(context.Background(), patience)
		for errors.Is(ranks[0].Flush(deadline), ErrBusy) { // held pages settle after the last finish
		}
		cancel()
	}
	w.stop()
	w.done.Wait()
	for role, ranks := range w.scheds {
		for rank, s := range ranks {
			if err := w.errs[role][rank]; err != nil {
				w.t.Errorf("rank %d of role %d: %v", rank, role, err)
			}
			if st := s.pool.Stats(); st.Available != st.Capacity {
				w.t.Errorf("rank %d of role %d: pool at the end is %+v, want all available", rank, role, st)
			}
			if s.digest != ranks[0].digest || s.flight.last != ranks[0].flight.last {
				w.t.Errorf("role %d: digest of rank %d is %s after %d steps, of rank 0 %s after %d",
					role, rank, s.digest, s.flight.last, ranks[0].digest, ranks[0].flight.last)
			}
		}
	}
}

// TestRanksAgree: ranks that get the leader's input take the same decisions, whatever happens: requests and cancellations at
// any time, priorities, pauses and time-outs, memory that is short, transfers that fail on one rank alone or settle late.
func TestRanksAgree(t *testing.T) {
	for _, roles := range [][]Role{{Unified}, {Prefill, Decode}} {
		for round := range 9 {
			n := 2 + round%3
			seed := uint64(time.Now().UnixNano()) + uint64(round)
			t.Run(fmt.Sprintf("%v ranks %d seed %d", roles, n, seed), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(seed, 3))
				var cfgs []Config
				for _, role := range roles {
					cfg := testConfig(role, 1+rng.IntN(20), 200+rng.IntN(200))
					cfg.ChunkTokens, cfg.MaxRunning, cfg.TestRetractSteps = rng.IntN(40), 1+rng.IntN(10), rng.IntN(6)
					cfg.Overlap, cfg.Stages = rng.IntN(2) == 0, rng.IntN(4)
					randomPolicies(rng, &cfg)
					if len(cfgs) > 0 {
						cfg.PageSize = cfgs[0].PageSize
					}
					cfgs = append(cfgs, cfg)
				}
				transcripts := make([][]strings.Builder, len(roles))
				for role := range transcripts {
					transcripts[role] = make([]strings.Builder, n)
				}
				w := newWorld(t, n, func(role, rank int, x *tape) {
					out := &transcripts[role][rank]
					x.onBatch = func(rows []Row) {
						for _, r := range rows {
							fmt.Fprint(out, r.Start, r.Pages, r.Future, r.PreviousRow, r.Seed, " ")
						}
						out.WriteByte('\n')
					}
				}, cfgs...)
				reqs := randomRequests(rng, 60, 90, 40)
				var all [][]*inboxSink
				for i, req := range reqs {
					if rng.IntN(3) == 0 {
						req.Sampling.Seed = nil // the ranks draw the same
					}
					if rng.IntN(2) == 0 {
						req.Priority = new(rng.IntN(9))
					}
					all = append(all, w.submit(req, int64(i+1)))
					victim := rng.IntN(i + 1)
					switch rng.IntN(6) {
					case 0:
						for _, ranks := range w.scheds {
							ranks[0].Abort(reqs[victim].RID, request.OutcomeAbortedClient)
						}
					case 1:
						if len(roles) > 1 {
							w.wires[rng.IntN(n)].kill(int64(victim+1), rng.IntN(2) == 0)
						}
					case 2:
						if rng.IntN(10) == 0 {
							w.scheds[0][0].AbortAll("r1")
						}
					case 3:
						mode := []request.PauseMode{request.PauseInPlace, request.PauseRetract, request.PauseAbort}[rng.IntN(3)]
						if err := w.scheds[rng.IntN(len(roles))][0].Pause(t.Context(), mode); err != nil {
							t.Error(err)
						}
					case 4:
						if err := w.scheds[rng.IntN(len(roles))][0].Continue(t.Context()); err != nil {
							t.Error(err)
						}
					}
				}
				for _, ranks := range w.scheds {
					if err := ranks[0].Continue(t.Context()); err != nil {
						t.Error(err)
					}
				}
				for _, x := range w.wires {
					x.settleAll()
				}
				if len(roles) > 1 { // as the router does: one half's error ends the other half
					for i, sinks := range all {
						for side, sink := range sinks {
							w.done.Go(func() {
								<-sink.ended
								if sink.finish.Type == request.FinishAbort {
									w.scheds[1-side][0].Abort(reqs[i].RID, request.OutcomeAbortedClient)
								}
							})
						}
					}
				}
				for i, sinks := range all {
					for _, sink := range sinks {
						await(t, "a request never ended", sink.ended)
						sink.checkLogprobs(t, reqs[i])
					}
					last := sinks[len(sinks)-1]
					want := expected(reqs[i], 1<<20)
					switch {
					case reqs[i].Sampling.Seed == nil: // its seed was drawn
					case last.finish.Type != request.FinishAbort && len(reqs[i].PromptIDs)+len(last.tokens) < w.scheds[0][0].limit:
						if diff := cmp.Diff(want, last.tokens); diff != "" {
							t.Errorf("request %d, finish %v (-alone +here):\n%s", i, last.finish, diff)
						}
					case !slices.Equal(want[:min(len(want), len(last.tokens))], last.tokens):
						t.Errorf("request %d got %v before %v, alone it gives %v", i, last.tokens, last.finish, want)
					}
				}
				w.end()
				for role := range transcripts {
					for rank := range n {
						if diff := cmp.Diff(transcripts[role][0].String(), transcripts[role][rank].String()); diff != "" {
							t.Errorf("role %d: batches of rank 0 and %d differ (-0 +%d):\n%s", role, rank, rank, diff)
						}
					}
				}
			})
		}
	}
}

// TestDivergenceIsCaught: a rank that decides or computes something else ends all of them, with both digests.
func TestDivergenceIsCaught(t *testing.T) {
	tests := []struct {
		name, reason string
		overlap      bool
		tape         func(x *tape)
	}{
		{name: "token", reason: "its device computes another token", tape: func(x *tape) { x.wrongAt = 7 }},
		{name: "token with overlap", reason: "the same", overlap: true, tape: func(x *tape) { x.wrongAt = 7 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(Unified, 4, 256)
			cfg.Overlap = tt.overlap
			w := newWorld(t, 3, func(_, rank int, x *tape) {
				if rank == 1 {
					tt.tape(x)
				}
			}, cfg)
			sink := w.submit(&request.Request{RID: "a", PromptIDs: testPrompt(9, 1), Sampling: request.Sampling{MaxNewTokens: 100, IgnoreEOS: true}}, 1)[0]
			w.done.Wait()
			w.stop()
			var first *DivergenceError
			for rank, err := range w.errs[0] {
				var d *DivergenceError
				if !errors.As(err, &d) {
					t.Fatalf("%s: rank %d ended with %v, want a divergence", tt.reason, rank, err)
				}
				if first == nil {
					first = d
				}
				if d.Ranks != [2]int{0, 1} || d.Digests[0] == d.Digests[1] || d.Digests != first.Digests {
					t.Errorf("%s: rank %d says %v", tt.reason, rank, err)
				}
				for _, part := range []string{"ranks 0 and 1", d.Digests[0], d.Digests[1], "decode batch of 1"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s: rank %d says %q, which does not name %q", tt.reason, rank, err, part)
					}
				}
			}
			if sink.finish == nil || sink.finish.Outcome != request.OutcomeInternal {
				t.Errorf("%s: the client gets %v, want an internal error", tt.reason, sink.finish)
			}
		})
	}
	t.Run("configuration", func(t *testing.T) {
		link := newMemoryWorld(2)
		var done sync.WaitGroup
		errs := make([]error, 2)
		for rank := range 2 {
			cfg := testConfig(Unified, 4, 256)
			cfg.MaxRunning += rank
			s, err := New(cfg, Deps{Executor: newTape(4), Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Peers: memoryPeers{link, rank}})
			if err != nil {
				t.Fatal(err)
			}
			done.Go(func() { errs[rank] = s.Run(context.Background()) })
		}
		done.Wait()
		for rank, err := range errs {
			if d := (*DivergenceError)(nil); !errors.As(err, &d) {
				t.Errorf("rank %d with another limit ended with %v, want a divergence", rank, err)
			}
		}
	})
}

// TestIdleLeaderIsQuiet: without work the leader shares when something comes, and not otherwise.
func TestIdleLeaderIsQuiet(t *testing.T) {
	w := newWorld(t, 2, nil, testConfig(Unified, 4, 256))
	flush := func() {
		if err := w.scheds[0][0].Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	before := w.links[0].shares.Load()
	const flushes = 50
	for range flushes {
		flush()
	}
	if n := w.links[0].shares.Load() - before; n > 3*flushes {
		t.Errorf("%d flushes of an idle engine took %d shared inputs, want one or two each", flushes, n)
	}
	w.end()
}

func TestReportRoundTrip(t *testing.T) {
	rooms := newWire(4)
	hand := func(s disagg.State, err error) *handoff {
		r := &room{w: rooms, state: [2]disagg.State{s}, err: err}
		return &handoff{transfer: end{room: r}}
	}
	mine := []*handoff{hand(disagg.Ready, nil), hand(disagg.Done, nil), hand(disagg.Done, nil), {opening: errors.New("no such room")}, hand(disagg.Sending, nil)}
	other := []*handoff{hand(disagg.Bootstrapping, nil), hand(disagg.Done, nil),
		hand(disagg.Failed, &disagg.Error{Step: disagg.Sending, Reason: disagg.ReasonPeerDied, Room: 7, Err: errors.New("reset")}), hand(disagg.Ready, nil),
		hand(disagg.Failed, &disagg.Error{Step: disagg.Sending, Reason: disagg.ReasonPeerAborted, Room: 8, Err: errors.New("stop"), Outcome: request.OutcomeAbortedOperator})}
	agreed := []*handoff{{}, {}, {}, {}, {}}
	for _, h := range agreed {
		h.agreed, h.settled = disagg.Done, true
	}
	for _, hands := range [][]*handoff{mine, other} {
		d, states, err := cutDigest(encodeReport(nil, 77, hands))
		if err != nil || d != 77 {
			t.Fatalf("digest is %v, %v", d, err)
		}
		if err := agreeStates(agreed, states); err != nil {
			t.Fatal(err)
		}
	}
	type seen struct {
		State     disagg.State
		Settled   bool
		Failure   string
		Bootstrap bool
		Outcome   request.Outcome
	}
	var got []seen
	for _, h := range agreed {
		x := seen{State: h.agreed, Settled: h.settled}
		if f := h.failed; f != nil {
			x.Failure, x.Bootstrap, x.Outcome = f.err.Error(), f.bootstrap, f.outcome
		}
		got = append(got, x)
	}
	want := []seen{
		{State: disagg.Bootstrapping}, {State: disagg.Done, Settled: true},
		{State: disagg.Failed, Settled: true, Failure: "kv transfer of room 7 failed in Sending (peer_died): reset"},
		{State: disagg.Failed, Failure: "no such room", Bootstrap: true},
		{State: disagg.Failed, Failure: "kv transfer of room 8 failed in Sending (peer_aborted): stop", Outcome: request.OutcomeAbortedOperator},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzReport(f *testing.F) {
	f.Add(encodeReport(nil, 1, []*handoff{{opening: errors.New("no")}, {opening: errors.New("")}}))
	f.Add([]byte{})
	f.Add(append(make([]byte, 8), byte(disagg.Failed), 0, 4, 's', 't', 'o', 'p', 0)) // an outcome that is none
	f.Fuzz(func(_ *testing.T, raw []byte) {
		if _, states, err := cutDigest(raw); err == nil {
			_ = agreeStates([]*handoff{{}, {}, {}}, states) // no panic
		}
	})
}
