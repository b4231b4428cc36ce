package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// scheduled is what a scheduler's timeline says that began so many ms after the request.
func scheduled(ms int64) *ledger.Record {
	const m = int64(time.Millisecond)
	return &ledger.Record{
		Form: ledger.Unified, Stage: ledger.StageDone, StartWallNanos: 1_700_000_000*int64(time.Second) + ms*m, Nanos: 9 * m, QueueNanos: 2 * m,
		Visits: []ledger.Visit{
			{Stage: ledger.StageRequestProcess, Nanos: m / 2}, {Stage: ledger.StagePrefillWaiting, Start: m / 2, Nanos: 2 * m},
			{Stage: ledger.StagePrefillForward, Start: 5 * m / 2, Nanos: 2 * m}, {Stage: ledger.StageDecodeWaiting, Start: 9 * m / 2},
			{Stage: ledger.StageDecodeForward, Start: 9 * m / 2, Nanos: 9 * m / 2},
		},
		Spent: []ledger.Spent{
			{Stage: ledger.StageRequestProcess, Count: 1, Nanos: m / 2}, {Stage: ledger.StagePrefillWaiting, Count: 1, Nanos: 2 * m},
			{Stage: ledger.StagePrefillForward, Count: 1, Nanos: 2 * m}, {Stage: ledger.StageDecodeWaiting, Count: 1},
			{Stage: ledger.StageDecodeForward, Count: 1, Nanos: 9 * m / 2}, {Stage: ledger.StageChunkedPrefill, Count: 2, Nanos: 2 * m},
			{Stage: ledger.StageDecodeLoop, Count: 4, Nanos: 4 * m},
		},
		FirstWaitNanos: new(2 * m), PrefillEnd: new(9 * m / 2), Transfer: &ledger.Transfer{OwnBytes: 1 << 20, Nanos: m},
	}
}

// timedAnswer plays an answer that takes known times.
func timedAnswer(b *bench) {
	b.rank.arriving = func(string) { b.clock.Advance(2 * time.Millisecond) }
	b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
		out := request.Output{RID: r.RID, PromptTokens: len(r.PromptIDs), CachedTokens: 1, Retractions: 1, TokenIDs: []int32{5}, CompletionTokens: 1}
		taken := b.outputs.wait()
		s.Put(out)
		<-taken
		b.clock.Advance(8*time.Millisecond + 1500)
		f := length()
		f.Timeline, f.ComputedTokens, f.ReprocessedTokens = scheduled(2), len(r.PromptIDs)-1, 7
		out.CompletionTokens, out.Finish = 2, &f
		s.Put(out)
	}
}

