package dp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

func submit(t *testing.T, c *Controller, r *request.Request) *rank.Stream {
	t.Helper()
	s, err := c.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ask(rid string, promptTokens int) *request.Request {
	return &request.Request{RID: rid, PromptIDs: make([]int32, promptTokens)}
}

func TestPlacement(t *testing.T) {
	at := func(dpRank int) *int { return &dpRank }
	room := func(room int64) *request.Bootstrap { return &request.Bootstrap{Host: "h", Port: 1, Room: room} }
	type step struct {
		req     request.Request
		prompt  int
		end     string // the rid of a request that ends before
		say     string // the rid of a request that gets to 100 tokens before
		want    int    // DP rank
		refused string // part of the message
	}
	for _, c := range []struct {
		name, reason string
		ranks        int
		method       Method
		steps        []step
	}{
		{
			name: "round robin", reason: "one after the other, whatever lives", ranks: 3, method: RoundRobin,
			steps: []step{{want: 0}, {want: 1, end: "r0"}, {want: 2}, {want: 0}},
		},
		{
			name: "a named rank", reason: "the client's choice is honoured, and the others go on as before", ranks: 3, method: RoundRobin,
			steps: []step{{want: 0}, {req: request.Request{DPRank: at(0)}, want: 0}, {want: 1}},
		},
		{
			name: "a rank that doesn't exist", reason: "the client learns which exist", ranks: 2, method: RoundRobin,
			steps: []step{
				{req: request.Request{DPRank: at(2)}, refused: "routed_dp_rank is 2: this engine has the DP ranks 0 to 1"},
				{req: request.Request{DPRank: at(-1)}, refused: "routed_dp_rank is -1"},
			},
		},
		{
			name: "fewest requests", reason: "equals take turns; one that ended counts no more", ranks: 2, method: TotalRequests,
			steps: []step{{want: 0}, {want: 1}, {want: 0}, {end: "r1", want: 1}, {end: "r0", want: 0}, {end: "r3", want: 1}},
		},
		{
			name: "fewest tokens", reason: "prompts and answers count", ranks: 2, method: TotalTokens,
			steps: []step{{prompt: 50, want: 0}, {prompt: 10, want: 1}, {prompt: 10, want: 1}, {prompt: 10, want: 1}, {say: "r1", prompt: 1, want: 0}},
		},
		{
			name: "the room", reason: "both halves of PD know the DP rank", ranks: 3, method: FollowBootstrapRoom,
			steps: []step{
				{req: request.Request{Bootstrap: room(7)}, want: 1}, {req: request.Request{Bootstrap: room(9)}, want: 0},
				{req: request.Request{Bootstrap: room(0)}, want: 0},
				{req: request.Request{Bootstrap: room(7), DPRank: at(1)}, want: 1},
				{req: request.Request{Bootstrap: room(7), DPRank: at(2)}, refused: "routed_dp_rank is 2, but bootstrap_room 7 belongs to DP rank 1"},
				{refused: "bootstrap_room is missing"},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctl, fakes := newBench(t, c.ranks, c.method)
			homes := map[string]int{}
			for i, s := range c.steps {
				if s.end != "" {
					fakes[homes[s.end]].say(s.end, 1, true)
				}
				if s.say != "" {
					fakes[homes[s.say]].say(s.say, 100, false)
				}
				r := s.req
				r.RID, r.PromptIDs = fmt.Sprint("r", i), make([]int32, s.prompt)
				stream := submit(t, ctl, &r)
				if s.refused != "" {
					o, err := stream.Recv(t.Context())
					if err != nil || o.Finish == nil || o.Finish.Outcome != request.OutcomeInvalid || !strings.Contains(o.Finish.Message, s.refused) {
						t.Errorf("step %d gives %+v, %v: want a refusal with %q", i, o.Finish, err, s.refused)
					}
					continue
				}
				homes[r.RID] = stream.DPRank()
				if got := fakes[stream.DPRank()].asked(); stream.DPRank() != s.want || !cmp.Equal(got, []string{"submit " + r.RID}) {
					t.Errorf("step %d went to DP rank %d, which was asked %q; want DP rank %d: %s", i, stream.DPRank(), got, s.want, c.reason)
				}
			}
		})
	}
}

func TestAbortGoesWhereTheRequestLives(t *testing.T) {
	c, fakes := newBench(t, 2, RoundRobin)
	submit(t, c, ask("a", 1))
	submit(t, c, ask("b", 1))
	fakes[0].asked()
	fakes[1].asked()
	if err := errors.Join(c.Abort("b", request.OutcomeTimeout), c.Abort("unknown", request.OutcomeTimeout), c.AbortAll("x")); err != nil {
		t.Fatal(err)
	}
	got := [][]string{fakes[0].asked(), fakes[1].asked()}
	if diff := cmp.Diff([][]string{{"abort all x"}, {"abort b timeout", "abort all x"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := c.Submit(t.Context(), ask("a", 1)); !errors.Is(err, rank.ErrDuplicate) {
		t.Errorf("a second request a gives %v, want %v: it would live on another DP rank", err, rank.ErrDuplicate)
	}
	fakes[0].say("a", 1, true)
	submit(t, c, ask("a", 1))
}

func TestControlReachesAll(t *testing.T) {
	c, fakes := newBench(t, 2, RoundRobin)
	ctx := t.Context()
	list, err := c.Loads(ctx)
	if diff := cmp.Diff([]loads.Load{{DPRank: 0, NumRunningReqs: 1}, {DPRank: 1, NumRunningReqs: 2}}, list); diff != "" || err != nil {
		t.Errorf("loads: %v, (-want +got):\n%s", err, diff)
	}
	if err := errors.Join(c.Flush(ctx), c.Pause(ctx, request.PauseRetract), c.Continue(ctx), c.StartProfile(ctx, profile.Options{Name: "p"}), c.Collect(ctx)); err != nil {
		t.Error(err)
	}
	if files, err := c.StopProfile(ctx); err != nil || len(files) != len(fakes) {
		t.Errorf("profiles %v: %v", files, err)
	}
	want := []string{"loads", "flush", "pause retract", "continue", "profile p", "collect", "stop profile"}
	for i, f := range fakes {
		if diff := cmp.Diff(want, f.asked()); diff != "" {
			t.Errorf("DP rank %d (-want +got):\n%s", i, diff)
		}
	}
	fakes[1].refusal = errors.New("busy")
	for what, err := range map[string]error{"flush": c.Flush(ctx), "pause": c.Pause(ctx, request.PauseAbort)} {
		if err == nil || err.Error() != "DP rank 1: busy" {
			t.Errorf("%s gives %v, want that DP rank 1 is busy", what, err)
		}
	}
}

// TestProfileOfAllOrNone: when a DP rank does not begin to record, those that did are stopped, and it is not.
func TestProfileOfAllOrNone(t *testing.T) {
	c, fakes := newBench(t, 3, RoundRobin)
	fakes[1].refusal = profile.ErrRunning
	if err := c.StartProfile(t.Context(), profile.Options{Name: "p"}); !errors.Is(err, profile.ErrRunning) || err.Error() != "DP rank 1: "+profile.ErrRunning.Error() {
		t.Errorf("start gives %v", err)
	}
	both, refused := []string{"profile p", "stop profile"}, []string{"profile p"}
	if diff := cmp.Diff([][]string{both, refused, both}, [][]string{fakes[0].asked(), fakes[1].asked(), fakes[2].asked()}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTimelinesOfAll: every DP rank is asked, and what those say that answer is there.
func TestTimelinesOfAll(t *testing.T) {
	c, fakes := newBench(t, 2, RoundRobin)
	submit(t, c, ask("a", 1))
	submit(t, c, ask("b", 1))
	want := map[string]*ledger.Record{"a": {StartWallNanos: 1}, "b": {StartWallNanos: 2}}
	got, err := c.Timelines(t.Context(), []string{"a", "b", "c"})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	fakes[1].refusal = errors.New("busy")
	if got, err = c.Timelines(t.Context(), []string{"a"}); len(got) != 1 || err == nil || err.Error() != "DP rank 1: busy" {
		t.Errorf("with a DP rank that does not answer: %v, %v", got, err)
	}
}

// TestAwaitStepOfAny: the first DP rank that gets there counts, and the others are not waited for.
func TestAwaitStepOfAny(t *testing.T) {
	c, _ := newBench(t, 3, RoundRobin)
	if newest, err := c.AwaitStep(t.Context(), 3); newest != 3 || err != nil {
		t.Errorf("step %d, %v, want DP rank 2's third", newest, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.AwaitStep(ctx, 4); !errors.Is(err, context.Canceled) {
		t.Errorf("a step that never comes: %v", err)
	}
}

// TestAwaitStepOfUnequal: what counts is the DP rank that has come furthest, also when another one is past the step and says so
// first. Else a number of steps from there on is over before it began.
func TestAwaitStepOfUnequal(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		step         int64
		mute         []int // DP ranks that don't say
		want         int64
	}{
		{"now", "a recording of some steps counts from here", 0, nil, 1000},
		{"over on all", "it begins with the next", 3, nil, 1000},
		{"over on the first", "the others needn't get there", 900, nil, 1000},
		{"one is silent", "the others know", 0, []int{1}, 700},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, fakes := newBench(t, 3, RoundRobin)
			for i, over := range []int{5, 1000, 700} {
				fakes[i].info.PID = over
			}
			for _, i := range tc.mute {
				fakes[i].refusal = errors.New("busy")
			}
			for range 50 { // in any order of answers
				if newest, err := c.AwaitStep(t.Context(), tc.step); newest != tc.want || err != nil {
					t.Fatalf("%s: step %d, %v, want %d", tc.reason, newest, err, tc.want)
				}
			}
		})
	}
	c, fakes := newBench(t, 2, RoundRobin)
	for _, f := range fakes {
		f.refusal = errors.New("busy")
	}
	if _, err := c.AwaitStep(t.Context(), 0); err == nil || err.Error() != "DP rank 0: busy\nDP rank 1: busy" {
		t.Errorf("when none says: %v", err)
	}
}

func TestSessionsStay(t *testing.T) {
	c, fakes := newBench(t, 3, RoundRobin)
	homes := map[int]bool{}
	for i := range 30 {
		id := fmt.Sprint("session-", i)
		if err := c.OpenSession(t.Context(), request.Session{ID: id}); err != nil {
			t.Fatal(err)
		}
		home := c.home(id)
		homes[home] = true
		for turn := range 3 {
			r := ask(fmt.Sprint(id, "/", turn), 1)
			r.Session = &request.Turn{SessionID: id}
			if got := submit(t, c, r).DPRank(); got != home {
				t.Errorf("turn %d of %s is on DP rank %d, want %d", turn, id, got, home)
			}
			fakes[home].say(r.RID, 1, true)
		}
		elsewhere := ask("elsewhere", 1)
		elsewhere.DPRank, elsewhere.Session = new((home+1)%3), &request.Turn{SessionID: id}
		if o, err := submit(t, c, elsewhere).Recv(t.Context()); err != nil || o.Finish.Outcome != request.OutcomeInvalid {
			t.Errorf("a turn on another DP rank gives %+v, %v", o.Finish, err)
		}
		if err := c.CloseSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		want := []string{"open " + id, "submit " + id + "/0", "submit " + id + "/1", "submit " + id + "/2", "close " + id}
		if diff := cmp.Diff(want, fakes[home].asked()); diff != "" {
			t.Errorf("DP rank %d (-want +got):\n%s", home, diff)
		}
	}
	if len(homes) != 3 {
		t.Errorf("30 sessions live on %d of 3 DP ranks", len(homes))
	}
}

func TestDeathOfOneEndsAll(t *testing.T) {
	c, fakes := newBench(t, 3, RoundRobin)
	mine, other := submit(t, c, ask("a", 1)), submit(t, c, ask("b", 1))
	fakes[0].end(errors.New("rank 0 (pid 1) ended: signal: killed"))
	<-c.Done()
	const want = "DP rank 0: rank 0 (pid 1) ended: signal: killed"
	if err := c.Err(); err == nil || err.Error() != want {
		t.Errorf("Err is %v, want %q", err, want)
	}
	if _, err := mine.Recv(t.Context()); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("a request of the dead DP rank gets %v", err)
	}
	if _, err := other.Recv(t.Context()); err == nil || err.Error() != want {
		t.Errorf("a request of another DP rank gets %v, want %q", err, want)
	}
	for i, f := range fakes[1:] {
		if !f.closed {
			t.Errorf("DP rank %d was not closed", i+1)
		}
	}
	if _, err := c.Submit(t.Context(), ask("c", 1)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a request after the end gets %v, want %q", err, want)
	}
}

func TestCloseIsNoError(t *testing.T) {
	c, fakes := newBench(t, 2, RoundRobin)
	s := submit(t, c, ask("a", 1))
	if err := c.Close(context.Background()); err != nil || c.Err() != nil {
		t.Errorf("Close gives %v, Err %v", err, c.Err())
	}
	if _, err := s.Recv(t.Context()); !errors.Is(err, errGone) {
		t.Errorf("the stream gives %v, want the rank's own error", err)
	}
	if !fakes[0].closed || !fakes[1].closed {
		t.Error("a DP rank was not closed")
	}
	if _, err := c.Submit(t.Context(), ask("b", 1)); !errors.Is(err, rank.ErrClosed) {
		t.Errorf("a request after Close gets %v", err)
	}
}

func TestRanksThatDontBelongTogether(t *testing.T) {
	for _, f := range []struct {
		name   string
		change func(*rank.Info)
		want   string
	}{
		{"weights", func(i *rank.Info) { i.ModelID = "other" }, "the weights (model id) of DP rank 0 is m, that of DP rank 1 is other"},
		{"pages", func(i *rank.Info) { i.PageSize = 8 }, "the page size of DP rank 0 is 4, that of DP rank 1 is 8"},
		{"end tokens", func(i *rank.Info) { i.EOSTokenIDs = []int32{3} }, "the end tokens of DP rank 0 is []"},
	} {
		t.Run(f.name, func(t *testing.T) {
			a, b := newFakeRank(), newFakeRank()
			f.change(&b.info)
			if _, err := New([]rank.Client{a, b}, RoundRobin, Options{}); err == nil || !strings.Contains(err.Error(), f.want) {
				t.Errorf("New gives %v, want %q", err, f.want)
			}
		})
	}
	a, b := newFakeRank(), newFakeRank()
	b.info.MaxTotalNumTokens, b.info.PID = 64, 2
	a.info.Ranks, b.info.Ranks = []rank.RankProcess{{PID: 1}}, []rank.RankProcess{{DPRank: 1, PID: 2}}
	c, err := New([]rank.Client{a, b}, RoundRobin, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := a.info
	want.MaxTotalNumTokens = 64
	want.Ranks = []rank.RankProcess{{PID: 1}, {DPRank: 1, PID: 2}}
	if diff := cmp.Diff(want, c.Info()); diff != "" {
		t.Errorf("info: the least capacity counts (-want +got):\n%s", diff)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
