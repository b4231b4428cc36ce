package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
)

// op is a step of a scenario: the clock goes on by Ms, then the timeline moves, or ends a lap when Lap is set.
type op struct {
	Ms  int
	To  Stage
	Lap bool
}

// facts is all that a timeline says at the end, in milliseconds; -1 is absent.
type facts struct {
	Samples                   []string
	Spent                     map[string]int
	Queue, FirstWait          int
	ForwardEntry, PrefillEnd  int
	FirstToken, EndToEnd      int
	TTFT, Decode, TPOTOf11Tok int
}

func TestTimelines(t *testing.T) {
	move := func(ms int, to Stage) op { return op{Ms: ms, To: to} }
	lap := func(ms int, of Stage) op { return op{Ms: ms, To: of, Lap: true} }
	cases := []struct {
		name, reason string
		form         Form
		ops          []op
		want         facts
	}{
		{
			name: "unified", reason: "each stage's length differs, so that a swap shows",
			form: Unified,
			ops: []op{
				move(1, StagePrefillWaiting), move(2, StagePrefillForward), lap(4, StageChunkedPrefill), lap(8, StageChunkedPrefill),
				move(16, StageDecodeWaiting), move(32, StageDecodeForward), lap(64, StageDecodeLoop), lap(128, StageDecodeLoop), move(256, StageDone),
			},
			want: facts{
				Samples:   []string{"request_process 1", "chunked_prefill 4", "chunked_prefill 8", "prefill_forward 28"},
				Spent:     map[string]int{"request_process": 1, "prefill_waiting": 2, "prefill_forward": 28, "chunked_prefill": 12, "decode_waiting": 32, "decode_forward": 448, "decode_loop": 192},
				FirstWait: 2, Queue: 2, ForwardEntry: 3, PrefillEnd: 31, FirstToken: 31, TTFT: 31, EndToEnd: 511, Decode: 480, TPOTOf11Tok: 48,
			},
		},
		{
			name: "unified, retracted twice", reason: "queue time adds up, the first wait and the first prefill stay",
			form: Unified,
			ops: []op{
				move(1, StagePrefillWaiting), move(10, StagePrefillForward), move(100, StageDecodeForward), move(1000, StagePrefillWaiting),
				move(20, StagePrefillForward), move(200, StagePrefillWaiting), move(30, StagePrefillForward), move(300, StageDecodeForward), move(3000, StageDone),
			},
			want: facts{
				Samples:   []string{"request_process 1", "prefill_forward 100"},
				Spent:     map[string]int{"request_process": 1, "prefill_waiting": 60, "prefill_forward": 600, "decode_forward": 4000},
				FirstWait: 10, Queue: 60, ForwardEntry: 11, PrefillEnd: 111, FirstToken: 111, TTFT: 111, EndToEnd: 4661, Decode: 4550, TPOTOf11Tok: 455,
			},
		},
		{
			name: "unified, one token", reason: "the request ends at prefill's end: that is a sample, but no decode time exists",
			form: Unified,
			ops:  []op{move(1, StagePrefillWaiting), move(2, StagePrefillForward), move(4, StageDecodeWaiting), move(0, StageDone)},
			want: facts{
				Samples:   []string{"request_process 1", "prefill_forward 4"},
				Spent:     map[string]int{"request_process": 1, "prefill_waiting": 2, "prefill_forward": 4, "decode_waiting": 0},
				FirstWait: 2, Queue: 2, ForwardEntry: 3, PrefillEnd: 7, FirstToken: 7, TTFT: 7, EndToEnd: 7, Decode: -1, TPOTOf11Tok: -1,
			},
		},
		{
			name: "unified, aborted in prefill", reason: "a prefill that was cut short has no end and is no sample",
			form: Unified,
			ops:  []op{move(1, StagePrefillWaiting), move(2, StagePrefillForward), move(4, StageDone)},
			want: facts{
				Samples:   []string{"request_process 1"},
				Spent:     map[string]int{"request_process": 1, "prefill_waiting": 2, "prefill_forward": 4},
				FirstWait: 2, Queue: 2, ForwardEntry: 3, PrefillEnd: -1, FirstToken: -1, TTFT: -1, EndToEnd: 7, Decode: -1, TPOTOf11Tok: -1,
			},
		},
		{
			name: "unified, aborted while waiting", reason: "the wait counts in the ledger, but no forward pass made it queue time; nothing later has a value",
			form: Unified,
			ops:  []op{move(1, StagePrefillWaiting), move(2, StageDone)},
			want: facts{
				Samples:   []string{"request_process 1"},
				Spent:     map[string]int{"request_process": 1, "prefill_waiting": 2},
				FirstWait: -1, Queue: 0, ForwardEntry: -1, PrefillEnd: -1, FirstToken: -1, TTFT: -1, EndToEnd: 3, Decode: -1, TPOTOf11Tok: -1,
			},
		},
		{
			name: "prefill", reason: "the transfer's end is the request's end and a sample",
			form: Prefill,
			ops: []op{
				move(1, StagePrefillBootstrap), move(2, StagePrefillWaiting), move(4, StagePrefillForward), move(8, StagePrefillTransferKVCache), move(16, StageDone),
			},
			want: facts{
				Samples:   []string{"prefill_bootstrap 2", "prefill_forward 8", "prefill_transfer_kv_cache 16"},
				Spent:     map[string]int{"prefill_prepare": 1, "prefill_bootstrap": 2, "prefill_waiting": 4, "prefill_forward": 8, "prefill_transfer_kv_cache": 16},
				FirstWait: 4, Queue: 4, ForwardEntry: 7, PrefillEnd: 15, FirstToken: 15, TTFT: 15, EndToEnd: 31, Decode: -1, TPOTOf11Tok: -1,
			},
		},
		{
			name: "decode, retracted", reason: "waiting is a sample once, the queue adds up, no prefill here",
			form: Decode,
			ops: []op{
				move(1, StageDecodeBootstrap), move(2, StageDecodeTransferred), move(4, StageDecodeWaiting), move(8, StageDecodeForward),
				lap(16, StageFakeOutput), lap(32, StageDecodeLoop), move(64, StageDecodeWaiting), move(128, StageDecodeForward), move(256, StageDone),
			},
			want: facts{
				Samples:   []string{"decode_prepare 1", "decode_bootstrap 2", "decode_transferred 4", "decode_waiting 8", "fake_output 16"},
				Spent:     map[string]int{"decode_prepare": 1, "decode_bootstrap": 2, "decode_transferred": 4, "decode_waiting": 136, "decode_forward": 368, "fake_output": 16, "decode_loop": 32},
				FirstWait: 8, Queue: 136, ForwardEntry: 15, PrefillEnd: -1, FirstToken: -1, TTFT: -1, EndToEnd: 511, Decode: -1, TPOTOf11Tok: -1,
			},
		},
		{
			name: "API process", reason: "TTFT is the first output batch, laps are the intervals between batches",
			form: APIServer,
			ops: []op{
				move(1, StageAPIServerDispatch), move(2, StageAwaitOutput), move(4, StageStreamOutput), lap(8, StageOutputBatch), lap(16, StageOutputBatch), move(36, StageDone),
			},
			want: facts{
				Spent:     map[string]int{"tokenize": 1, "api_server_dispatch": 2, "await_output": 4, "stream_output": 60, "output_batch": 24},
				FirstWait: -1, Queue: 0, ForwardEntry: -1, PrefillEnd: -1, FirstToken: 7, TTFT: 7, EndToEnd: 67, Decode: 60, TPOTOf11Tok: 6,
			},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			clock := ledgertest.New()
			tl := NewTimeline(clock, c.form)
			var got facts
			for _, o := range c.ops {
				clock.Advance(time.Duration(o.Ms) * time.Millisecond)
				step := tl.Move
				if o.Lap {
					step = tl.Lap
				}
				if s := step(o.To); s.Observed {
					got.Samples = append(got.Samples, fmt.Sprintf("%s %d", s.Stage, s.Nanos()/1e6))
				}
			}
			ms := func(nanos int64, ok bool) int {
				if !ok {
					return -1
				}
				return int(nanos / 1e6)
			}
			at := func(i Instant, ok bool) int { return ms(i.Sub(tl.Started()), ok) }
			got.Spent = map[string]int{}
			for _, info := range Stages() {
				if tl.Visits(info.Stage) > 0 {
					got.Spent[info.Name] = int(tl.Duration(info.Stage) / 1e6)
				}
			}
			got.Queue, got.FirstWait = int(tl.Queue()/1e6), ms(tl.FirstWait())
			got.ForwardEntry, got.PrefillEnd, got.FirstToken = at(tl.ForwardEntry()), at(tl.PrefillEnd()), at(tl.FirstToken())
			got.EndToEnd, got.TTFT, got.Decode = ms(tl.EndToEnd()), ms(tl.TimeToFirstToken()), ms(tl.DecodeTime())
			tpot, ok := tl.TimePerOutputToken(11)
			got.TPOTOf11Tok = ms(int64(tpot), ok)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if _, ok := tl.TimePerOutputToken(1); ok {
				t.Error("one token has a time per output token")
			}
		})
	}
}