func TestDebugWaterfall(t *testing.T) {
	b := newBench(t, nil)
	timedAnswer(b)
	if got := b.call(http.MethodPost, "/generate", `{"text":"a secret prompt","rid":"a"}`); got.Code != http.StatusOK {
		t.Fatal(got.Body)
	}
	want := `a  length  received 2023-11-14T22:13:20Z
  13 prompt tokens: 1 cached, 12 computed; 2 answer tokens; 1 retractions, 7 tokens computed again
  end to end 10.002 ms, first output 2.000 ms
  api_server: 10.002 ms
    tokenize                          0.000 +        0.000 ms |                                                |
    api_server_dispatch               0.000 +        2.000 ms |#########                                       |
    await_output                      2.000 +        0.000 ms |                                                |
    stream_output                     2.000 +        8.002 ms |         #######################################|
    output_batch                    1 laps, 8.002 ms in all, 8.002 ms each
  unified: 9.000 ms
    request_process                   2.000 +        0.500 ms |         ##                                     |
    prefill_waiting                   2.500 +        2.000 ms |           ##########                           |
    prefill_forward                   4.500 +        2.000 ms |                     ##########                 |
    decode_waiting                    6.500 +        0.000 ms |                                                |
    decode_forward                    6.500 +        4.500 ms |                               #################|
    chunked_prefill                 2 laps, 2.000 ms in all, 1.000 ms each
    decode_loop                     4 laps, 4.000 ms in all, 1.000 ms each
    queue_duration=2.00ms, forward_duration=6.50ms, entry_time=1700000000.002
`
	got := b.call(http.MethodGet, "/debug/requests/a?format=text", "")
	if diff := cmp.Diff(want, got.Body.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	all := b.call(http.MethodGet, "/debug/requests?format=text", "")
	if diff := cmp.Diff(want, all.Body.String()); diff != "" {
		t.Errorf("the list (-want +got):\n%s", diff)
	}

	none := b.call(http.MethodGet, "/debug/requests?room=5&format=text", "")
	if diff := cmp.Diff("no request that is remembered is as the query asks\n", none.Body.String()); none.Code != http.StatusOK || diff != "" {
		t.Errorf("none is %d (-want +got):\n%s", none.Code, diff)
	}

	one := b.call(http.MethodGet, "/debug/requests/a", "")
	var v requestView
	if err := json.Unmarshal(one.Body.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if v.E2ENanos != 10_001_500 || *v.TTFTNanos != 2_000_000 || *v.QueueNanos != 2_000_000 || *v.Outcome != request.OutcomeLength || v.InFlight || v.Stage != "done" {
		t.Errorf("request is %+v", v)
	}
	var sum int64
	for _, s := range v.API.Stages {
		sum += s.Nanos
	}
	if sum != v.E2ENanos || v.Rank.Durations["forward_duration"] != 6_500_000 || v.Rank.Transfer.Bytes != 1<<20 {
		t.Errorf("the stages sum to %d; rank %+v", sum, v.Rank)
	}
	if strings.Contains(one.Body.String(), "secret") {
		t.Error("the prompt is shown")
	}
}

// A rank of another release may tell of stages that this one does not know.
func TestDebugUnknownStage(t *testing.T) {
	b := newBench(t, nil)
	b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
		f := length()
		f.Timeline = scheduled(0)
		f.Timeline.Visits[1].Stage, f.Timeline.Spent[1].Stage = ledger.StageNone, ledger.StageNone
		s.Put(request.Output{RID: r.RID, PromptTokens: 1, CompletionTokens: 1, TokenIDs: []int32{5}, Finish: &f})
	}
	b.call(http.MethodPost, "/generate", `{"text":"x","rid":"a"}`)
	for _, format := range []string{"json", "text"} {
		if got := b.call(http.MethodGet, "/debug/requests/a?format="+format, ""); got.Code != http.StatusOK || !strings.Contains(got.Body.String(), "none") {
			t.Errorf("%s: %d %s", format, got.Code, got.Body)
		}
	}
}

func TestDebugRing(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.DebugRequests = 2 })
	wait := map[string]time.Duration{"a": 5, "b": 30, "c": 20}
	b.rank.arriving = func(rid string) { b.clock.Advance(wait[rid] * time.Millisecond) }
	for _, rid := range []string{"a", "b", "c"} {
		b.call(http.MethodPost, "/generate", `{"text":"x","rid":"`+rid+`"}`)
	}
	b.call(http.MethodPost, "/generate", `{"text":"x","rid":"d","log_metrics":false}`)
	for _, tc := range []struct{ name, reason, query, want string }{
		{"all", "the newest first, the oldest has gone, the uncounted never came", "", "c b"},
		{"slowest", "by the time they took", "?slowest=1", "b"},
		{"slowest, more than there are", "", "?slowest=9", "b c"},
		{"limit", "", "?limit=1", "c"},
		{"outcome", "", "?outcome=length", "c b"},
		{"another outcome", "", "?outcome=stop", ""},
		{"nothing lives", "", "?outcome=in_flight", ""},
		{"since", "a duration back from now", "?since=45ms", "c"},
		{"since a time", "", "?since=2023-11-14T22:13:20.035Z", "c"},
		{"since the far future", "more nanoseconds than there are", "?since=9999-12-31T00:00:00Z", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := b.call(http.MethodGet, "/debug/requests"+tc.query, "")
			var list requestList
			if err := json.Unmarshal(got.Body.Bytes(), &list); err != nil {
				t.Fatalf("%s: %s", err, got.Body)
			}
			var rids []string
			for _, r := range list.Requests {
				rids = append(rids, r.RID)
			}
			if s := strings.Join(rids, " "); s != tc.want || list.Kept != 2 || list.Forgotten != 1 || list.Capacity != 2 {
				t.Errorf("%s: %q, want %q; %+v", tc.reason, s, tc.want, list)
			}
		})
	}
	for _, tc := range []struct{ path, want string }{
		{"/debug/requests/a", "request a is not remembered: it never came here, it is a health check, or it is one of the 1 that have gone from the ring, which has 2 (--debug-requests 2)"},
		{"/debug/requests/c?format=xml", `format must be json or text, not \"xml\"`},
		{"/debug/requests?slowest=0", `slowest must be an integer from 1 to 10000, not \"0\"`},
		{"/debug/requests?limit=x", `limit must be an integer from 1 to 10000, not \"x\"`},
		{"/debug/requests?limit=1;slowest=2", `the query of the URL: \"limit=1;slowest=2\" has a semicolon`},
		{"/debug/requests/c?format=%", `the query of the URL: \"format=%\" can't be read`},
		{"/debug/requests?outcome=nonsense", `outcome must be in_flight or one of [stop length`},
		{"/debug/requests?since=-5s", `since must be a duration back from now, such as 5m, or a time in RFC 3339, not \"-5s\"`},
	} {
		if got := b.call(http.MethodGet, tc.path, ""); !strings.Contains(got.Body.String(), tc.want) || got.Code == http.StatusOK {
			t.Errorf("%s answers %d %s, want %q", tc.path, got.Code, got.Body, tc.want)
		}
	}
}

