package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// parseMessage reads a message of the tests: "a" or "a:40" submits, of 40 tokens, "a@s" as a turn of session s; "-a" aborts,
// "-a*" by prefix; "open s", "close s", "pause abort", "pause in_place", "continue", "flush".
func parseMessage(text string) message {
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "flush":
		return flushMsg{}
	case "open":
		return controlMsg{kind: controlOpenSession, session: request.Session{ID: rest}}
	case "close":
		return controlMsg{kind: controlCloseSession, session: request.Session{ID: rest}}
	case "pause":
		return controlMsg{kind: controlPause, mode: request.PauseMode(rest)}
	case "continue":
		return controlMsg{kind: controlContinue}
	}
	if rid, ok := strings.CutPrefix(text, "-"); ok {
		rid, prefix := strings.CutSuffix(rid, "*")
		return abortMsg{rid: rid, prefix: prefix, reason: request.OutcomeAbortedClient}
	}
	r := &request.Request{RID: text, PromptIDs: []int32{1}}
	if rid, session, ok := strings.Cut(text, "@"); ok {
		r.RID, r.Session = rid, &request.Turn{SessionID: session}
	}
	if rid, tokens, ok := strings.Cut(r.RID, ":"); ok {
		n := 0
		fmt.Sscan(tokens, &n)
		r.RID, r.PromptIDs = rid, make([]int32, n)
	}
	return submitMsg{req: r}
}

func nameMessage(m message) string {
	switch m := m.(type) {
	case submitMsg:
		return m.req.RID
	case abortMsg:
		return "-" + m.rid
	case flushMsg:
		return "flush"
	case controlMsg:
		return [...]string{"pause ", "continue", "open ", "close "}[m.kind] + string(m.mode) + m.session.ID
	default:
		return fmt.Sprintf("%T", m)
	}
}

// namesOf gives what an intake takes, ends, finds busy and leaves.
func namesOf(t intake) [4]string {
	var lists [4][]string
	for at, list := range [][]message{0: t.taken, 3: t.left} {
		for _, m := range list {
			lists[at] = append(lists[at], nameMessage(m))
		}
	}
	for _, u := range t.ended {
		lists[1] = append(lists[1], nameMessage(u.submitMsg))
	}
	for _, m := range t.busy {
		lists[2] = append(lists[2], nameMessage(m))
	}
	var names [4]string
	for at, list := range lists {
		names[at] = strings.Join(list, ",")
	}
	return names
}

func TestIntake(t *testing.T) {
	small := bound{requests: 2, bytes: 400}
	for _, tc := range []struct {
		name, reason, waiting    string // messages with commas between them
		taken, ended, busy, left string
	}{
		{name: "nothing"},
		{name: "all fit", waiting: "a,-x,b,flush", taken: "a,-x,b,flush"},
		{name: "requests", reason: "in order", waiting: "a,b,c,d", taken: "a,b", left: "c,d"},
		{name: "bytes", reason: "a small one does not overtake", waiting: "a:60,b:60,c", taken: "a", left: "b,c"},
		{name: "one of any size", waiting: "a:1000,b", taken: "a", left: "b"},
		{name: "abort of what is taken", waiting: "a,b,c,-a", taken: "a,b,-a", left: "c"},
		{name: "abort of what is left", reason: "it never lived on a rank", waiting: "a,b,c,d,-c", taken: "a,b,-c", ended: "c", left: "d"},
		{name: "abort before its rid comes", reason: "it means the one before", waiting: "a,b,-c,c", taken: "a,b,-c", left: "c"},
		{name: "a rid again", waiting: "a,b,c,-c,c", taken: "a,b,-c", ended: "c", left: "c"},
		{name: "abort by prefix", waiting: "a,b,c1,d,c2,-c*,c3", taken: "a,b,-c", ended: "c1,c2", left: "d,c3"},
		{name: "abort of all", waiting: "a,b,c,d,-*", taken: "a,b,-", ended: "c,d"},
		{name: "pause that aborts", waiting: "a,b,c,pause abort,d", taken: "a,b,pause abort", ended: "c", left: "d"},
		{name: "pause and continue", reason: "requests wait either way", waiting: "a,b,c,pause in_place,continue,d", taken: "a,b,pause in_place,continue", left: "c,d"},
		{name: "flush behind what is left", waiting: "a,b,c,flush", taken: "a,b", busy: "flush", left: "c"},
		{name: "flush when nothing is left", waiting: "a,b,c,-c,flush", taken: "a,b,-c,flush", ended: "c"},
		{name: "sessions", reason: "those of other sessions overtake", waiting: "a,b,c@s,close s,open s,open t,d@t,close t,close u", taken: "a,b,open t,close u", left: "c,close s,open s,d,close t"},
		{name: "a session whose turn ended", waiting: "a,b,c@s,-c,close s", taken: "a,b,-c,close s", ended: "c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var waiting []message
			for text := range strings.SplitSeq(tc.waiting, ",") {
				if text != "" {
					waiting = append(waiting, parseMessage(text))
				}
			}
			got := small.divide(waiting)
			want := [...]string{tc.taken, tc.ended, tc.busy, tc.left}
			if diff := cmp.Diff(want, namesOf(got)); diff != "" {
				t.Errorf("%s (-want +got: taken, ended, busy, left)\n%s", tc.reason, diff)
			}
		})
	}
}

