package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// talk is a scheduler that a test steps by hand, with sessions.
type talk struct {
	t     *testing.T
	s     *Scheduler
	clock *ledgertest.Clock
	turns int
}

func newTalk(t *testing.T, change func(*Config)) *talk {
	cfg := testConfig(Unified, 4, 96)
	cfg.StreamingSessions, cfg.SessionTimeoutNanos = true, int64(time.Minute)
	if change != nil {
		change(&cfg)
	}
	k := &talk{t: t, clock: ledgertest.New()}
	var err error
	if k.s, err = New(cfg, Deps{Executor: newTapeOf(cfg), Clock: k.clock, Reporter: newRecorder(), Decoder: letters{}, Log: quiet()}); err != nil {
		t.Fatal(err)
	}
	begin(t, k.s)
	return k
}

func (k *talk) step() {
	k.t.Helper()
	if _, err := k.s.turn(); err != nil {
		k.t.Fatal(err)
	}
	if err := k.s.check(); err != nil {
		k.t.Fatal(err)
	}
}

// ask sends a control message and gives its answer.
func (k *talk) ask(kind controlKind, session request.Session) error {
	k.t.Helper()
	reply := make(chan error, 1)
	k.s.inbox.put(controlMsg{kind: kind, session: session, reply: reply})
	k.step()
	return <-reply
}

func (k *talk) open(id string, streaming bool) {
	k.t.Helper()
	if err := k.ask(controlOpenSession, request.Session{ID: id, Streaming: streaming}); err != nil {
		k.t.Fatal(err)
	}
}

// submit sends a turn without waiting for it.
func (k *talk) submit(turn request.Turn, prompt []int32, answer int) *inboxSink {
	k.turns++
	sink := newSink()
	if err := k.s.Submit(&request.Request{
		RID: fmt.Sprint("t", k.turns), PromptIDs: prompt, Session: &turn, LogMetrics: true,
		Sampling: request.Sampling{MaxNewTokens: answer, IgnoreEOS: true, Seed: new(int64(1))},
	}, sink); err != nil {
		k.t.Fatal(err)
	}
	return sink
}

func (k *talk) finish(sink *inboxSink) {
	k.t.Helper()
	for range 500 {
		select {
		case <-sink.ended:
			return
		default:
			k.step()
		}
	}
	k.t.Fatal("a turn does not end")
}

// say is a whole turn; it gives the answer.
func (k *talk) say(turn request.Turn, prompt []int32, answer int) []int32 {
	k.t.Helper()
	sink := k.submit(turn, prompt, answer)
	k.finish(sink)
	if sink.finish.Type == request.FinishAbort {
		k.t.Fatalf("the turn ends with %v", sink.finish)
	}
	return sink.tokens
}

// alone is what a request of its own with all these tokens gets.
func alone(tokens []int32, answer int) []int32 {
	return expected(&request.Request{PromptIDs: tokens, Sampling: request.Sampling{MaxNewTokens: answer, IgnoreEOS: true, Seed: new(int64(1))}}, 1<<20)
}