func TestDebugInFlight(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.AdminAPIKey = "k" })
	b.rank.script = b.waitForAbort("one")
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.call(http.MethodPost, "/generate", `{"text":"x","rid":"live"}`)
	}()
	var v requestView
	eventually(t, "the request is seen with a token", func() bool {
		got := b.call(http.MethodGet, "/debug/requests/live", "", "Authorization", "Bearer k")
		if got.Code == http.StatusOK {
			if err := json.Unmarshal(got.Body.Bytes(), &v); err != nil {
				t.Fatal(err)
			}
		}
		return v.CompletionTokens > 0
	})
	if !v.InFlight || v.Stage != "stream_output" || v.Outcome != nil || v.Rank != nil || v.RankUnknown != "" {
		t.Errorf("request is %+v", v)
	}
	checkAtRank(t, b)
	if got := b.call(http.MethodGet, "/debug/requests?outcome=in_flight&format=text", "", "Authorization", "Bearer k"); !strings.HasPrefix(got.Body.String(), "live  in flight, stream_output") {
		t.Errorf("as text: %s", got.Body)
	}
	if got := b.call(http.MethodGet, "/debug/requests", ""); got.Code != http.StatusUnauthorized {
		t.Errorf("without the key: %d", got.Code)
	}
	_ = b.rank.AbortAll("")
	<-done
	got := b.call(http.MethodGet, "/debug/requests/live", "", "Authorization", "Bearer k")
	if !strings.Contains(got.Body.String(), `"outcome":"aborted_operator"`) {
		t.Errorf("at the end: %s", got.Body)
	}
}

