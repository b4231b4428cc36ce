package ledger

import (
	"errors"
	"fmt"
)

// Record is a timeline as plain data: whole when the request has ended, else as far as it has come. It may cross a process.
// Its wall times are all taken with one offset between the clocks, so they are in order whatever the wall clock does.
//
// Invariants, verified by Check:
//
//	Σ Spent over stages = Nanos, once Stage is StageDone;  laps of a stage take no longer than the stage
//	Visits touch each other from 0 on, and cover Nanos unless Folded > 0
//	0 <= FirstWait <= Queue <= time in the waiting stage
type Record struct {
	Form           Form
	Stage          Stage // where the request is; StageDone: it has ended
	StartWallNanos int64 // Unix nanoseconds of the start
	Nanos          int64 // from the start to the end, or until the record was made

	Visits []Visit // in order, finished ones; the current one is last when Stage is not StageDone
	Folded int     // later visits that are not in Visits, but in Spent
	Spent  []Spent // stages and laps that were finished at least once, in the order of the table

	QueueNanos     int64  // waits that led to a forward pass
	FirstWaitNanos *int64 // the first of these; nil: none
	PrefillEnd     *int64 // nanoseconds after the start; nil: never
	PeerMet        *int64 // nanoseconds after the start; nil: never, or there is no peer

	Transfer *Transfer // of KV to or from a peer; nil: there was none
}

// Transfer is what went over between a prefill and a decode rank for one request, as one of them saw it.
type Transfer struct {
	OwnBytes  int64  // that this rank sent, or received
	PeerBytes *int64 // that the peers say they received, or sent; nil: they did not get to say it
	Nanos     int64  // how long it took
}

// Megabytes is OwnBytes over 2^20.
func (t Transfer) Megabytes() float64 { return float64(t.OwnBytes) / (1 << 20) }

// GigabytesPerSecond is Megabytes/1024 over the time; 0 when it took none.
func (t Transfer) GigabytesPerSecond() float64 {
	if t.Nanos <= 0 {
		return 0
	}
	return t.Megabytes() / 1024 / (float64(t.Nanos) / 1e9)
}

// Visit is a visit of a stage: [Start, Start+Nanos), in nanoseconds after the timeline's start.
type Visit struct {
	Stage        Stage
	Start, Nanos int64
}

// Spent is what all visits of a stage, or all its laps, took together.
type Spent struct {
	Stage Stage
	Count int
	Nanos int64
}

// Record gives the timeline as data. While the request lives, the last visit ends now.
func (t *Timeline) Record() *Record {
	end := t.entered
	if t.stage != StageDone {
		end = max(t.clock.Now(), t.lap)
	}
	r := &Record{
		Form: t.form, Stage: t.stage, StartWallNanos: t.clock.Wall(t.start), Nanos: end.Sub(t.start), QueueNanos: t.queue,
	}
	visits := int(t.visited)
	if t.stage == StageDone { // which is no visit
		visits--
	}
	r.Visits = make([]Visit, min(visits, maxVisits))
	r.Folded = visits - len(r.Visits)
	for i := range r.Visits {
		from, to := t.visitsAt[i], end
		if i+1 < int(t.visited) {
			to = t.visitsAt[i+1]
		}
		r.Visits[i] = Visit{Stage: t.visits[i], Start: from.Sub(t.start), Nanos: to.Sub(from)}
	}
	n := 0
	for _, count := range t.count {
		n += min(int(count), 1)
	}
	r.Spent = make([]Spent, 0, n)
	for s, count := range t.count {
		if count > 0 {
			r.Spent = append(r.Spent, Spent{Stage: Stage(s), Count: int(count), Nanos: t.spent[s]})
		}
	}
	var optional [3]int64 // one allocation for all
	for i, o := range [...]struct {
		to    **int64
		nanos int64
		has   bool
	}{{&r.FirstWaitNanos, t.firstWait, t.forwarded}, {&r.PrefillEnd, t.prefillEnd.Sub(t.start), t.prefilled}, {&r.PeerMet, t.met.Sub(t.start), t.hasMet}} {
		if o.has {
			optional[i] = o.nanos
			*o.to = &optional[i]
		}
	}
	return r
}

// Of gives what a stage, or its laps, took; zero when it was never finished.
func (r *Record) Of(s Stage) Spent {
	for _, x := range r.Spent {
		if x.Stage == s {
			return x
		}
	}
	return Spent{Stage: s}
}

// Entered is when a stage was entered for the first time, in nanoseconds after the start.
func (r *Record) Entered(s Stage) (nanos int64, ok bool) {
	for _, v := range r.Visits {
		if v.Stage == s {
			return v.Start, true
		}
	}
	return 0, false
}

// EndToEnd is Nanos once the request has ended.
func (r *Record) EndToEnd() (nanos int64, ok bool) { return r.Nanos, r.Stage == StageDone }

// Check verifies the invariants: E4, and what a record from elsewhere must be before it is believed.
func (r *Record) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.Form >= numForms || r.Stage == StageNone || r.Stage >= numStages {
		return fmt.Errorf("form %d and stage %d are not both known", r.Form, r.Stage)
	}
	var total, waits int64
	for _, x := range r.Spent {
		if x.Stage == StageNone || x.Stage >= numStages {
			return fmt.Errorf("stage %d is not known", x.Stage)
		}
		if x.Nanos < 0 || x.Count < 1 {
			fail("%s took %d ns in %d visits", x.Stage, x.Nanos, x.Count)
		}
		if parent := x.Stage.Info().Parent; parent != StageNone {
			if inside := r.Of(parent); r.Stage == StageDone && x.Nanos > inside.Nanos {
				fail("laps %s took %d ns, all of %s %d ns", x.Stage, x.Nanos, parent, inside.Nanos)
			}
			continue
		}
		if x.Stage == waitingOf(r.Form) {
			waits = x.Nanos
		}
		total += x.Nanos
	}
	if r.Stage == StageDone && total != r.Nanos || total > r.Nanos {
		fail("the stages sum to %d ns, end to end is %d ns", total, r.Nanos)
	}
	at := int64(0)
	for _, v := range r.Visits {
		if v.Start != at || v.Nanos < 0 {
			fail("a visit of %s is [%d, %d) ns, the one before ended at %d ns", v.Stage, v.Start, v.Start+v.Nanos, at)
			break
		}
		at += v.Nanos
	}
	if r.Folded == 0 && at != r.Nanos || at > r.Nanos || r.Folded < 0 {
		fail("the visits end at %d ns with %d not listed, the timeline at %d ns", at, r.Folded, r.Nanos)
	}
	if first := r.FirstWaitNanos; r.QueueNanos < 0 || r.QueueNanos > waits || first != nil && (*first < 0 || *first > r.QueueNanos) {
		fail("queue time is %d ns of %d ns in the waiting stage", r.QueueNanos, waits)
	}
	return errors.Join(errs...)
}

// driftPerMille is how far the clocks of two hosts may run apart, in thousandths: twice what time services correct.
const driftPerMille = 1

// CheckWithin verifies that a timeline of another process, which began after this one and ended before it, is no longer.
func (r *Record) CheckWithin(outer *Record) error {
	if slack := r.Nanos * driftPerMille / 1000; r.Nanos-slack > outer.Nanos {
		return fmt.Errorf("the %s timeline took %d ns, the %s timeline around it %d ns", r.Form, r.Nanos, outer.Form, outer.Nanos)
	}
	return nil
}
