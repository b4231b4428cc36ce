package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// TestLaws steps an engine, or a prefill and a decode engine, through random arrivals, aborts, pauses, flushes and waits, and
// verifies after each step:
//
//	submitted = ended + live; every request ends once
//	the pool balances and every sequence is what its state says (check)
//	while paused nothing is launched
//	the retractions that are reported are those that happened: requests, their prompt and their answer tokens
//	of equals none is overtaken by more than its policy allows
//	the load counts every live request once
//
// When nothing comes any more every request ends within a number of steps that its tokens bound.
func TestLaws(t *testing.T) {
	for _, roles := range [][]Role{{Unified}, {Prefill, Decode}} {
		for round := range 12 {
			seed := uint64(time.Now().UnixNano()) + uint64(round)
			t.Run(fmt.Sprintf("%v seed %d", roles, seed), func(t *testing.T) {
				t.Parallel()
				newLife(t, rand.New(rand.NewPCG(seed, 3)), roles).run()
			})
		}
	}
}

// life is one engine or two with everything that was asked of them.
type life struct {
	t     *testing.T
	rng   *rand.Rand
	clock *ledgertest.Clock
	reqs  []*request.Request
	sides []*side // the last one answers
	wire  *wire
}

// side is one engine.
type side struct {
	t     *testing.T
	s     *Scheduler
	said  *recorder
	sinks []*inboxSink // by request
	gone  []bool       // by request: the other side knows that it was aborted here
	asked *controlMsg  // of the next step

	stepped func() // is called after each step; nil: nobody asked
}

func newLife(t *testing.T, rng *rand.Rand, roles []Role) *life {
	l := &life{t: t, rng: rng, clock: ledgertest.New()}
	pageSize := 1 + rng.IntN(8)
	w := newWire(pageSize)
	l.wire = w
	window := rng.IntN(2) * (1 + rng.IntN(40))
	var tapes []*tape
	for _, role := range roles {
		x := &side{t: t, said: newRecorder()}
		cfg := testConfig(role, pageSize, 100+rng.IntN(200))
		cfg.ChunkTokens, cfg.MaxRunning, cfg.MaxQueued = rng.IntN(40), 1+rng.IntN(10), rng.IntN(2)*(5+rng.IntN(20))
		cfg.TestRetractSteps = rng.IntN(2) * (3 + rng.IntN(9))
		cfg.Overlap, cfg.Conservativeness = rng.IntN(2) == 0, 0.1+rng.Float64()
		randomPolicies(rng, &cfg)
		if window > 0 {
			slidingWindow(&cfg, window, 2*window/cfg.PageSize+12+rng.IntN(20))
		}
		t.Logf("config %+v", cfg)
		var err error
		tapes = append(tapes, newTapeOf(cfg))
		if x.s, err = New(cfg, Deps{
			Executor: tapes[len(tapes)-1], Clock: l.clock, Reporter: x.said, Decoder: letters{}, Log: quiet(),
			Sender: wireSender{w}, Receiver: wireReceiver{w},
		}); err != nil {
			t.Fatal(err)
		}
		begin(t, x.s)
		w.wake = append(w.wake, x.s.Wake)
		l.sides = append(l.sides, x)
	}
	w.sender, w.receiver = tapes[0], tapes[len(tapes)-1]
	return l
}

func (l *life) run() {
	for range 250 {
		l.ask()
		l.step()
	}
	for _, x := range l.sides {
		x.control(controlMsg{kind: controlContinue})
	}
	l.step()
	l.finishAll()
}

// ask sends the schedulers something, or nothing.
func (l *life) ask() {
	one := l.sides[l.rng.IntN(len(l.sides))]
	switch l.rng.IntN(12) {
	case 0, 1, 2, 3:
		for range 1 + l.rng.IntN(4) {
			l.submit()
		}
	case 4:
		if len(l.reqs) > 0 {
			one.s.Abort(l.reqs[l.rng.IntN(len(l.reqs))].RID, request.OutcomeAbortedClient)
		}
	case 5:
		if l.rng.IntN(8) == 0 {
			one.s.AbortAll("r" + fmt.Sprint(l.rng.IntN(10)))
		}
	case 6:
		modes := []request.PauseMode{request.PauseInPlace, request.PauseRetract, request.PauseInPlace, request.PauseRetract, request.PauseAbort}
		if l.rng.IntN(3) == 0 {
			one.control(controlMsg{kind: controlPause, mode: modes[l.rng.IntN(len(modes))]})
		}
	case 7, 8:
		one.control(controlMsg{kind: controlContinue})
	case 9:
		one.s.inbox.put(flushMsg{reply: make(chan error, 1)})
	default:
	}
	l.clock.Advance(time.Duration(l.rng.IntN(50)) * time.Millisecond)
}

