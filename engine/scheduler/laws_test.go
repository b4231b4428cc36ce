package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// TestLaws steps a scheduler through random arrivals, aborts, pauses, flushes and waits, and verifies after each step:
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
	for round := range 12 {
		seed := uint64(time.Now().UnixNano()) + uint64(round)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			newLife(t, rand.New(rand.NewPCG(seed, 3))).run()
		})
	}
}

// life is a scheduler with everything that was asked of it.
type life struct {
	t     *testing.T
	rng   *rand.Rand
	s     *Scheduler
	clock *ledgertest.Clock
	said  *recorder

	reqs  []*request.Request
	sinks []*inboxSink
	asked *controlMsg // of the next step
}

func newLife(t *testing.T, rng *rand.Rand) *life {
	l := &life{t: t, rng: rng, clock: ledgertest.New(), said: newRecorder()}
	cfg := testConfig(Unified, 1+rng.IntN(8), 100+rng.IntN(200))
	cfg.ChunkTokens, cfg.MaxRunning, cfg.MaxQueued = rng.IntN(40), 1+rng.IntN(10), rng.IntN(2)*(5+rng.IntN(20))
	cfg.TestRetractSteps = rng.IntN(2) * (3 + rng.IntN(9))
	cfg.Overlap, cfg.Conservativeness = rng.IntN(2) == 0, 0.1+rng.Float64()
	randomPolicies(rng, &cfg)
	if window := rng.IntN(2) * (1 + rng.IntN(40)); window > 0 {
		slidingWindow(&cfg, window, 2*window/cfg.PageSize+12+rng.IntN(20))
	}
	var err error
	if l.s, err = New(cfg, Deps{Executor: newTapeOf(cfg), Clock: l.clock, Reporter: l.said, Decoder: letters{}, Log: quiet()}); err != nil {
		t.Fatal(err)
	}
	begin(t, l.s)
	return l
}

func (l *life) run() {
	l.t.Logf("config %+v", l.s.cfg)
	for range 250 {
		l.ask()
		l.step()
	}
	l.control(controlMsg{kind: controlContinue})
	l.step()
	l.finishAll()
}

