package ledger

import "fmt"

// Timeline is where one request was and when. Exactly one goroutine moves it. It is a plain value without pointers
// besides the clock; Move and Lap allocate nothing.
//
// Invariants: the spent times of all stages sum to entered - start, and after StageDone to end - start;
// 0 <= firstWait <= queue <= what was spent in the waiting stage; the visits touch each other and cover [start, entered).
type Timeline struct {
	clock Clock
	form  Form
	stage Stage

	seen    stageSet // stages that were entered; first and last are valid for these
	start   Instant  // entry of the first stage
	entered Instant  // entry of the current stage
	lap     Instant  // end of the last lap of the current stage, at first its entry

	first [numStages]Instant // first entry
	spent [numStages]int64   // nanoseconds over all finished visits; of laps: over all laps
	count [numStages]int32   // finished visits, laps

	visits   [maxVisits + 1]Stage   // what was entered, in order, as far as there is room
	visitsAt [maxVisits + 1]Instant // and when
	visited  int32                  // how many stages were entered, those without room included

	queue      int64   // nanoseconds over all visits of the waiting stage that a forward pass ended
	firstWait  int64   // the first of these, valid when forwarded
	forwarded  bool    // a wait has led to a forward pass
	prefillEnd Instant // first time that prefill_forward was left forwards, valid when prefilled
	prefilled  bool
	met        Instant // when the peers of a hand-over had met, see MeetPeer, valid when hasMet
	hasMet     bool

	ahead, behind Instant // the first reading of a clock that went back, and what it said before; see Backwards
}

// maxVisits is how many visits a timeline remembers one by one; a request that is never retracted makes six at most.
const maxVisits = 32

// Slice is a finished visit of a stage, or a finished lap: [Start, End).
type Slice struct {
	Stage      Stage
	Start, End Instant
	// Observed says that this slice is a sample of per_stage_req_latency_seconds.
	Observed bool
}

// Nanos is the length of the slice, never negative.
func (s Slice) Nanos() int64 { return s.End.Sub(s.Start) }

// NewTimeline starts a timeline now, in the first stage of its form.
func NewTimeline(clock Clock, form Form) *Timeline {
	t := &Timeline{}
	t.Start(clock, form)
	return t
}

// Start makes t a new timeline that begins now, in the first stage of its form.
func (t *Timeline) Start(clock Clock, form Form) {
	now := clock.Now()
	s := firstStage[form]
	*t = Timeline{clock: clock, form: form, stage: s, start: now, entered: now, lap: now, seen: 1 << s}
	t.first[s] = now
	t.visits[0], t.visitsAt[0], t.visited = s, now, 1
}

// Backdate makes the timeline begin earlier, when another process first had the request; a later instant changes nothing. It
// must still be in its first stage.
func (t *Timeline) Backdate(at Instant) {
	if t.visited != 1 {
		panic(fmt.Sprintf("ledger: %s timeline is backdated in stage %s", t.form, t.stage))
	}
	if at >= t.start {
		return
	}
	t.start, t.entered, t.lap = at, at, at
	t.first[t.stage], t.visitsAt[0] = at, at
}

// Move takes the request from its stage to another, reads the clock once and gives the slice that ended there. A move
// that the form does not allow panics: it is a fault of the caller, not of the request.
func (t *Timeline) Move(to Stage) Slice {
	t.mayMove(to)
	return t.move(to, t.now())
}

// Pass takes the request through a stage that lasts no time, as when the first output is also the last: two moves with one
// reading of the clock. It gives the slice that ended and the one of via, which is empty.
func (t *Timeline) Pass(via, to Stage) (ended, passed Slice) {
	t.mayMove(via)
	now := t.now()
	ended = t.move(via, now)
	t.mayMove(to)
	return ended, t.move(to, now)
}

// mayMove panics when the form does not allow the move.
func (t *Timeline) mayMove(to Stage) {
	if !legal[t.form][t.stage].has(to) {
		panic(fmt.Sprintf("ledger: %s timeline moves from %s to %s, which is not a transition", t.form, t.stage, to))
	}
}

func (t *Timeline) move(to Stage, now Instant) Slice {
	from := t.stage
	s := Slice{Stage: from, Start: t.entered, End: now, Observed: observed[t.form].has(from) && t.observable(from, to)}
	t.close(from, to, now)

	t.stage, t.entered, t.lap = to, now, now
	if t.visited <= maxVisits {
		t.visits[t.visited], t.visitsAt[t.visited] = to, now
	}
	t.visited++
	if !t.seen.has(to) {
		t.seen |= 1 << to
		t.first[to] = now
	}
	return s
}