func (l *life) submit() {
	r := randomRequests(l.rng, 1, 60, 30)[0]
	r.RID = fmt.Sprint("r", len(l.reqs))
	if l.rng.IntN(3) > 0 {
		r.Priority = new(l.rng.IntN(5))
	}
	if l.rng.IntN(3) == 0 { // prefixes that are alike
		r.PromptIDs = testPrompt(len(r.PromptIDs), l.rng.IntN(3))
	}
	if l.rng.IntN(3) > 0 {
		r.Trace = &request.Trace{Level: 1}
	}
	l.reqs = append(l.reqs, r)
	for _, x := range l.sides {
		own := *r
		if len(l.sides) > 1 {
			own.Bootstrap = &request.Bootstrap{Host: "10.0.0.1", Port: 1, Room: int64(len(l.reqs))}
		}
		x.sinks, x.gone = append(x.sinks, newSink()), append(x.gone, false)
		if err := x.s.Submit(&own, x.sinks[len(x.sinks)-1]); err != nil {
			l.t.Fatal(err)
		}
	}
}

// step takes one step of each engine. As the router does, it ends the other half of what one engine aborted.
func (l *life) step() {
	l.t.Helper()
	for at, x := range l.sides {
		x.step()
		if len(l.sides) == 1 {
			continue
		}
		for i, sink := range x.sinks {
			if sink.finish != nil && sink.finish.Type == request.FinishAbort && !x.gone[i] {
				x.gone[i] = true
				l.sides[1-at].s.Abort(l.reqs[i].RID, request.OutcomeAbortedClient)
			}
		}
	}
}

func (x *side) control(m controlMsg) {
	reply := make(chan error, 1)
	m.reply = reply
	x.s.inbox.put(m)
	x.asked = &m
}

// step takes one step and verifies the laws.
func (x *side) step() {
	x.t.Helper()
	s := x.s
	asked := x.asked
	x.asked = nil
	holders := map[*sequence][2]int{} // of pages, with their prompt and answer tokens
	for _, st := range []state{stateRunning, statePrefilling, stateWaiting, stateTransferring} {
		for _, q := range s.in[st] {
			switch {
			case len(q.pages) == 0:
			case st == stateTransferring: // its first token may come in this step
				holders[q] = [2]int{q.prompt, 1}
			default:
				holders[q] = [2]int{q.prompt, q.generated()}
			}
		}
	}
	waiting := slices.Clone(s.in[stateWaiting])
	told, launched := x.said.retracted, s.flight.last

	if _, _, err := s.step(false); err != nil {
		x.t.Fatal(err)
	}
	if err := s.check(); err != nil {
		x.t.Fatal(err)
	}
	x.count()
	if s.paused && s.flight.last != launched {
		x.t.Fatalf("step %d was launched in a pause", s.flight.last)
	}
	if asked == nil || asked.kind != controlPause {
		x.retractions(holders, told)
	} else if x.said.retracted != told {
		x.t.Fatalf("a pause counts as retraction for memory: %v, then %v", told, x.said.retracted)
	}
	x.order(waiting)
	if x.stepped != nil {
		x.stepped()
	}
}

// count verifies that every request is live or has ended, and that the load says so.
func (x *side) count() {
	x.t.Helper()
	ended := 0
	for _, sink := range x.sinks {
		if sink.finish != nil {
			ended++
		}
	}
	if ended+len(x.s.live) != len(x.sinks) {
		x.t.Fatalf("%d submitted, %d ended, %d live", len(x.sinks), ended, len(x.s.live))
	}
	load := x.s.Load()
	if inflight := load.Disaggregation.PrefillInflightQueueReqs; load.NumRunningReqs+load.NumWaitingReqs+inflight != len(x.s.live) {
		x.t.Fatalf("load has %d running, %d waiting and %d inflight, %d live", load.NumRunningReqs, load.NumWaitingReqs, inflight, len(x.s.live))
	}
	for _, c := range []report.QueueCount{x.s.count(stateRunning, statePrefilling), x.s.count(stateWaiting)} {
		sum := 0
		for _, p := range c.ByPriority {
			sum += p.Count
		}
		if x.s.cfg.Priorities.Enabled && sum != c.Total || !x.s.cfg.Priorities.Enabled && c.ByPriority != nil {
			x.t.Fatalf("queue count is %+v", c)
		}
	}
}