// TestSessionTurns: a turn gets what a request of its own with the same tokens would get, whatever it goes on from.
func TestSessionTurns(t *testing.T) {
	a, b, c := testPrompt(6, 1), testPrompt(5, 2), testPrompt(7, 3)
	for _, tt := range []struct {
		name   string
		change func(*Config)
	}{
		{"cached", nil},
		{"not cached", func(c *Config) { c.NoCache = true }},
		{"retracting, overlap", func(c *Config) { c.TestRetractSteps, c.Overlap = 2, true }},
		{"window", func(c *Config) { slidingWindow(c, 5, 24) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newTalk(t, tt.change)
			for _, streaming := range []bool{false, true} {
				if streaming && k.s.tree == nil {
					continue
				}
				id := fmt.Sprint("talk ", streaming)
				k.open(id, streaming)
				here := request.Turn{SessionID: id}
				first := k.say(here, a, 5)
				past := slices.Concat(a, first, b)
				if diff := cmp.Diff(alone(past, 4), k.say(here, b, 4)); diff != "" {
					t.Errorf("second turn (-alone +here):\n%s", diff)
				}
				past = slices.Concat(past, alone(past, 4), c)
				if diff := cmp.Diff(alone(past, 3), k.say(here, c, 3)); diff != "" {
					t.Errorf("third turn (-alone +here):\n%s", diff)
				}
				if streaming {
					continue
				}
				firstTurn := request.Turn{SessionID: id, RID: "t1"}
				if diff := cmp.Diff(alone(slices.Concat(a, first, c), 4), k.say(firstTurn, c, 4)); diff != "" {
					t.Errorf("a branch from the first turn (-alone +here):\n%s", diff)
				}
				firstTurn.DropPreviousOutput = true
				if diff := cmp.Diff(alone(slices.Concat(a, c), 4), k.say(firstTurn, c, 4)); diff != "" {
					t.Errorf("without the first answer (-alone +here):\n%s", diff)
				}
				firstTurn.DropPreviousOutput, firstTurn.Offset, firstTurn.Replace = false, new(3), true
				if diff := cmp.Diff(alone(slices.Concat(a[:3], c), 4), k.say(firstTurn, c, 4)); diff != "" {
					t.Errorf("after an offset (-alone +here):\n%s", diff)
				}
				if n := len(k.s.sessions[id].turns); n != 2 {
					t.Errorf("after a replacement the session has %d turns, want 2", n)
				}
			}
			for _, id := range []string{"talk false", "talk true"} {
				if k.s.sessions[id] != nil {
					if err := k.ask(controlCloseSession, request.Session{ID: id}); err != nil {
						t.Error(err)
					}
				}
			}
			if st := k.s.pool.Stats(); st.Allocatable() != st.Capacity {
				t.Errorf("after the end the pool is %+v", st)
			}
		})
	}
}

// TestStreamingSessionHolds: the KV of a streaming session is used while it is open, and its whole pages are found again.
func TestStreamingSessionHolds(t *testing.T) {
	k := newTalk(t, nil)
	k.open("s", true)
	k.say(request.Turn{SessionID: "s"}, testPrompt(9, 1), 4) // 12 tokens are computed: 3 pages
	if tokens, sessions := k.s.heldBySessions(); tokens != 12 || sessions != 1 {
		t.Errorf("%d tokens are held by %d sessions, want 12 by 1", tokens, sessions)
	}
	if used := k.s.Load().NumUsedTokens; used != 12 {
		t.Errorf("the load says that %d tokens are used, want 12", used)
	}
	k.open("branch", true)
	k.say(request.Turn{SessionID: "branch"}, testPrompt(9, 1), 8) // 16 tokens, of which the other session has 12
	if snap := k.s.snapshot(report.Idle); snap.StreamingSessionHeldTokens != 16 || snap.NumStreamingSessions != 2 || snap.KVUsedTokens != 16 {
		t.Errorf("%d tokens are held by %d sessions and %d used, want 16 by 2, and 16", snap.StreamingSessionHeldTokens, snap.NumStreamingSessions, snap.KVUsedTokens)
	}
	if err := k.ask(controlCloseSession, request.Session{ID: "branch"}); err != nil {
		t.Fatal(err)
	}
	if err := k.s.flush(); err == nil || !strings.Contains(err.Error(), "close them") {
		t.Errorf("flush: %v, want that sessions hold tokens", err)
	}
	sink := k.submit(request.Turn{SessionID: "s"}, testPrompt(3, 2), 2)
	k.finish(sink)
	if sink.cached != 12 {
		t.Errorf("the second turn finds %d tokens, want 12", sink.cached)
	}
	// An abort leaves the session where it was.
	before := k.s.sessions["s"].turns
	sink = k.submit(request.Turn{SessionID: "s"}, testPrompt(3, 3), 30)
	for range 3 {
		k.step()
	}
	k.s.Abort(fmt.Sprint("t", k.turns), request.OutcomeAbortedClient)
	k.finish(sink)
	if diff := cmp.Diff(len(before[0].tokens), len(k.s.sessions["s"].turns[0].tokens)); diff != "" {
		t.Errorf("an aborted turn changed the session (-before +after):\n%s", diff)
	}
	// Idle for too long.
	k.clock.Advance(2 * time.Minute)
	k.step()
	if len(k.s.sessions) != 0 {
		t.Error("the session is open after its time-out")
	}
	if st := k.s.pool.Stats(); st.Used != 0 {
		t.Errorf("after the time-out the pool is %+v", st)
	}
}

