package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// spanWatch is a Tracer that verifies what it is told.
type spanWatch struct {
	t      *testing.T
	traced map[string]*spanLife // by RID
}

// spanLife is what one request's spans were told. Invariants: end is that of the newest stage, lap that of its newest lap.
type spanLife struct {
	t        *testing.T
	rid      string
	in       ledger.Stage
	start    ledger.Instant
	end, lap ledger.Instant
	nanos    int64 // of all stages
	batches  int
	closed   bool
	finish   request.Finish
}

func (w *spanWatch) Follow(r *request.Request, started ledger.Instant) Spans {
	if r.Trace == nil {
		w.t.Errorf("request %s is followed without a trace", r.RID)
	}
	if len(r.PromptIDs)%5 == 0 {
		return nil // as one whose module is not wanted
	}
	s := &spanLife{t: w.t, rid: r.RID, start: started, end: started, lap: started}
	w.traced[r.RID] = s
	return s
}

func (s *spanLife) Slice(x ledger.Slice, in ledger.Stage) {
	info := x.Stage.Info()
	fail := func(format string, args ...any) {
		s.t.Errorf("request %s, in %s since %d, gets %s [%d, %d): %s", s.rid, s.in, s.end, x.Stage, x.Start, x.End, fmt.Sprintf(format, args...))
	}
	switch {
	case s.closed:
		fail("it was closed")
	case info.Detail:
		if x.Start < s.end || x.End < x.Start || in != s.in {
			fail("want it in %s", s.in)
		}
	case info.Parent != ledger.StageNone:
		if info.Parent != s.in || in != s.in || x.Start != s.lap {
			fail("want a lap that begins at %d", s.lap)
		}
		s.lap = x.End
	default:
		if s.in != ledger.StageNone && x.Stage != s.in || x.Start != s.end || x.End < s.lap {
			fail("want the end of %s, which had a lap until %d", s.in, s.lap)
		}
		s.nanos += x.Nanos()
		s.in, s.end, s.lap = in, x.End, x.End
	}
}

func (s *spanLife) Scheduled(at ledger.Instant, batch int64, size int, mode string) {
	if s.closed || at < s.end || batch < 1 && mode != modePrebuilt || size < 1 || mode != modePrefill && mode != modeDecode && mode != modePrebuilt {
		s.t.Errorf("request %s, closed %t, in %s since %d, is told of batch %d of %d, %s, at %d", s.rid, s.closed, s.in, s.end, batch, size, mode, at)
	}
	s.batches++
}

func (s *spanLife) Close(at ledger.Instant, f request.Finish) {
	if s.closed || s.in != ledger.StageDone || at != s.end || s.nanos != at.Sub(s.start) || f.Type == "" {
		s.t.Errorf("request %s, closed %t, in %s since %d after %d ns, is closed at %d: %s", s.rid, s.closed, s.in, s.end, s.nanos, at, f)
	}
	s.closed, s.finish = true, f
}

// TestSpans watches the spans of random lives: stages follow each other without gaps and add up to the request's time, laps
// divide their stage, and every traced request is closed once, with what its sink got.
func TestSpans(t *testing.T) {
	for _, roles := range [][]Role{{Unified}, {Prefill, Decode}} {
		for round := range 4 {
			seed := uint64(time.Now().UnixNano()) + uint64(round)
			t.Run(fmt.Sprintf("%v seed %d", roles, seed), func(t *testing.T) {
				l := newLife(t, rand.New(rand.NewPCG(seed, 8)), roles)
				l.clock.SetStep(time.Microsecond)
				var watches []*spanWatch
				for _, x := range l.sides {
					w := &spanWatch{t: t, traced: map[string]*spanLife{}}
					x.s.deps.Tracer = w
					watches = append(watches, w)
				}
				l.run()
				for at, x := range l.sides {
					if x.s.traced != 0 {
						t.Errorf("%s: %d requests count as traced at the end", roles[at], x.s.traced)
					}
					for i, r := range l.reqs {
						s := watches[at].traced[r.RID]
						if (s != nil) != (r.Trace != nil && len(r.PromptIDs)%5 != 0) {
							t.Errorf("%s: request %s is watched: %t", roles[at], r.RID, s != nil)
						}
						if s == nil {
							continue
						}
						if f := x.sinks[i].finish; !s.closed || f == nil || f.Outcome != s.finish.Outcome {
							t.Errorf("%s: the spans of request %s, closed %t, ended with %s, its sink with %v", roles[at], r.RID, s.closed, s.finish, f)
						}
						if s.finish.Type != request.FinishAbort && s.batches == 0 {
							t.Errorf("%s: request %s was in no batch", roles[at], r.RID)
						}
					}
				}
			})
		}
	}
}

// TestNoTraceReadsNoClock: a request without a trace costs no reading of the clock, whatever the tracer would want.
func TestNoTraceReadsNoClock(t *testing.T) {
	reads := func(trace *request.Trace, tracer Tracer) int64 {
		l := newLife(t, rand.New(rand.NewPCG(5, 8)), []Role{Unified})
		x := l.sides[0]
		x.s.deps.Tracer = tracer
		before := l.clock.Reads()
		sink := newSink()
		if err := x.s.Submit(&request.Request{RID: "r", PromptIDs: testPrompt(11, 1), Trace: trace, Sampling: request.Sampling{MaxNewTokens: 3, IgnoreEOS: true}}, sink); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			if _, _, err := x.s.step(false); err != nil {
				t.Fatal(err)
			}
			if sink.finish != nil {
				return l.clock.Reads() - before
			}
		}
		t.Fatal("the request does not end")
		return 0
	}
	watch := func() *spanWatch { return &spanWatch{t: t, traced: map[string]*spanLife{}} }
	plain, off, on := reads(nil, nil), reads(nil, watch()), reads(&request.Trace{Level: 1}, watch())
	if plain != off || on <= plain {
		t.Errorf("the clock is read %d times without a tracer, %d times with one, %d times for a traced request", plain, off, on)
	}
}