// checkAtRank: what the rank says of a request that lives is shown, and that it says nothing.
func checkAtRank(t *testing.T, b *bench) {
	t.Helper()
	for _, tc := range []struct {
		name      string
		timelines map[string]*ledger.Record
		err       error
		stage     string // of the scheduler
		unknown   string
		text      string
	}{
		{"waits", map[string]*ledger.Record{"live": {
			Form: ledger.Decode, Stage: ledger.StageDecodeTransferred, Nanos: 5, QueueNanos: 2,
			Visits:   []ledger.Visit{{Stage: ledger.StageDecodePrepare, Nanos: 3}, {Stage: ledger.StageDecodeTransferred, Start: 3, Nanos: 2}},
			Transfer: &ledger.Transfer{OwnBytes: 7},
		}}, nil, "decode_transferred", "", "live  in flight, stream_output, decode_transferred  received"},
		{"not taken yet", nil, nil, "", "", "live  in flight, stream_output  received"},
		{"silent", nil, errors.New("ask the rank for timelines: context deadline exceeded"), "", "ask the rank for timelines: context deadline exceeded",
			"  scheduler: ask the rank for timelines: context deadline exceeded\n"},
	} {
		b.rank.timelines, b.rank.unanswered = tc.timelines, tc.err
		var list requestList
		var one requestView
		for path, to := range map[string]any{"/debug/requests": &list, "/debug/requests/live": &one} {
			if err := json.Unmarshal(b.call(http.MethodGet, path, "", "Authorization", "Bearer k").Body.Bytes(), to); err != nil {
				t.Fatal(err)
			}
		}
		for _, v := range append(list.Requests, one) {
			stage := ""
			if v.Rank != nil {
				stage = v.Rank.Stage
				if *v.QueueNanos != 2 || v.Rank.Transfer.Bytes != 7 || len(v.Rank.Visits) != 2 {
					t.Errorf("%s: %+v", tc.name, v.Rank)
				}
			}
			if stage != tc.stage || v.RankUnknown != tc.unknown || v.Stage != "stream_output" {
				t.Errorf("%s: stage %q, %q; want %q, %q", tc.name, stage, v.RankUnknown, tc.stage, tc.unknown)
			}
		}
		if got := b.call(http.MethodGet, "/debug/requests?format=text", "", "Authorization", "Bearer k").Body.String(); !strings.Contains(got, tc.text) {
			t.Errorf("%s: as text:\n%s", tc.name, got)
		}
	}
	b.rank.timelines, b.rank.unanswered = nil, nil
}

func TestDebugOff(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.DebugRequests = 0 })
	b.call(http.MethodPost, "/generate", `{"text":"x","rid":"a"}`)
	for _, path := range []string{"/debug/requests", "/debug/requests/a"} {
		if got := b.call(http.MethodGet, path, ""); got.Code != http.StatusNotFound || !strings.Contains(got.Body.String(), "start the engine with --debug-requests") {
			t.Errorf("%s answers %d %s", path, got.Code, got.Body)
		}
	}
}

// The ring keeps its bounds and finds what it has, whatever comes and goes, from many goroutines.
func TestRecentRequestsBounds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	l := newRecentRequests(16)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			for i := range 500 {
				spec := sequenceSpec{rid: fmt.Sprint(g, "-", i%7), timeline: *ledger.NewTimeline(ledgertest.New(), ledger.APIServer)}
				x := l.begin(&spec)
				x.moved(&spec.timeline)
				x.generated(i)
				if v := x.glance().view(); !v.InFlight {
					t.Errorf("%s has ended before its end", v.RID)
				}
				e := ending{outcome: request.OutcomeStop, api: spec.timeline.Record(), message: strings.Repeat("m", rng.IntN(40<<10))}
				l.end(x, e)
				l.mu.Lock()
				bytes, kept := 0, 0
				for _, x := range l.ended {
					if x != nil {
						bytes, kept = bytes+x.size, kept+1
					}
				}
				if bytes != l.bytes || bytes > l.capacity*recentBytes || kept > l.capacity || len(l.newest) > kept+len(l.live) {
					t.Errorf("%d bytes of %d counted, %d kept, %d by rid", bytes, l.bytes, kept, len(l.newest))
				}
				l.mu.Unlock()
				for _, x := range l.all() {
					_ = x.glance().view()
				}
			}
		})
	}
	wg.Wait()
	if live, ended, gone := l.counts(); live != 0 || int64(ended)+gone != 2000 {
		t.Errorf("%d live, %d ended and %d gone of 2000", live, ended, gone)
	}
}