// TestSessionYields: a request that fits the pool alone runs although idle sessions hold most of it.
func TestSessionYields(t *testing.T) {
	k := newTalk(t, nil)
	for i := range 4 {
		id := fmt.Sprint("s", i)
		k.open(id, true)
		k.say(request.Turn{SessionID: id}, testPrompt(17, 10+i), 4)
	}
	k.open("big", false)
	if diff := cmp.Diff(alone(testPrompt(70, 9), 5), k.say(request.Turn{SessionID: "big"}, testPrompt(70, 9), 5)); diff != "" {
		t.Errorf("(-alone +here):\n%s", diff)
	}
	if k.s.sessions["s0"].held.Pages() != 0 || k.s.sessions["s3"].held.Pages() == 0 {
		t.Error("want the oldest session without its KV and the newest with it")
	}
	past := slices.Concat(testPrompt(17, 10), alone(testPrompt(17, 10), 4), testPrompt(3, 5))
	if diff := cmp.Diff(alone(past, 3), k.say(request.Turn{SessionID: "s0"}, testPrompt(3, 5), 3)); diff != "" {
		t.Errorf("the session that lost its KV (-alone +here):\n%s", diff)
	}
}

// TestSessionsExpireInOrder: those that have been idle for longest come first, and who has a turn is not among them.
func TestSessionsExpireInOrder(t *testing.T) {
	k := newTalk(t, nil)
	for i := range 9 {
		k.open(fmt.Sprint("s", (i*5)%9), false)
	}
	k.say(request.Turn{SessionID: "s5"}, testPrompt(3, 1), 1)
	k.submit(request.Turn{SessionID: "s1"}, testPrompt(3, 1), 50)
	k.step()
	k.clock.Advance(time.Hour)
	ends, _, ok := k.s.expiredSessions(k.clock.Now())
	var ids []string
	for _, m := range ends {
		ids = append(ids, m.(controlMsg).session.ID)
	}
	if diff := cmp.Diff([]string{"s0", "s6", "s2", "s7", "s3", "s8", "s4", "s5"}, ids); diff != "" || ok {
		t.Errorf("another will expire: %t; want none; expired (-want +got):\n%s", ok, diff)
	}
	// What came in the same step finds them closed, and is not closed itself.
	sink := k.submit(request.Turn{SessionID: "s0"}, testPrompt(3, 1), 1)
	k.finish(sink)
	if f := sink.finish; f.Outcome != request.OutcomeInvalid || !strings.Contains(f.Message, "no such session") {
		t.Errorf("a turn of an expired session ends with %v", f)
	}
}