// Whatever path a request takes, its stages sum to its end-to-end time exactly, the waits that led on to the queue time.
func TestStagesSumToEndToEnd(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 5000 {
		clock := ledgertest.New()
		form := []Form{APIServer, DPController, Unified, Prefill, Decode}[rng.IntN(5)]
		tl := NewTimeline(clock, form)
		var sum, waits int64
		for tl.Stage() != StageDone {
			clock.Advance(time.Duration(rng.Int64N(1 << 40)))
			if rng.IntN(40) == 0 {
				clock.Advance(-time.Duration(rng.Int64N(1 << 41))) // a faulty clock may not break the sums
			}
			to := StageNone + 1 + Stage(rng.IntN(int(StageChunkedPrefill-1)))
			before := *tl
			s, ok := try(func() Slice { return tl.Move(to) })
			if !ok {
				if diff := cmp.Diff(before, *tl, cmp.Comparer(func(a, b Timeline) bool { return a == b })); diff != "" {
					t.Fatal("a refused move changed the timeline")
				}
				continue
			}
			if s.Nanos() < 0 {
				t.Fatalf("%s took %d ns", s.Stage, s.Nanos())
			}
			sum += s.Nanos()
			if to != StageDone && (s.Stage == StagePrefillWaiting || s.Stage == StageDecodeWaiting && form == Decode) {
				waits += s.Nanos()
			}
			for _, lap := range []Stage{StageChunkedPrefill, StageDecodeLoop, StageOutputBatch, StageFakeOutput} {
				clock.Advance(time.Duration(rng.Int64N(1 << 30)))
				if l, ok := try(func() Slice { return tl.Lap(lap) }); ok && l.Nanos() < 0 {
					t.Fatalf("lap %s took %d ns", lap, l.Nanos())
				}
			}
		}
		var spent int64
		for _, info := range Stages() {
			if info.Parent == StageNone {
				spent += tl.Duration(info.Stage)
			} else if tl.Duration(info.Stage) > tl.Duration(info.Parent) {
				t.Fatalf("laps %s are longer than %s", info.Stage, info.Parent)
			}
		}
		e2e, ok := tl.EndToEnd()
		if !ok || spent != e2e || sum != e2e {
			t.Fatalf("%s: stages sum to %d, slices to %d, end to end is %d", form, spent, sum, e2e)
		}
		first, _ := tl.FirstWait()
		if tl.Queue() != waits || first < 0 || first > waits {
			t.Fatalf("%s: queue %d, sum of waits %d, first %d", form, tl.Queue(), waits, first)
		}
	}
}

