package ledger_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
)

// walk is a timeline's way from its first stage to its end, with what moved it.
type walk struct {
	t      *Timeline
	clock  *ledgertest.Clock
	slices []Slice // of stages
	laps   []Slice
	met    int64 // nanoseconds after the start, -1: never
}

// randomWalk moves a timeline of a form by moves drawn at random; sometimes the clock stands still, goes back, or the wall
// clock is stepped.
func randomWalk(rng *rand.Rand, form Form, moves int) *walk {
	w := &walk{clock: ledgertest.New(), met: -1}
	w.clock.Advance(time.Duration(rng.Int64N(1 << 50)))
	w.t = NewTimeline(w.clock, form)
	for tries := 0; w.t.Stage() != StageDone; {
		switch rng.IntN(12) {
		case 0:
			w.clock.Advance(-time.Duration(rng.Int64N(1 << 41)))
		case 1:
			w.clock.StepWall(time.Duration(rng.Int64N(1<<50) - 1<<49))
		case 2:
		default:
			w.clock.Advance(time.Duration(rng.Int64N(1 << 40)))
		}
		if waits := w.t.Stage() == StagePrefillBootstrap; waits && w.met < 0 && rng.IntN(2) == 0 {
			now := w.t.Entered() + Instant(rng.Int64N(1<<41))
			w.t.MeetPeer(now)
			w.met = min(max(now, w.t.Entered()), max(w.clock.Now(), w.t.Entered())).Sub(w.t.Started())
		}
		for _, info := range Stages() {
			if info.Parent == w.t.Stage() && rng.IntN(2) == 0 {
				if lap, ok := try(func() Slice { return w.t.Lap(info.Stage) }); ok {
					w.laps = append(w.laps, lap)
				}
			}
		}
		to := StageNone + 1 + Stage(rng.IntN(len(Stages())))
		if tries++; to == StageDone && len(w.slices) < moves && tries < 40*moves { // there may be no other way
			continue
		}
		if s, ok := try(func() Slice { return w.t.Move(to) }); ok {
			w.slices = append(w.slices, s)
		}
		if len(w.slices) >= moves && w.t.Stage() != StageDone {
			w.slices = append(w.slices, w.t.Move(StageDone))
		}
	}
	return w
}

// twin makes the record from the slices that Move and Lap gave, as naively as can be.
func (w *walk) twin(form Form) *Record {
	start := w.slices[0].Start
	r := &Record{Form: form, Stage: StageDone, StartWallNanos: w.clock.Wall(start), Visits: []Visit{}, Spent: []Spent{}}
	waiting := map[Form]Stage{Unified: StagePrefillWaiting, Prefill: StagePrefillWaiting, Decode: StageDecodeWaiting}[form]
	for i, s := range w.slices {
		r.Nanos += s.Nanos()
		if len(r.Visits) < 32 {
			r.Visits = append(r.Visits, Visit{Stage: s.Stage, Start: s.Start.Sub(start), Nanos: s.Nanos()})
		} else {
			r.Folded++
		}
		last := i == len(w.slices)-1
		if s.Stage == waiting && !last {
			r.QueueNanos += s.Nanos()
			if r.FirstWaitNanos == nil {
				r.FirstWaitNanos = new(s.Nanos())
			}
		}
		if s.Stage == StagePrefillForward && !last && w.slices[i+1].Stage != StagePrefillWaiting && r.PrefillEnd == nil {
			r.PrefillEnd = new(s.End.Sub(start))
		}
	}
	for _, info := range Stages() {
		x := Spent{Stage: info.Stage}
		for _, s := range append(append([]Slice(nil), w.slices...), w.laps...) {
			if s.Stage == info.Stage {
				x.Count++
				x.Nanos += s.Nanos()
			}
		}
		if x.Count > 0 {
			r.Spent = append(r.Spent, x)
		}
	}
	for _, lap := range w.laps {
		if lap.Stage == StageDecodeBootstrapHandshake && w.met < 0 {
			w.met = lap.End.Sub(start)
		}
	}
	if w.met >= 0 {
		r.PeerMet = &w.met
	}
	return r
}

// TestE4StagesSumToEndToEnd: whatever path a request takes and whatever its clocks do, the stages of every form sum to its
// end-to-end time to the nanosecond, none is negative, and the record says what the slices said.
func TestE4StagesSumToEndToEnd(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	for range 600 {
		form := []Form{APIServer, DPController, Unified, Prefill, Decode}[rng.IntN(5)]
		w := randomWalk(rng, form, rng.IntN(60))
		got := w.t.Record()
		if err := got.Check(); err != nil {
			t.Fatalf("%s after %d moves: %v", form, len(w.slices), err)
		}
		if diff := cmp.Diff(w.twin(form), got); diff != "" {
			t.Fatalf("%s after %d moves (-slices +record):\n%s", form, len(w.slices), diff)
		}
		if e2e, ok := w.t.EndToEnd(); !ok || e2e != got.Nanos {
			t.Fatalf("the timeline took %d ns, its record %d", e2e, got.Nanos)
		}
		for _, s := range got.Durations().Spans {
			if !s.Moment && s.Nanos < 0 {
				t.Fatalf("%s: %s is %d ns", form, s.Name, s.Nanos)
			}
		}
	}
}