// TestSessionForgets: what a session remembers is bounded, and the newest turns are what it remembers.
func TestSessionForgets(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		turns        []int // tokens, oldest first
		want         []int
	}{
		{"all fit", "exactly as many tokens as may be", []int{40, 30, 30}, []int{40, 30, 30}},
		{"one too many", "the oldest goes", []int{41, 30, 30}, []int{30, 30}},
		{"a large one", "older ones that would fit go with it: turns are forgotten in their order", []int{1, 90, 30}, []int{30}},
		{"only one", "the newest turn stays, for the session goes on from it", []int{5, 200}, []int{200}},
		{"many", "small ones are bounded by their number", make([]int, maxTurns+7), make([]int, maxTurns)},
	} {
		x := &session{}
		for i, n := range tt.turns {
			x.turns = append(x.turns, turn{rid: fmt.Sprint(i), tokens: make([]int32, n)})
		}
		x.forget(100)
		var got []int
		for i, y := range x.turns {
			got = append(got, len(y.tokens))
			if want := fmt.Sprint(len(tt.turns) - len(x.turns) + i); y.rid != want {
				t.Errorf("%s: turn %d is %s, want %s", tt.name, i, y.rid, want)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (%s), tokens (-want +got):\n%s", tt.name, tt.reason, diff)
		}
	}

	k := newTalk(t, nil)
	k.open("s", false)
	size := k.s.limit / 2
	for range 2*maxTurnContexts + 9 {
		k.say(request.Turn{SessionID: "s", Offset: new(0)}, testPrompt(size-1, 1), 1)
	}
	if n := len(k.s.sessions["s"].turns); n != maxTurnContexts*k.s.limit/size {
		t.Errorf("the session remembers %d turns of %d tokens, want %d", n, size, maxTurnContexts*k.s.limit/size)
	}
	sink := k.submit(request.Turn{SessionID: "s", RID: "t1"}, testPrompt(3, 1), 1)
	k.finish(sink)
	if f := sink.finish; f.Outcome != request.OutcomeInvalid || !strings.Contains(f.Message, "has forgotten it") {
		t.Errorf("a turn after one that is forgotten ends with %v", f)
	}
}

func TestSessionRefusals(t *testing.T) {
	k := newTalk(t, nil)
	k.open("s", true)
	k.open("plain", false)
	k.say(request.Turn{SessionID: "s"}, testPrompt(4, 1), 2)
	busy := k.submit(request.Turn{SessionID: "s"}, testPrompt(4, 1), 20)
	k.step()
	for _, tt := range []struct {
		name, want string
		turn       request.Turn
	}{
		{"unknown", "no such session is open", request.Turn{SessionID: "nobody"}},
		{"busy", "has a turn under way", request.Turn{SessionID: "s"}},
		{"rid", "has no such turn", request.Turn{SessionID: "plain", RID: "t99"}},
		{"offset", "has 0 tokens there", request.Turn{SessionID: "plain", Offset: new(3)}},
	} {
		sink := k.submit(tt.turn, testPrompt(4, 2), 2)
		k.finish(sink)
		if f := sink.finish; f.Outcome != request.OutcomeInvalid || !strings.Contains(f.Message, tt.want) {
			t.Errorf("%s: ends with %v, want invalid: %s", tt.name, f, tt.want)
		}
	}
	k.finish(busy)
	sink := k.submit(request.Turn{SessionID: "s", Offset: new(1)}, testPrompt(4, 2), 2)
	k.finish(sink)
	if f := sink.finish; f.Outcome != request.OutcomeInvalid || !strings.Contains(f.Message, "is streaming and goes on from its newest turn alone") {
		t.Errorf("an offset in a streaming session ends with %v", f)
	}
	for _, tt := range []struct {
		kind    controlKind
		session request.Session
		want    string
	}{
		{controlOpenSession, request.Session{ID: "s"}, "is open"},
		{controlOpenSession, request.Session{}, "has no id"},
		{controlCloseSession, request.Session{ID: "nobody"}, "is not open"},
	} {
		if err := k.ask(tt.kind, tt.session); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.session, err, tt.want)
		}
	}
	off := newTalk(t, func(c *Config) { c.StreamingSessions = false })
	if err := off.ask(controlOpenSession, request.Session{ID: "s", Streaming: true}); err == nil || !strings.Contains(err.Error(), "--enable-streaming-session") {
		t.Errorf("streaming sessions are off: %v", err)
	}
	uncached := newTalk(t, func(c *Config) { c.NoCache = true })
	if err := uncached.ask(controlOpenSession, request.Session{ID: "s", Streaming: true}); err == nil || !strings.Contains(err.Error(), "--disable-radix-cache") {
		t.Errorf("a streaming session without a cache: %v", err)
	}
	// Closing ends the turn that is under way.
	running := k.submit(request.Turn{SessionID: "plain"}, testPrompt(4, 1), 50)
	k.step()
	if err := k.ask(controlCloseSession, request.Session{ID: "plain"}); err != nil {
		t.Error(err)
	}
	k.finish(running)
	if running.finish.Outcome != request.OutcomeAbortedOperator {
		t.Errorf("the turn of a closed session ends with %v", running.finish)
	}
}