// TestIntakeInTurns: whatever waits, every message comes out of some turn once, submissions in their order and within the
// bound, none of a request that was aborted after it was submitted stays behind its abort, and none ends that was not.
func TestIntakeInTurns(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		b := bound{requests: 1 + rng.IntN(4), bytes: 1 + rng.IntN(200)}
		kinds := []string{"flush", "open s", "close s", "pause abort", "pause retract", "continue", "-*"}
		var waiting []message
		for i := range rng.IntN(30) {
			switch rng.IntN(4) {
			case 0:
				waiting = append(waiting, parseMessage(fmt.Sprintf("-r%d", rng.IntN(i+1))))
			case 1:
				waiting = append(waiting, parseMessage(kinds[rng.IntN(len(kinds))]))
			default:
				waiting = append(waiting, parseMessage(fmt.Sprintf("r%d:%d%s", i, 1+rng.IntN(60), []string{"", "@s"}[rng.IntN(2)])))
			}
		}
		in := map[string]int{}
		for _, m := range waiting {
			in[nameMessage(m)]++
		}
		last, turns := -1, 0
		number := func(m submitMsg) (n int) {
			fmt.Sscanf(m.req.RID, "r%d", &n)
			return n
		}
		for left := waiting; len(left) > 0; turns++ {
			if turns > len(waiting) {
				t.Fatalf("seed %d: %d messages are left after as many turns as there were messages", seed, len(left))
			}
			x := b.divide(left)
			checkEnds(t, seed, left, x)
			requests, size := 0, 0
			for _, m := range x.taken {
				in[nameMessage(m)]--
				if m, ok := m.(submitMsg); ok {
					requests, size = requests+1, size+sizeOf(m.req)
					if n := number(m); n <= last {
						t.Fatalf("seed %d: %s is taken after r%d", seed, m.req.RID, last)
					} else {
						last = n
					}
				}
			}
			for _, u := range x.ended {
				in[nameMessage(u.submitMsg)]--
			}
			for _, m := range x.busy {
				in[nameMessage(m)]--
			}
			if requests > b.requests || requests > 1 && size > b.bytes {
				t.Fatalf("seed %d: a turn takes %d requests of %d bytes, the bound is %+v", seed, requests, size, b)
			}
			if slices.ContainsFunc(x.left, func(m message) bool { _, is := m.(abortMsg); return is }) {
				t.Fatalf("seed %d: an abort is left", seed)
			}
			left = x.left
		}
		for name, n := range in {
			if n != 0 {
				t.Fatalf("seed %d: %q came out %d times too few", seed, name, n)
			}
		}
	}
}