// remembering gives a ring with so many ended sequences, each of which took longer than the one before.
func remembering(n int) *recentRequests {
	l, clock := newRecentRequests(n), ledgertest.New()
	for i := range n {
		spec := sequenceSpec{rid: fmt.Sprint(i), timeline: *ledger.NewTimeline(clock, ledger.APIServer)}
		x := l.begin(&spec)
		clock.Advance(time.Duration(i+1) * time.Millisecond)
		spec.timeline.Move(ledger.StageDone)
		l.end(x, ending{outcome: request.OutcomeStop, api: spec.timeline.Record(), rank: scheduled(0)})
	}
	return l
}

// TestSlowestIsCutBeforeItIsShown: to find the slowest of many costs nothing for each that is not shown.
func TestSlowestIsCutBeforeItIsShown(t *testing.T) {
	const kept = 1000
	list := remembering(kept).all()
	var got []glimpse
	q := debugQuery{slowest: 2, limit: 2}
	if n := testing.AllocsPerRun(10, func() { got = q.choose(list) }); n > kept/10 {
		t.Errorf("%v allocations to choose 2 of %d", n, kept)
	}
	if len(got) != 2 || got[0].view().RID != "999" || got[1].view().RID != "998" {
		t.Errorf("the slowest are %v", got)
	}
}

func BenchmarkSlowest(b *testing.B) {
	list := remembering(1024).all()
	q := debugQuery{slowest: 10, limit: 10}
	b.ReportAllocs()
	for b.Loop() {
		for _, g := range q.choose(list) {
			_ = g.view()
		}
	}
}

// BenchmarkRecent is all that remembering costs a request: the beginning, three moves, a hundred outputs and the end.
func BenchmarkRecent(b *testing.B) {
	l := newRecentRequests(1024)
	spec := sequenceSpec{rid: "a", timeline: *ledger.NewTimeline(ledgertest.New(), ledger.APIServer)}
	e := ending{outcome: request.OutcomeStop, api: spec.timeline.Record(), rank: scheduled(0)}
	b.ReportAllocs()
	for b.Loop() {
		x := l.begin(&spec)
		for range 3 {
			x.moved(&spec.timeline)
		}
		for i := range 100 {
			x.generated(i)
		}
		l.end(x, e)
	}
}

// What did not get to the rank is remembered in the outcome that the client got, with a timeline that has ended.
func TestDebugOfARequestThatTheRankRefused(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.AdminAPIKey = "k" })
	b.rank.refusal = rank.ErrTooLarge
	if got := b.call(http.MethodPost, "/generate", `{"text":"x","rid":"big"}`); got.Code != http.StatusRequestEntityTooLarge {
		t.Fatalf("the client gets %d %s", got.Code, got.Body)
	}
	got := b.call(http.MethodGet, "/debug/requests/big", "", "Authorization", "Bearer k")
	var v requestView
	if err := json.Unmarshal(got.Body.Bytes(), &v); err != nil {
		t.Fatalf("%v: %s", err, got.Body)
	}
	if v.InFlight || v.Stage != "done" || v.Outcome == nil || *v.Outcome != request.OutcomeTooLong {
		t.Errorf("the record is %s", got.Body)
	}
}

// TestQueriesThatCannotBeRead: a parameter that net/http would leave out is refused by whoever reads parameters.
func TestQueriesThatCannotBeRead(t *testing.T) {
	b := newBench(t, nil)
	for _, tc := range []struct{ method, path string }{
		{http.MethodGet, "/debug/requests"}, {http.MethodGet, "/debug/requests/a"}, {http.MethodGet, "/v1/loads"},
		{http.MethodPost, "/flush_cache"}, {http.MethodPost, "/set_trace_level"},
	} {
		for _, query := range []string{"level=1;timeout=2", "level=1&timeout=%zz"} {
			got := b.call(tc.method, tc.path+"?"+query, "")
			if got.Code != http.StatusBadRequest || !strings.Contains(got.Body.String(), "the query of the URL: ") {
				t.Errorf("%s?%s answers %d %s", tc.path, query, got.Code, got.Body)
			}
		}
	}
}