// TestSessionsUnderLoad: many conversations at once on a small pool, with turns that are aborted and sessions that are
// closed at any time; every turn that ends by itself is right.
func TestSessionsUnderLoad(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	k := newTalk(t, func(c *Config) {
		c.PageSize, c.CapacityTokens, c.Overlap, c.ChunkTokens = 1+rng.IntN(6), 240, rng.IntN(2) == 0, rng.IntN(2)*9
		if rng.IntN(2) == 0 {
			slidingWindow(c, 1+rng.IntN(20), 60)
		}
	})
	type conversation struct {
		past  []int32
		sink  *inboxSink
		asked []int32
	}
	talks := map[string]*conversation{}
	for i := range 600 {
		id := fmt.Sprint("c", rng.IntN(5))
		c := talks[id]
		switch {
		case c == nil:
			k.open(id, rng.IntN(2) == 0)
			talks[id] = &conversation{}
		case c.sink == nil && len(c.past) > 60 || rng.IntN(30) == 0:
			if err := k.ask(controlCloseSession, request.Session{ID: id}); err != nil {
				t.Fatal(err)
			}
			delete(talks, id)
		case c.sink == nil:
			c.asked = testPrompt(1+rng.IntN(12), i)
			c.sink = k.submit(request.Turn{SessionID: id}, c.asked, 1+rng.IntN(9))
		case rng.IntN(6) == 0:
			k.s.Abort(fmt.Sprint("t", k.turns), request.OutcomeAbortedClient)
		}
		k.step()
		for id, c := range talks {
			if c.sink == nil {
				continue
			}
			select {
			case <-c.sink.ended:
			default:
				continue
			}
			if c.sink.finish.Type != request.FinishAbort {
				now := slices.Concat(c.past, c.asked)
				if diff := cmp.Diff(alone(now, len(c.sink.tokens)), c.sink.tokens); diff != "" {
					t.Fatalf("session %s after %d tokens (-alone +here):\n%s", id, len(now), diff)
				}
				c.past = slices.Concat(now, c.sink.tokens)
			}
			c.sink = nil
		}
	}
	for id := range talks {
		if err := k.ask(controlCloseSession, request.Session{ID: id}); err != nil {
			t.Error(err)
		}
	}
	for range 5 {
		k.step()
	}
	if st := k.s.pool.Stats(); st.Allocatable() != st.Capacity {
		t.Errorf("after the end the pool is %+v", st)
	}
}

// TestSessionsWaitForEachOther: turns that can't run beside what other sessions keep for their own turns, which wait too,
// run one after the other.
func TestSessionsWaitForEachOther(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		change       func(*Config)
		sessions     int
		first, more  int // prompt tokens of the turns
	}{
		{"two", "what each keeps leaves no room for the other's turn", nil, 2, 40, 20},
		{"window", "a turn claims window pages beside those that its session keeps", func(c *Config) { slidingWindow(c, 30, 24) }, 1, 40, 20},
		{"windows", "and beside those of others", func(c *Config) { slidingWindow(c, 30, 24) }, 2, 30, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newTalk(t, tt.change)
			var pasts [][]int32
			for i := range tt.sessions {
				id := fmt.Sprint("s", i)
				k.open(id, true)
				prompt := testPrompt(tt.first, 10+i)
				pasts = append(pasts, slices.Concat(prompt, k.say(request.Turn{SessionID: id}, prompt, 4)))
			}
			var sinks []*inboxSink
			for i := range tt.sessions {
				sinks = append(sinks, k.submit(request.Turn{SessionID: fmt.Sprint("s", i)}, testPrompt(tt.more, 20+i), 4))
			}
			for i, sink := range sinks {
				k.finish(sink)
				if diff := cmp.Diff(alone(slices.Concat(pasts[i], testPrompt(tt.more, 20+i)), 4), sink.tokens); diff != "" {
					t.Errorf("%s: session %d, finish %v (-alone +here):\n%s", tt.reason, i, sink.finish, diff)
				}
			}
		})
	}
}

