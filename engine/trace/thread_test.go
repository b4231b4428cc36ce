package trace

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// life is a request in a scheduler, which moves it as the scheduler does: the clock goes on by a millisecond before everything.
type life struct {
	clock    *ledgertest.Clock
	timeline ledger.Timeline
	thread   *Thread
}

func (l *life) move(to ledger.Stage) {
	l.clock.Advance(time.Millisecond)
	l.thread.Slice(l.timeline.Move(to), to)
}

func (l *life) lap(lap ledger.Stage) {
	l.clock.Advance(time.Millisecond)
	l.thread.Slice(l.timeline.Lap(lap), l.timeline.Stage())
}

func (l *life) batch(number int64, mode string) {
	l.clock.Advance(time.Millisecond)
	at := l.clock.Now()
	l.thread.Scheduled(at, number, 2, mode)
	l.clock.Advance(time.Millisecond)
	l.thread.Slice(ledger.Slice{Stage: ledger.StageRunBatchCPU, Start: at, End: l.clock.Now()}, l.timeline.Stage())
}

func (l *life) end(f request.Finish) {
	l.move(ledger.StageDone)
	at, _ := l.timeline.Finished()
	l.thread.Close(at, f)
}

// begin starts the timeline of a request that another process traces at a level.
func begin(form ledger.Form, level int, previous string) (*life, *Process) {
	l := &life{clock: ledgertest.New()}
	p := newKept(l.clock, 0) // the level of this process counts for nothing
	tracer := p.Tracer(Place{Label: Scheduler})
	l.timeline.Start(l.clock, form)
	root := traceparent.New()
	l.thread = tracer.Follow(&request.Request{Trace: &request.Trace{Parent: root.String(), Level: level, Module: ModuleRequest, Previous: previous}}, l.timeline.Started())
	return l, p
}

const before = "00000000000000aa"