// Lap ends a part of the current stage, reads the clock once and gives the part: from the end of the previous lap, or
// the stage's entry, until now. It panics when the stage has no such laps.
func (t *Timeline) Lap(lap Stage) Slice {
	if !laps[t.form].has(lap) || stageTable[lap-1].Parent != t.stage {
		panic(fmt.Sprintf("ledger: %s timeline ends lap %s in stage %s, which has no such laps", t.form, lap, t.stage))
	}
	now := t.now()
	s := Slice{Stage: lap, Start: t.lap, End: now, Observed: observed[t.form].has(lap)}
	if !t.seen.has(lap) {
		t.seen |= 1 << lap
		t.first[lap] = t.lap
	}
	t.spent[lap] += s.Nanos()
	t.count[lap]++
	t.lap = now
	if lap == StageDecodeBootstrapHandshake && !t.hasMet {
		t.met, t.hasMet = now, true
	}
	return s
}

// now reads the clock, which can't go back behind an instant that the timeline already holds.
func (t *Timeline) now() Instant {
	now := t.clock.Now()
	if now < t.lap {
		if t.ahead == t.behind {
			t.ahead, t.behind = t.lap, now
		}
		return t.lap
	}
	return now
}

// MeetPeer notes when the decode rank had met this prefill rank, within the current visit, which is the one in the queue for
// that: elsewhere it panics. Only the first call counts. A decode rank's peer is met at the end of the first lap
// StageDecodeBootstrapHandshake.
func (t *Timeline) MeetPeer(at Instant) {
	if t.stage != StagePrefillBootstrap {
		panic(fmt.Sprintf("ledger: %s timeline meets a peer in stage %s, which waits for none", t.form, t.stage))
	}
	if !t.hasMet {
		t.met, t.hasMet = min(max(at, t.entered), t.now()), true
	}
}

// Backwards gives the first two readings of the clock of which the later one was the smaller. The timeline took the greater
// one for both, so that its sums hold. ok is false when that never happened.
func (t *Timeline) Backwards() (before, after Instant, ok bool) {
	return t.ahead, t.behind, t.ahead != t.behind
}

// observable: a stage that the end of the request cuts short is no sample, except the last one of its form; of the passes
// through prefill only the first is.
func (t *Timeline) observable(from, to Stage) bool {
	switch from {
	case StagePrefillForward:
		return t.count[from] == 0 && prefillEnds(to)
	case StagePrefillTransferKVCache:
		return true
	case StageDecodeWaiting:
		return t.count[from] == 0 && to != StageDone
	default:
		return to != StageDone
	}
}

// prefillEnds reports whether leaving prefill_forward for to means that the whole prompt was computed.
func prefillEnds(to Stage) bool { return to != StagePrefillWaiting && to != StageDone }

func (t *Timeline) close(from, to Stage, now Instant) {
	visit := now.Sub(t.entered)
	if from == t.waiting() && to != StageDone {
		if !t.forwarded {
			t.firstWait, t.forwarded = visit, true
		}
		t.queue += visit
	}
	if from == StagePrefillForward && prefillEnds(to) && !t.prefilled {
		t.prefillEnd, t.prefilled = now, true
	}
	t.spent[from] += visit
	t.count[from]++
}

// waiting is the stage that the queue time is made of; StageNone when the form has none.
func (t *Timeline) waiting() Stage { return waitingOf(t.form) }

func waitingOf(f Form) Stage {
	switch f {
	case Unified, Prefill:
		return StagePrefillWaiting
	case Decode:
		return StageDecodeWaiting
	default:
		return StageNone
	}
}

// forwardOf is the first stage that computes; StageNone when the form has none.
func forwardOf(f Form) Stage {
	switch f {
	case Unified, Prefill:
		return StagePrefillForward
	case Decode:
		return StageDecodeForward
	default:
		return StageNone
	}
}

// Stage is where the request is.
func (t *Timeline) Stage() Stage { return t.stage }

// Started is the entry of the first stage.
func (t *Timeline) Started() Instant { return t.start }

// Entered is the entry of the current stage.
func (t *Timeline) Entered() Instant { return t.entered }

// At is the first entry of the stage; of a lap the start of the first one. ok is false when it was never entered.
func (t *Timeline) At(s Stage) (at Instant, ok bool) { return t.first[s], t.seen.has(s) }

// Duration is the nanoseconds spent in the stage over all finished visits; of a lap the sum of all.
func (t *Timeline) Duration(s Stage) int64 { return t.spent[s] }

// Visits counts the finished visits of the stage, or the laps.
func (t *Timeline) Visits(s Stage) int { return int(t.count[s]) }

// Queue is the nanoseconds in the waiting queue over all visits that led to a forward pass. A wait that the request's end cut
// short is in Duration of the stage, but no queue time.
func (t *Timeline) Queue() int64 { return t.queue }

// FirstWait is the nanoseconds of the first wait. ok is false until a forward pass ended it.
func (t *Timeline) FirstWait() (nanos int64, ok bool) { return t.firstWait, t.forwarded }