// TestIntakeOfABacklog: while messages come between the turns, each turn takes what it would if all of them were looked at.
func TestIntakeOfABacklog(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 2))
	for life := range 500 {
		in := newInbox()
		in.bound = bound{requests: 1 + rng.IntN(4), bytes: 1 + rng.IntN(200)}
		rare := []int{2, 20, 200}[rng.IntN(3)]
		kinds := []string{"flush", "pause in_place", "continue", "flush", "open s", "close s", "pause abort", "-r1*"}
		var waiting []message // as the twin has them
		for turn := range 40 {
			for i := range rng.IntN(6) {
				text := fmt.Sprintf("r%d-%d:%d%s", turn, i, 1+rng.IntN(60), []string{"", "", "", "@s"}[rng.IntN(4)])
				switch rng.IntN(rare) {
				case 0:
					text = kinds[rng.IntN(len(kinds))]
				case 1:
					text = fmt.Sprintf("-r%d-%d", rng.IntN(turn+1), rng.IntN(6))
				}
				m := parseMessage(text)
				waiting = append(waiting, m)
				in.put(m)
			}
			want, got := in.bound.divide(waiting), in.take()
			waiting = want.left
			if diff := cmp.Diff(namesOf(want), namesOf(got)); diff != "" || want.sessions != got.sessions {
				t.Fatalf("seed %d, life %d, turn %d: %d and %d controls of sessions are left (-all +backlog: taken, ended, busy, left)\n%s",
					seed, life, turn, want.sessions, got.sessions, diff)
			}
		}
	}
}

// checkEnds compares which submissions an intake ends, and which flushes are busy, with what each of the messages says by itself.
func checkEnds(t *testing.T, seed uint64, waiting []message, x intake) {
	t.Helper()
	left := map[string]bool{}
	for _, m := range x.left {
		if m, ok := m.(submitMsg); ok {
			left[m.req.RID] = true
		}
	}
	ended := map[string]string{}
	for _, u := range x.ended {
		ended[u.req.RID] = u.message
	}
	behind, busy := false, 0 // a submission that is left
	for i, m := range waiting {
		if _, ok := m.(flushMsg); ok && behind {
			busy++
		}
		submitted, ok := m.(submitMsg)
		if !ok {
			continue
		}
		rid, end := submitted.req.RID, ""
		for _, later := range waiting[i+1:] {
			switch later := later.(type) {
			case abortMsg:
				if later.rid == rid || later.prefix && strings.HasPrefix(rid, later.rid) {
					end = abortMessage(later.reason)
				}
			case controlMsg:
				if later.kind == controlPause && later.mode == request.PauseAbort && end == "" {
					end = pauseMessage
				}
			}
		}
		if got, is := ended[rid]; left[rid] && end != "" || is && (end == "" || got != end && end != pauseMessage && got != pauseMessage) {
			t.Fatalf("seed %d: %s is left: %t, ended: %q; a later message says %q", seed, rid, left[rid], got, end)
		}
		behind = behind || left[rid]
	}
	if busy != len(x.busy) {
		t.Fatalf("seed %d: %d flushes are busy, %d come after what is left", seed, len(x.busy), busy)
	}
}

// TestPeersOfWhatNeverOpened: the other half of a request that ends before its hand-over is opened hears of it at once.
func TestPeersOfWhatNeverOpened(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		do           func(s *Scheduler, submit func(rid string, room int64, g *request.Grammar))
		want         map[int64]bool // by room: the peer was told
	}{
		{"beyond the intake's bound", "no step has seen it", func(s *Scheduler, submit func(string, int64, *request.Grammar)) {
			s.inbox.bound.requests = 1
			submit("a", 1, nil)
			submit("b", 2, nil)
			s.Abort("b", request.OutcomeAbortedClient)
		}, map[int64]bool{1: false, 2: true}},
		{"full queue", "it was refused", func(s *Scheduler, submit func(string, int64, *request.Grammar)) {
			s.cfg.MaxQueued = 1
			submit("a", 1, nil)
			submit("b", 2, nil)
		}, map[int64]bool{1: false, 2: true}},
		{"grammar", "it had not come to that", func(s *Scheduler, submit func(string, int64, *request.Grammar)) {
			submit("a", 1, nil)
			submit("b", 2, &request.Grammar{Source: "slow 7 3"})
			s.Abort("b", request.OutcomeAbortedClient)
		}, map[int64]bool{1: false, 2: true}},
		{"sent twice", "the room is that of the one that lives", func(s *Scheduler, submit func(string, int64, *request.Grammar)) {
			submit("a", 1, nil)
			submit("a", 1, nil)
			submit("a", 2, nil)
		}, map[int64]bool{1: false, 2: true}},
		{"end of the scheduler", "nobody takes it any more", func(s *Scheduler, submit func(string, int64, *request.Grammar)) {
			submit("a", 1, nil)
			s.endAll(request.OutcomeAbortedOperator, "the engine is shutting down")
		}, map[int64]bool{1: true}},
	} {
		for _, role := range []Role{Prefill, Decode} {
			t.Run(role.String()+"/"+tc.name, func(t *testing.T) {
				w := newWire(1)
				cfg := testConfig(role, 1, 400)
				s, err := New(cfg, Deps{
					Executor: newTapeOf(cfg), Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(),
					Sender: wireSender{w}, Receiver: wireReceiver{w}, Grammars: testGrammars{},
				})
				if err != nil {
					t.Fatal(err)
				}
				s.checked = true
				begin(t, s)
				tc.do(s, func(rid string, room int64, g *request.Grammar) {
					if err := s.Submit(&request.Request{
						RID: rid, PromptIDs: []int32{1}, Sampling: request.Sampling{MaxNewTokens: 1}, Grammar: g,
						Bootstrap: &request.Bootstrap{Host: "10.0.0.1", Port: 1, Room: room},
					}, newSink()); err != nil {
						t.Fatal(err)
					}
				})
				if _, err := s.turn(); err != nil {
					t.Fatal(err)
				}
				got := map[int64]bool{}
				for id, r := range w.rooms {
					got[id] = r.aborted != nil
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s: whose peer was told (-want +got):\n%s", tc.reason, diff)
				}
				s.endAll(request.OutcomeAbortedOperator, "the test is over")
				s.compilations.running.Wait()
			})
		}
	}
}