func TestSlices(t *testing.T) {
	retracted := func(l *life) {
		l.move(ledger.StagePrefillWaiting)
		l.move(ledger.StagePrefillForward)
		l.batch(1, "prefill")
		l.lap(ledger.StageChunkedPrefill)
		l.move(ledger.StageDecodeWaiting)
		l.move(ledger.StageDecodeForward)
		l.batch(2, "decode")
		l.lap(ledger.StageDecodeLoop)
		l.move(ledger.StagePrefillWaiting) // retracted
		l.move(ledger.StagePrefillForward)
		l.move(ledger.StageDecodeForward)
		l.lap(ledger.StageDecodeLoop)
		l.end(request.Finish{Type: request.FinishStop})
	}
	for _, tc := range []struct {
		name, reason string
		form         ledger.Form
		level        int
		live         func(*life)
		want         string
	}{
		{
			name: "level 1", reason: "stages, and what happens to the request", form: ledger.Unified, level: 1, live: retracted,
			want: `
Scheduler(host:01234567 | pid:7) 0-15
  prefill_waiting 1-2 <- 00000000000000aa (remote)
  prefill_forward 2-6 <- prefill_waiting
  decode_waiting 6-7 <- prefill_forward
  decode_forward 7-11 <- decode_waiting
  prefill_waiting 11-12 <- decode_forward {retract 11}
  prefill_forward 12-13 <- prefill_waiting
  decode_forward 13-15 <- prefill_forward
`,
		},
		{
			name: "level 2", reason: "and the short ones", form: ledger.Unified, level: 2, live: func(l *life) {
				l.move(ledger.StagePrefillWaiting)
				l.end(request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeTimeout, Message: "too late"})
			},
			want: `
Scheduler(host:01234567 | pid:7) 0-2 abort_info.outcome="timeout" abort_info.message="too late" FAILED "timeout: too late"
  request_process 0-1 <- 00000000000000aa (remote)
  prefill_waiting 1-2 <- request_process
`,
		},
		{
			name: "level 3", reason: "chunks with the rest of the prompt, decode steps, batches", form: ledger.Unified, level: 3, live: retracted,
			want: `
Scheduler(host:01234567 | pid:7) 0-15
  request_process 0-1 <- 00000000000000aa (remote)
  prefill_waiting 1-2 <- request_process
  prefill_forward 2-6 <- prefill_waiting
    chunked_prefill 2-5 {schedule 3 bid="00000001" batch_size=2 forward_mode="prefill"}
    chunked_prefill 5-6
  decode_waiting 6-7 <- prefill_forward
  decode_forward 7-11 <- decode_waiting
    decode_loop 7-10 decode_ct=0 {schedule 8 bid="00000002" batch_size=2 forward_mode="decode"}
  prefill_waiting 11-12 <- decode_forward {retract 11}
  prefill_forward 12-13 <- prefill_waiting
  decode_forward 13-15 <- prefill_forward
    decode_loop 13-14 decode_ct=1
`,
		},
		{
			name: "level 4", reason: "and what a step costs the CPU", form: ledger.Unified, level: 4, live: func(l *life) {
				l.move(ledger.StagePrefillWaiting)
				l.move(ledger.StagePrefillForward)
				l.batch(1<<33+0xabcdef12, "prefill")
				l.move(ledger.StageDecodeWaiting)
				l.end(request.Finish{Type: request.FinishLength})
			},
			want: `
Scheduler(host:01234567 | pid:7) 0-6
  request_process 0-1 <- 00000000000000aa (remote)
  prefill_waiting 1-2 <- request_process
  prefill_forward 2-5 <- prefill_waiting
    run_batch_cpu 3-4 {schedule 3 bid="abcdef12" batch_size=2 forward_mode="prefill"}
  decode_waiting 5-6 <- prefill_forward
`,
		},
		{
			name: "decode", reason: "the handshake and the wait for pages are parts of decode_bootstrap", form: ledger.Decode, level: 3, live: func(l *life) {
				l.move(ledger.StageDecodeBootstrap)
				l.lap(ledger.StageDecodeBootstrapHandshake)
				l.move(ledger.StageDecodeTransferred)
				l.move(ledger.StageDecodeWaiting)
				l.move(ledger.StageDecodeForward)
				l.lap(ledger.StageFakeOutput)
				l.lap(ledger.StageDecodeLoop)
				l.move(ledger.StageDecodeWaiting)
				l.move(ledger.StageDecodeForward)
				l.end(request.Finish{Type: request.FinishStop})
			},
			want: `
Scheduler(host:01234567 | pid:7) 0-10
  decode_prepare 0-1 <- 00000000000000aa (remote)
  decode_bootstrap 1-3 <- decode_prepare
    decode_bootstrap_handshake 1-2
    decode_kv_allocation_wait 2-3
  decode_transferred 3-4 <- decode_bootstrap
  decode_waiting 4-5 <- decode_transferred
  decode_forward 5-8 <- decode_waiting
    fake_output 5-6
    decode_loop 6-7 decode_ct=0
  decode_waiting 8-9 <- decode_forward {retract 8}
  decode_forward 9-10 <- decode_waiting
`,
		},
		{
			name: "an event at the end", reason: "the thread has what no slice took", form: ledger.Unified, level: 3, live: func(l *life) {
				l.move(ledger.StagePrefillWaiting)
				l.move(ledger.StagePrefillForward)
				l.clock.Advance(time.Millisecond)
				l.thread.Scheduled(l.clock.Now(), 9, 1, "prefill")
				l.thread.Slice(l.timeline.Move(ledger.StageDone), ledger.StageDone)
				l.thread.Close(l.clock.Now(), request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeInternal})
			},
			want: `
Scheduler(host:01234567 | pid:7) 0-3 abort_info.outcome="internal_error" abort_info.message="" {schedule 3 bid="00000009" batch_size=1 forward_mode="prefill"} FAILED "internal_error"
  request_process 0-1 <- 00000000000000aa (remote)
  prefill_waiting 1-2 <- request_process
  prefill_forward 2-3 <- prefill_waiting
`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, p := begin(tc.form, tc.level, before)
			zero := l.clock.Wall(l.timeline.Started())
			tc.live(l)
			spans := kept(p)
			if diff := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), draw(spans, zero)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.reason, diff)
			}
			for _, s := range spans {
				if s.parentRemote != (s.name == "Scheduler(host:01234567 | pid:7)") {
					t.Errorf("that another process made the parent of %s is %t", s.name, s.parentRemote)
				}
			}
		})
	}
}