// TestSessionPromptLogprobs: places of a turn's prompt count from the turn's own tokens on, and each comes once.
func TestSessionPromptLogprobs(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		k := newTalk(t, nil)
		k.open("s", streaming)
		before := testPrompt(9, 1)
		before = append(before, k.say(request.Turn{SessionID: "s"}, before, 6)...)
		prompt := testPrompt(7, 2)
		sink := newSink()
		if err := k.s.Submit(&request.Request{
			RID: "scored", PromptIDs: prompt, Session: &request.Turn{SessionID: "s"}, Logprobs: &request.WantLogprobs{Top: 1, PromptFrom: 2},
			Sampling: request.Sampling{MaxNewTokens: 3, IgnoreEOS: true, Seed: new(int64(1))},
		}, sink); err != nil {
			t.Fatal(err)
		}
		k.finish(sink)
		all := slices.Concat(before, prompt)
		sink.checkLogprobs(t, &request.Request{RID: "scored", PromptIDs: all, Logprobs: &request.WantLogprobs{Top: 1, PromptFrom: len(before) + 2}})
		if len(sink.prompt) != len(prompt)-2 {
			t.Errorf("streaming %t: %d positions of the prompt, want %d", streaming, len(sink.prompt), len(prompt)-2)
		}
	}
}

// TestSessionsShareOneBound: all sessions together remember at most so many tokens. Older turns of idle ones give way, and a
// turn that still has no room is refused for now, by the name of the flag.
func TestSessionsShareOneBound(t *testing.T) {
	k := newTalk(t, func(c *Config) { c.SessionTokens = 60 })
	k.open("a", false)
	k.open("b", false)
	for range 3 { // 5, 5 and 5 tokens
		k.say(request.Turn{SessionID: "a", Offset: new(0)}, testPrompt(4, 1), 1)
	}
	k.say(request.Turn{SessionID: "b"}, testPrompt(19, 2), 1)
	if n := k.s.remembered; n != 35 || len(k.s.sessions["a"].turns) != 3 {
		t.Fatalf("%d tokens are remembered, in a %d turns", n, len(k.s.sessions["a"].turns))
	}
	k.say(request.Turn{SessionID: "b", Offset: new(0)}, testPrompt(29, 3), 1) // 30 more: two turns of a go
	if n := k.s.remembered; n != 55 || len(k.s.sessions["a"].turns) != 1 {
		t.Fatalf("%d tokens are remembered, in a %d turns", n, len(k.s.sessions["a"].turns))
	}
	sink := k.submit(request.Turn{SessionID: "b", Offset: new(0)}, testPrompt(5, 1), 1)
	k.finish(sink)
	if f := sink.finish; f.Outcome != request.OutcomeRefused || !strings.Contains(f.Message, "sessions remember 55 tokens, and this turn may leave 6 more: together more than the 60 of --max-session-tokens") {
		t.Errorf("a turn without room ends with %v", f)
	}
	if err := k.ask(controlCloseSession, request.Session{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	k.say(request.Turn{SessionID: "b", Offset: new(0)}, testPrompt(5, 1), 1)

	// What turns under way may leave counts before they end, and an abort gives it back.
	k.open("c", false)
	busy := k.submit(request.Turn{SessionID: "b", Offset: new(0)}, testPrompt(1, 1), 3) // 56 + 4
	k.step()
	sink = k.submit(request.Turn{SessionID: "c"}, testPrompt(1, 1), 1)
	k.finish(sink)
	if f := sink.finish; f.Outcome != request.OutcomeRefused {
		t.Errorf("a turn without room beside one under way ends with %v", f)
	}
	k.finish(busy)
	if err := k.ask(controlCloseSession, request.Session{ID: "b"}); err != nil || k.s.remembered != 0 {
		t.Errorf("%d tokens are remembered at the end: %v", k.s.remembered, err)
	}
}