// recordingPeers keeps what the leader shares.
type recordingPeers struct {
	Peers
	shared [][]byte
}

func (p *recordingPeers) Share(ctx context.Context, own []byte) ([]byte, error) {
	p.shared = append(p.shared, own)
	return p.Peers.Share(ctx, own)
}

// TestBurstIsShared: a burst of large requests reaches the other ranks in pieces of a bounded size, an abort and a pause that
// came last with the first of them, and who was aborted before the ranks saw it gets its end all the same.
func TestBurstIsShared(t *testing.T) {
	peers := &recordingPeers{Peers: memoryPeers{newMemoryWorld(1), 0}}
	cfg := testConfig(Unified, 4, 64)
	s, err := New(cfg, Deps{Executor: newTapeOf(cfg), Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Peers: peers})
	if err != nil {
		t.Fatal(err)
	}
	s.checked = true
	begin(t, s)
	const burst, tokens = 400, 20_000 // too long, each is refused
	sinks := make([]*inboxSink, burst)
	for i := range sinks {
		sinks[i] = newSink()
		if err := s.Submit(&request.Request{RID: fmt.Sprint("r", i), PromptIDs: make([]int32, tokens)}, sinks[i]); err != nil {
			t.Fatal(err)
		}
	}
	s.Abort(fmt.Sprint("r", burst-1), request.OutcomeAbortedClient)
	s.inbox.put(flushMsg{reply: make(chan error, 1)})
	step := func() {
		if _, err := s.turn(); err != nil {
			t.Fatal(err)
		}
	}
	step()
	if f := sinks[burst-1].finish; f == nil || f.Outcome != request.OutcomeAbortedClient {
		t.Errorf("after a step the last of the burst, aborted, has the end %v", f)
	}
	for len(s.inbox.left.left) > 0 {
		select {
		case <-s.inbox.wake:
		default:
			t.Fatal("messages are left and nothing wakes the scheduler")
		}
		step()
	}
	for i, sink := range sinks[:burst-1] {
		if f := sink.finish; f == nil || f.Outcome != request.OutcomeTooLong {
			t.Fatalf("r%d has the end %v", i, f)
		}
	}
	if _, reqs, left := s.inbox.current(); reqs != 0 || left != 0 {
		t.Errorf("%d requests of %d tokens pend at the end", reqs, left)
	}
	for i, raw := range peers.shared {
		if most := stepBound.bytes + 4*tokens + 1000*stepBound.requests; len(raw) > most {
			t.Errorf("step %d shares %d bytes, more than %d", i, len(raw), most)
		}
	}
	if n := len(peers.shared); n < burst*tokens*4/stepBound.bytes {
		t.Errorf("the burst took %d steps", n)
	}
}