// retractions verifies what a step told: requests that lost their pages, their prompt and their answer tokens.
func (x *side) retractions(holders map[*sequence][2]int, told [3]int) {
	x.t.Helper()
	var lost [3]int
	for q, tokens := range holders {
		if len(q.pages) == 0 && (q.state == stateWaiting || q.state == stateRetracted) {
			lost[0]++
			lost[1] += tokens[0]
			lost[2] += tokens[1]
		}
	}
	for i := range told {
		told[i] = x.said.retracted[i] - told[i]
	}
	if p := x.s.cfg.Priorities; p.Enabled && !p.NoPreemption {
		if told[0] > lost[0] || told[1] > lost[1] || told[2] > lost[2] { // the others were preempted
			x.t.Fatalf("told of %v retracted requests, input and output tokens; lost their pages: %v", told, lost)
		}
		return
	}
	if told != lost {
		x.t.Fatalf("told of %v retracted requests, input and output tokens; lost their pages: %v", told, lost)
	}
}

// order verifies who of those that waited before a step was admitted by it.
func (x *side) order(before list) {
	x.t.Helper()
	for i, old := range before {
		if old.state != stateWaiting {
			continue
		}
		if old.overtaken > patienceRequests+x.s.cfg.MaxRunning {
			x.t.Fatalf("request %s was overtaken %d times", old.req.RID, old.overtaken)
		}
		for _, young := range before[i+1:] {
			admitted := young.state == statePrefilling || young.state == stateRunning
			switch {
			case !admitted || old.urgency != young.urgency || old.retractions != young.retractions:
			case x.s.cfg.Policy == FCFS:
				x.t.Fatalf("request %s overtook %s", young.req.RID, old.req.RID)
			case old.overtaken > patienceRequests:
				x.t.Fatalf("request %s overtook %s, which was overtaken %d times", young.req.RID, old.req.RID, old.overtaken)
			}
		}
		for _, other := range before {
			if admitted := other.state == statePrefilling || other.state == stateRunning; admitted && other.urgency < old.urgency {
				x.t.Fatalf("request %s of urgency %d overtook %s of urgency %d", other.req.RID, other.urgency, old.req.RID, old.urgency)
			}
		}
	}
}

// finishAll steps until nothing lives, and verifies every answer.
func (l *life) finishAll() {
	l.t.Helper()
	// Each admission computes a prompt in chunks, and after it each step a token of somebody. A request is retracted for
	// tests at most once every TestRetractSteps decodes; for memory or a more urgent one only while somebody else proceeds.
	bound := 100
	for _, x := range l.sides {
		for _, q := range x.s.all() {
			bound += 20 * (len(q.tokens) + q.req.Sampling.MaxNewTokens)
		}
	}
	live := func() (n int) {
		for _, x := range l.sides {
			n += len(x.s.live)
		}
		return n
	}
	for n := 0; live() > 0; n++ {
		if n > bound {
			l.t.Fatalf("%d requests live after %d steps without arrivals", live(), n)
		}
		l.clock.Advance(time.Millisecond)
		l.step()
	}
	for _, x := range l.sides {
		x.empty()
	}
	outcomes := map[request.Outcome]int{}
	last := l.sides[len(l.sides)-1]
	for i, r := range l.reqs {
		got, f := last.sinks[i].tokens, last.sinks[i].finish
		outcomes[f.Outcome]++
		want := expected(r, last.s.limit)
		if f.Type == request.FinishAbort {
			want = want[:min(len(got), len(want))]
		}
		if !slices.Equal(want, got) {
			l.t.Errorf("request %s ends with %v and %v, alone it gives %v", r.RID, f, got, want)
		}
		if (f.Outcome == request.OutcomeRefused || f.Outcome == request.OutcomePreempted) && len(got) > 0 {
			l.t.Errorf("request %s is refused after %d tokens", r.RID, len(got))
		}
	}
	l.t.Logf("outcomes %v, retracted %v", outcomes, last.said.retracted)
}

// empty verifies that nothing is left once the results in flight are taken and the cache is flushed.
func (x *side) empty() {
	x.t.Helper()
	if err := x.s.settle(); err != nil {
		x.t.Fatal(err)
	}
	reply := make(chan error, 1)
	x.s.inbox.put(flushMsg{reply: reply})
	x.step()
	if err := <-reply; err != nil {
		x.t.Errorf("flush at the end: %v", err)
	}
	if st := x.s.pool.Stats(); st.Available != st.Capacity {
		x.t.Errorf("%s pool at the end is %+v, want all available", x.s.cfg.Role, st)
	}
}