// try gives ok false when f panics.
func try(f func() Slice) (s Slice, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return f(), true
}

func TestIllegalMovesNameBothStages(t *testing.T) {
	cases := []struct {
		name, reason, want string
		do                 func(*Timeline)
	}{
		{"move", "a stage can't be skipped", "ledger: unified timeline moves from request_process to prefill_forward, which is not a transition",
			func(tl *Timeline) { tl.Move(StagePrefillForward) }},
		{"foreign stage", "a unified engine has no bootstrap queue", "ledger: unified timeline moves from request_process to prefill_bootstrap, which is not a transition",
			func(tl *Timeline) { tl.Move(StagePrefillBootstrap) }},
		{"after the end", "a request is finished once", "ledger: unified timeline moves from done to done, which is not a transition",
			func(tl *Timeline) { tl.Move(StageDone); tl.Move(StageDone) }},
		{"lap as a stage", "laps are not stages of their own", "ledger: unified timeline moves from request_process to decode_loop, which is not a transition",
			func(tl *Timeline) { tl.Move(StageDecodeLoop) }},
		{"lap elsewhere", "a chunk is a part of prefill_forward only", "ledger: unified timeline ends lap chunked_prefill in stage request_process, which has no such laps",
			func(tl *Timeline) { tl.Lap(StageChunkedPrefill) }},
		{"not started", "the zero value is no timeline", "ledger: api_server timeline moves from none to done, which is not a transition",
			func(tl *Timeline) { *tl = Timeline{}; tl.Move(StageDone) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tl := NewTimeline(ledgertest.New(), Unified)
			defer func() {
				if diff := cmp.Diff(any(c.want), recover()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c.reason, diff)
				}
			}()
			c.do(tl)
		})
	}
}