// TestLengthsOutliveTheWallClock: a wall clock that is stepped in the middle changes no length, and leaves no gap.
func TestLengthsOutliveTheWallClock(t *testing.T) {
	l, p := begin(ledger.Unified, 3, "")
	l.move(ledger.StagePrefillWaiting)
	l.clock.StepWall(time.Hour)
	l.move(ledger.StagePrefillForward)
	l.clock.StepWall(-2 * time.Hour)
	l.move(ledger.StageDecodeWaiting)
	l.end(request.Finish{Type: request.FinishStop})
	var end int64
	for _, s := range kept(p) {
		if s.parent == l.thread.id && end != 0 && s.start != end {
			t.Errorf("%s begins at %d, the slice before it ends at %d", s.name, s.start, end)
		}
		if s.parent == l.thread.id && s.end-s.start != int64(time.Millisecond) {
			t.Errorf("%s lasts %d ns", s.name, s.end-s.start)
		}
		end = s.end
	}
}

func TestManyEvents(t *testing.T) {
	l, p := begin(ledger.Unified, 3, "")
	for i := range 3 * maxEvents {
		l.thread.Scheduled(l.clock.Now(), int64(i), 1, "decode")
	}
	l.end(request.Finish{Type: request.FinishStop})
	for _, s := range kept(p) {
		if len(s.events) > maxEvents {
			t.Errorf("%s has %d events", s.name, len(s.events))
		}
	}
}

func TestFollow(t *testing.T) {
	parent := traceparent.New().String()
	for _, tc := range []struct {
		name, reason string
		trace        *request.Trace
		modules      []string
		want         bool
	}{
		{"traced", "all is there", &request.Trace{Parent: parent, Level: 1, Module: "request"}, []string{"request"}, true},
		{"no trace", "nobody asked", nil, []string{"request"}, false},
		{"level 0", "it asks for nothing", &request.Trace{Parent: parent, Module: "request"}, []string{"request"}, false},
		{"other module", "it is not among those wanted", &request.Trace{Parent: parent, Level: 1, Module: "request"}, []string{"mooncake"}, false},
		{"no module", "it is never left out", &request.Trace{Parent: parent, Level: 1}, []string{"mooncake"}, true},
		{"bad parent", "spans without one would be lost", &request.Trace{Parent: "00-", Level: 1, Module: "request"}, []string{"request"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := ledgertest.New()
			p := newKept(clock, 3)
			p.cfg.Modules = tc.modules
			if got := p.Tracer(Place{Label: Scheduler}).Follow(&request.Request{Trace: tc.trace}, clock.Now()); (got != nil) != tc.want {
				t.Errorf("%s: followed is %t", tc.reason, got != nil)
			}
		})
	}
}

func TestThreadNames(t *testing.T) {
	zero, one := 0, 1
	for _, tc := range []struct {
		place Place
		want  string
	}{
		{Place{Label: Tokenizer}, "Tokenizer(host:01234567 | pid:7)"},
		{Place{Label: Tokenizer, Role: "prefill"}, "PrefillTokenizer(host:01234567 | pid:7)"},
		{Place{Label: DPController, Role: "decode"}, "Decode DP Controller(host:01234567 | pid:7)"},
		{Place{Label: Scheduler, TPRank: &zero, PPRank: &one}, "Scheduler [TP 0]  [PP 1] (host:01234567 | pid:7)"},
		{Place{Label: Scheduler, Role: "decode", DPRank: &one}, "Decode Scheduler [DP 1] (host:01234567 | pid:7)"},
	} {
		p := newKept(ledgertest.New(), 3)
		if got := p.Tracer(tc.place).name; got != tc.want {
			t.Errorf("%+v is called %q, want %q", tc.place, got, tc.want)
		}
	}
	attributes := newKept(ledgertest.New(), 3).Tracer(Place{Label: Scheduler, Role: "prefill", TPRank: &zero, DPRank: &one}).attributes
	want := []attribute{integer("tp_rank", 0), integer("dp_rank", 1), text("host_id", "0123456789abcdef"), integer("pid", 7), text("thread_label", "Prefill Scheduler")}
	if diff := cmp.Diff(want, attributes, cmp.AllowUnexported(attribute{})); diff != "" {
		t.Errorf("attributes (-want +got)\n%s", diff)
	}
}