// Wall times of one record are in order and as far apart as its instants, however the wall clock is stepped meanwhile.
func TestWallTimesOfARecordAreInOrder(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	for range 500 {
		r := randomWalk(rng, Unified, 2+rng.IntN(30)).t.Record()
		last := r.StartWallNanos
		for _, v := range r.Visits {
			if at := r.StartWallNanos + v.Start; at < last {
				t.Fatalf("%s begins at wall time %d, after %d", v.Stage, at, last)
			}
			last = r.StartWallNanos + v.Start + v.Nanos
		}
		if end := r.StartWallNanos + r.Nanos; last > end || r.Folded == 0 && last != end {
			t.Fatalf("the last visit ends at wall time %d, the timeline at %d", last, end)
		}
	}
}

func TestRecordUnderWay(t *testing.T) {
	clock := ledgertest.New()
	tl := NewTimeline(clock, Unified)
	clock.Advance(5)
	tl.Move(StagePrefillWaiting)
	clock.Advance(7)
	got := tl.Record()
	want := &Record{
		Form: Unified, Stage: StagePrefillWaiting, StartWallNanos: 1_700_000_000_000_000_000, Nanos: 12,
		Visits: []Visit{{StageRequestProcess, 0, 5}, {StagePrefillWaiting, 5, 7}},
		Spent:  []Spent{{StageRequestProcess, 1, 5}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := got.Check(); err != nil {
		t.Error(err)
	}
	if _, ended := got.EndToEnd(); ended {
		t.Error("a request that lives has an end-to-end time")
	}
}

// A check that can't fail is none: each field of a sound record is damaged in turn.
func TestE4CheckFindsDamage(t *testing.T) {
	sound := func() *Record {
		return &Record{
			Form: Unified, Stage: StageDone, Nanos: 30, QueueNanos: 8, FirstWaitNanos: new(int64(8)),
			Visits: []Visit{{StageRequestProcess, 0, 2}, {StagePrefillWaiting, 2, 8}, {StagePrefillForward, 10, 20}},
			Spent:  []Spent{{StageRequestProcess, 1, 2}, {StagePrefillWaiting, 1, 8}, {StagePrefillForward, 1, 20}, {StageChunkedPrefill, 2, 15}},
		}
	}
	if err := sound().Check(); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, want string
		damage     func(*Record)
	}{
		{"a nanosecond lost", "the stages sum to 30 ns, end to end is 31 ns", func(r *Record) { r.Nanos++ }},
		{"a stage longer", "the stages sum to 31 ns, end to end is 30 ns", func(r *Record) { r.Spent[0].Nanos++ }},
		{"a stage negative", "request_process took -1 ns", func(r *Record) { r.Spent[0].Nanos = -1 }},
		{"a stage without a visit", "prefill_waiting took 8 ns in 0 visits", func(r *Record) { r.Spent[1].Count = 0 }},
		{"laps too long", "laps chunked_prefill took 21 ns, all of prefill_forward 20 ns", func(r *Record) { r.Spent[3].Nanos = 21 }},
		{"a gap", "a visit of prefill_waiting is [3, 11) ns, the one before ended at 2 ns", func(r *Record) { r.Visits[1].Start = 3 }},
		{"a visit missing", "the visits end at 10 ns with 0 not listed, the timeline at 30 ns", func(r *Record) { r.Visits = r.Visits[:2] }},
		{"a queue too long", "queue time is 9 ns of 8 ns in the waiting stage", func(r *Record) { r.QueueNanos = 9 }},
		{"a first wait too long", "queue time is 8 ns of 8 ns", func(r *Record) { r.FirstWaitNanos = new(int64(9)) }},
		{"an unknown stage", "stage 200 is not known", func(r *Record) { r.Spent[0].Stage = 200 }},
		{"an unknown form", "form 99 and stage", func(r *Record) { r.Form = 99 }},
		{"no stage at all", "stage 0 are not both known", func(r *Record) { r.Stage = StageNone }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := sound()
			c.damage(r)
			if err := r.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("check says %v, want %q", err, c.want)
			}
		})
	}
	outer := &Record{Form: APIServer, Nanos: 29}
	if err := sound().CheckWithin(outer); err == nil || err.Error() != "the unified timeline took 30 ns, the api_server timeline around it 29 ns" {
		t.Errorf("a rank's timeline that is longer than the API process's: %v", err)
	}
	outer.Nanos = 30
	if err := sound().CheckWithin(outer); err != nil {
		t.Error(err)
	}
}

// BenchmarkRecord is what the end of a request costs: its timeline as data, and the check of it.
func BenchmarkRecord(b *testing.B) {
	clock := ledgertest.New()
	tl := NewTimeline(clock, Unified)
	for _, to := range []Stage{StagePrefillWaiting, StagePrefillForward, StageDecodeWaiting, StageDecodeForward} {
		clock.Advance(time.Millisecond)
		tl.Move(to)
	}
	tl.Lap(StageDecodeLoop)
	tl.Move(StageDone)
	b.ReportAllocs()
	for b.Loop() {
		if err := tl.Record().Check(); err != nil {
			b.Fatal(err)
		}
	}
}