func TestMoveReadsTheClockOnceAndAllocatesNothing(t *testing.T) {
	clock := ledgertest.New()
	var tl Timeline
	path := []Stage{StagePrefillWaiting, StagePrefillForward, StageDecodeWaiting, StageDecodeForward, StageDone}
	allocs := testing.AllocsPerRun(100, func() {
		tl.Start(clock, Unified)
		for _, s := range path {
			tl.Move(s)
			if s == StageDecodeForward {
				tl.Lap(StageDecodeLoop)
			}
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	before := clock.Reads()
	tl.Start(clock, Unified)
	tl.Move(StagePrefillWaiting)
	if got := clock.Reads() - before; got != 2 {
		t.Errorf("start and one move read the clock %d times", got)
	}
}

func BenchmarkMove(b *testing.B) {
	clock := System()
	tl := NewTimeline(clock, Unified)
	tl.Move(StagePrefillWaiting)
	b.ReportAllocs()
	for b.Loop() {
		tl.Move(StagePrefillForward)
		tl.Move(StagePrefillWaiting)
	}
}

func TestPassReadsTheClockOnce(t *testing.T) {
	clock := ledgertest.New()
	tl := NewTimeline(clock, APIServer)
	tl.Move(StageAPIServerDispatch)
	tl.Move(StageAwaitOutput)
	clock.SetStep(time.Second)
	before := clock.Reads()
	ended, passed := tl.Pass(StageStreamOutput, StageDone)
	if clock.Reads() != before+1 {
		t.Errorf("%d readings", clock.Reads()-before)
	}
	ttft, first := tl.TimeToFirstToken()
	e2e, done := tl.EndToEnd()
	if !first || !done || ttft != e2e || ended.Stage != StageAwaitOutput || passed.Stage != StageStreamOutput || passed.Nanos() != 0 {
		t.Errorf("first token after %d, end after %d; %+v %+v", ttft, e2e, ended, passed)
	}
	if _, ok := tl.TimePerOutputToken(50); ok {
		t.Error("what came all at once has a time per output token")
	}
}

func TestBackdate(t *testing.T) {
	clock := ledgertest.New()
	clock.Advance(10)
	tl := NewTimeline(clock, APIServer)
	tl.Backdate(12)
	if tl.Started() != 10 {
		t.Errorf("a later instant moves the start to %d", tl.Started())
	}
	tl.Backdate(3)
	clock.Advance(5)
	tl.Move(StageAPIServerDispatch)
	tl.Move(StageDone)
	r := tl.Record()
	if err := r.Check(); err != nil || r.Nanos != 12 || r.Of(StageTokenize).Nanos != 12 {
		t.Errorf("%v: %+v", err, r)
	}
	defer func() {
		if want := any("ledger: api_server timeline is backdated in stage done"); recover() != want {
			t.Error("a timeline that goes on is backdated")
		}
	}()
	tl.Backdate(1)
}