// ask sends the scheduler something, or nothing.
func (l *life) ask() {
	switch l.rng.IntN(12) {
	case 0, 1, 2, 3:
		for range 1 + l.rng.IntN(4) {
			l.submit()
		}
	case 4:
		if len(l.reqs) > 0 {
			l.s.Abort(l.reqs[l.rng.IntN(len(l.reqs))].RID, request.OutcomeAbortedClient)
		}
	case 5:
		if l.rng.IntN(8) == 0 {
			l.s.AbortAll("r" + fmt.Sprint(l.rng.IntN(10)))
		}
	case 6:
		modes := []request.PauseMode{request.PauseInPlace, request.PauseRetract, request.PauseInPlace, request.PauseRetract, request.PauseAbort}
		if l.rng.IntN(3) == 0 {
			l.control(controlMsg{kind: controlPause, mode: modes[l.rng.IntN(len(modes))]})
		}
	case 7, 8:
		l.control(controlMsg{kind: controlContinue})
	case 9:
		l.s.inbox.put(flushMsg{reply: make(chan error, 1)})
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
	l.reqs, l.sinks = append(l.reqs, r), append(l.sinks, newSink())
	if err := l.s.Submit(r, l.sinks[len(l.sinks)-1]); err != nil {
		l.t.Fatal(err)
	}
}

func (l *life) control(m controlMsg) {
	reply := make(chan error, 1)
	m.reply = reply
	l.s.inbox.put(m)
	l.asked = &m
}

// step takes one step and verifies the laws.
func (l *life) step() {
	l.t.Helper()
	s := l.s
	asked := l.asked
	l.asked = nil
	holders := map[*sequence][2]int{} // what computes, with its prompt and answer tokens
	for _, st := range []state{stateRunning, statePrefilling} {
		for _, q := range s.in[st] {
			holders[q] = [2]int{q.prompt, q.generated()}
		}
	}
	waiting := slices.Clone(s.in[stateWaiting])
	told, launched := l.said.retracted, s.flight.last

	if _, _, err := s.step(false); err != nil {
		l.t.Fatal(err)
	}
	if err := s.check(); err != nil {
		l.t.Fatal(err)
	}
	l.count()
	if s.paused && s.flight.last != launched {
		l.t.Fatalf("step %d was launched in a pause", s.flight.last)
	}
	if asked == nil || asked.kind != controlPause {
		l.retractions(holders, told)
	} else if l.said.retracted != told {
		l.t.Fatalf("a pause counts as retraction for memory: %v, then %v", told, l.said.retracted)
	}
	l.order(waiting)
}

// count verifies that every request is live or has ended, and that the load says so.
func (l *life) count() {
	l.t.Helper()
	ended := 0
	for _, sink := range l.sinks {
		if sink.finish != nil {
			ended++
		}
	}
	if ended+len(l.s.live) != len(l.reqs) {
		l.t.Fatalf("%d submitted, %d ended, %d live", len(l.reqs), ended, len(l.s.live))
	}
	if load := l.s.Load(); load.NumRunningReqs+load.NumWaitingReqs != len(l.s.live) {
		l.t.Fatalf("load has %d running and %d waiting, %d live", load.NumRunningReqs, load.NumWaitingReqs, len(l.s.live))
	}
	for _, c := range []report.QueueCount{l.s.count(stateRunning, statePrefilling), l.s.count(stateWaiting)} {
		sum := 0
		for _, p := range c.ByPriority {
			sum += p.Count
		}
		if l.s.cfg.Priorities.Enabled && sum != c.Total || !l.s.cfg.Priorities.Enabled && c.ByPriority != nil {
			l.t.Fatalf("queue count is %+v", c)
		}
	}
}

// retractions verifies what a step told: requests that lost their pages, their prompt and their answer tokens.
func (l *life) retractions(holders map[*sequence][2]int, told [3]int) {
	l.t.Helper()
	var lost [3]int
	for q, tokens := range holders {
		if q.state == stateWaiting {
			lost[0]++
			lost[1] += tokens[0]
			lost[2] += tokens[1]
		}
	}
	for i := range told {
		told[i] = l.said.retracted[i] - told[i]
	}
	if p := l.s.cfg.Priorities; p.Enabled && !p.NoPreemption {
		if told[0] > lost[0] || told[1] > lost[1] || told[2] > lost[2] { // the others were preempted
			l.t.Fatalf("told of %v retracted requests, input and output tokens; lost their pages: %v", told, lost)
		}
		return
	}
	if told != lost {
		l.t.Fatalf("told of %v retracted requests, input and output tokens; lost their pages: %v", told, lost)
	}
}

// order verifies who of those that waited before a step was admitted by it.
func (l *life) order(before list) {
	l.t.Helper()
	for i, old := range before {
		if old.state != stateWaiting {
			continue
		}
		if old.overtaken > patienceRequests+l.s.cfg.MaxRunning {
			l.t.Fatalf("request %s was overtaken %d times", old.req.RID, old.overtaken)
		}
		for _, young := range before[i+1:] {
			admitted := young.state == statePrefilling || young.state == stateRunning
			switch {
			case !admitted || old.urgency != young.urgency || old.retractions != young.retractions:
			case l.s.cfg.Policy == FCFS:
				l.t.Fatalf("request %s overtook %s", young.req.RID, old.req.RID)
			case old.overtaken > patienceRequests:
				l.t.Fatalf("request %s overtook %s, which was overtaken %d times", young.req.RID, old.req.RID, old.overtaken)
			}
		}
		for _, other := range before {
			if admitted := other.state == statePrefilling || other.state == stateRunning; admitted && other.urgency < old.urgency {
				l.t.Fatalf("request %s of urgency %d overtook %s of urgency %d", other.req.RID, other.urgency, old.req.RID, old.urgency)
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
	for _, q := range l.s.all() {
		bound += 20 * (len(q.tokens) + q.req.Sampling.MaxNewTokens)
	}
	for n := 0; len(l.s.live) > 0; n++ {
		if n > bound {
			l.t.Fatalf("%d requests live after %d steps without arrivals", len(l.s.live), n)
		}
		l.clock.Advance(time.Millisecond)
		l.step()
	}
	if err := l.s.settle(); err != nil {
		l.t.Fatal(err)
	}
	reply := make(chan error, 1)
	l.s.inbox.put(flushMsg{reply: reply})
	l.step()
	if err := <-reply; err != nil {
		l.t.Errorf("flush at the end: %v", err)
	}
	if st := l.s.pool.Stats(); st != (kvcache.Stats{Capacity: st.Capacity, Available: st.Capacity}) {
		l.t.Errorf("pool at the end is %+v, want all available", st)
	}
	outcomes := map[request.Outcome]int{}
	for i, r := range l.reqs {
		got, f := l.sinks[i].tokens, l.sinks[i].finish
		outcomes[f.Outcome]++
		want := expected(r, l.s.limit)
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
	l.t.Logf("outcomes %v, retracted %v", outcomes, l.said.retracted)
}
