package ledger

import (
	"fmt"
	"strings"
)

// Durations are what SGLang derives from a scheduler's timeline: named spans of nanoseconds in the order in which its log has
// them. A span of which one end did not happen is 0.
type Durations struct {
	Form  Form
	Spans []Span
	// EntryWallNanos is when the request entered its first queue: the waiting queue, or on prefill and decode engines the one
	// for the handshake. 0: never.
	EntryWallNanos int64

	Transfer *Transfer // of a prefill engine, once something went over

	waited bool // it entered the waiting queue
}

// Span is a named duration, or with Moment a wall time, in nanoseconds. Start and End are its ends in nanoseconds after the
// timeline's start.
type Span struct {
	Name       string
	Nanos      int64
	Moment     bool
	Start, End int64
}

// The names of Durations.
const (
	QueueDuration          = "queue_duration"
	ForwardDuration        = "forward_duration"
	BootstrapDuration      = "bootstrap_duration"
	BootstrapQueueDuration = "bootstrap_queue_duration"
	BootstrapDoneTime      = "bootstrap_done_time"
	PreallocQueueDuration  = "prealloc_queue_duration"
	AllocWaitDuration      = "alloc_wait_duration"
	TransferDuration       = "transfer_duration"
)

// point is an instant of a record, in nanoseconds after its start; absent when it did not happen.
type point struct {
	at int64
	ok bool
}

// between is the span from a to b, 0 when one of them did not happen.
func between(name string, a, b point) Span {
	if !a.ok || !b.ok {
		return Span{Name: name}
	}
	return Span{Name: name, Nanos: b.at - a.at, Start: a.at, End: b.at}
}

// Durations derives the spans of a scheduler's record; other forms have none.
func (r *Record) Durations() Durations {
	d := Durations{Form: r.Form}
	entered := func(s Stage) point {
		at, ok := r.Entered(s)
		return point{at, ok}
	}
	var peer, done point
	if r.PeerMet != nil {
		peer = point{*r.PeerMet, true}
	}
	if r.Stage == StageDone {
		done = point{r.Nanos, true}
	}
	wait := entered(waitingOf(r.Form))
	d.waited = wait.ok
	entry, forward := wait, entered(forwardOf(r.Form))
	switch r.Form {
	case Unified:
	case Prefill:
		entry, d.Transfer = entered(StagePrefillBootstrap), r.Transfer
		switch {
		case peer.ok && entry.ok:
			d.Spans = append(d.Spans, between(BootstrapDuration, entry, peer))
		case peer.ok:
			d.Spans = append(d.Spans, Span{Name: BootstrapDoneTime, Nanos: r.StartWallNanos + peer.at, Moment: true, End: peer.at})
		default:
			d.Spans = append(d.Spans, between(BootstrapQueueDuration, entry, wait))
		}
	case Decode:
		entry = entered(StageDecodeBootstrap)
		transfer := entered(StageDecodeTransferred)
		if peer.ok {
			d.Spans = append(d.Spans, between(BootstrapDuration, entry, peer), between(AllocWaitDuration, peer, transfer))
		} else {
			d.Spans = append(d.Spans, between(PreallocQueueDuration, entry, transfer))
		}
		d.Spans = append(d.Spans, between(TransferDuration, transfer, wait))
	default:
		return d
	}
	queue := Span{Name: QueueDuration, Nanos: r.QueueNanos}
	if wait.ok {
		queue.Start, queue.End = wait.at, wait.at+r.QueueNanos
	}
	d.Spans = append(d.Spans, queue, between(ForwardDuration, forward, done))
	if entry.ok {
		d.EntryWallNanos = r.StartWallNanos + entry.at
	}
	return d
}

// Of gives a span by its name; 0 when this form, or this request, does not have it.
func (d Durations) Of(name string) (nanos int64) {
	for _, s := range d.Spans {
		if s.Name == name {
			return s.Nanos
		}
	}
	return 0
}

// String gives the spans in milliseconds with two decimals and the entry in wall seconds with three.
func (d Durations) String() string {
	var b strings.Builder
	for _, s := range d.Spans {
		if s.Moment {
			fmt.Fprintf(&b, "%s=%s, ", s.Name, wallSeconds(s.Nanos))
		} else {
			fmt.Fprintf(&b, "%s=%s, ", s.Name, Milliseconds(s.Nanos))
		}
	}
	fmt.Fprintf(&b, "entry_time=%s", wallSeconds(d.EntryWallNanos))
	if t := d.Transfer; t != nil {
		fmt.Fprintf(&b, ", transfer_speed=%.2fGB/s, transfer_total=%.2fMB", t.GigabytesPerSecond(), t.Megabytes())
	}
	return b.String()
}

// Milliseconds gives nanoseconds as milliseconds with two decimals.
func Milliseconds(nanos int64) string { return fmt.Sprintf("%.2fms", float64(nanos)/1e6) }

func wallSeconds(nanos int64) string { return fmt.Sprintf("%d.%03d", nanos/1e9, nanos/1e6%1000) }

// Check gives an error that names the first span below 0 with both of its ends. On prefill and decode engines a request that
// never came to the waiting queue is not looked at.
func (d Durations) Check() error {
	if d.Form != Unified && !d.waited {
		return nil
	}
	for _, s := range d.Spans {
		if s.Nanos < 0 {
			return fmt.Errorf("%s is %d ns: from %d ns to %d ns after the start", s.Name, s.Nanos, s.Start, s.End)
		}
	}
	return nil
}

// Assert verifies what may never happen to a finished timeline: the clock went back, a duration is below 0, or the stages
// don't sum up. Tests run engines with it, see SLUICE_TEST_REQUEST_TIME_STATS.
func (t *Timeline) Assert(r *Record) error {
	if before, after, ok := t.Backwards(); ok {
		return fmt.Errorf("the clock went back: %d ns after %d ns of this process", after, before)
	}
	if err := r.Durations().Check(); err != nil {
		return err
	}
	return r.Check()
}
