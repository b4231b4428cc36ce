package trace

import (
	"testing"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
)

// untraced is what a request without a trace costs: every call that is made for one.
var untraced = []call{
	{"Enabled, tracing off", func(o *off) { o.on = o.nobody.Enabled() }},
	{"Enabled, level 0", func(o *off) { o.on = o.silent.Enabled() }},
	{"Follow, tracing off", func(o *off) { o.thread = o.nobody.Follow(o.request, 1) }},
	{"Follow, no trace", func(o *off) { o.thread = o.silent.Follow(o.request, 1) }},
	{"Root.Slice", func(o *off) { o.root.Slice(o.slice, ledger.StageAPIServerDispatch) }},
	{"Root.Carry", func(o *off) { o.request.Trace = o.root.Carry(ledger.StageAPIServerDispatch) }},
	{"Root.Dispatched", func(o *off) { o.root.Dispatched(o.slice) }},
	{"Thread.Slice", func(o *off) { o.thread.Slice(o.slice, ledger.StagePrefillWaiting) }},
	{"Thread.Scheduled", func(o *off) { o.thread.Scheduled(1, 1, 1, "decode") }},
	{"Thread.Close", func(o *off) { o.thread.Close(1, o.finish) }},
}

type call struct {
	name string
	call func(o *off)
}

// off is a request without a trace, and who would trace it.
type off struct {
	nobody, silent *Tracer // of a process without tracing, at level 0
	root           *Root
	thread         *Thread
	request        *request.Request
	slice          ledger.Slice
	finish         request.Finish
	on             bool
}

func newOff() *off {
	return &off{
		silent: newKept(ledgertest.New(), 0).Tracer(Place{Label: Tokenizer}), request: &request.Request{},
		slice: ledger.Slice{Stage: ledger.StageRequestProcess, Start: 1, End: 2},
	}
}

func TestOffCostsNoMemory(t *testing.T) {
	o := newOff()
	for _, u := range untraced {
		if n := testing.AllocsPerRun(100, func() { u.call(o) }); n != 0 {
			t.Errorf("%s allocates %g times", u.name, n)
		}
	}
	if o.on || o.root != nil || o.thread != nil || o.request.Trace != nil {
		t.Errorf("something is traced: %+v", o)
	}
}

// BenchmarkOff is the cost of each call for a request without a trace: at most 2 ns, and no allocation. "nothing" is the loop
// itself.
func BenchmarkOff(b *testing.B) {
	o := newOff()
	b.Run("Enabled, tracing off", func(b *testing.B) {
		b.ReportAllocs()
		on := false
		for range b.N {
			on = o.nobody.Enabled()
		}
		o.on = on
	})
	b.Run("Enabled, level 0", func(b *testing.B) {
		b.ReportAllocs()
		on := false
		for range b.N {
			on = o.silent.Enabled()
		}
		o.on = on
	})
	b.Run("Follow", func(b *testing.B) {
		b.ReportAllocs()
		thread := o.thread
		for range b.N {
			thread = o.silent.Follow(o.request, 1)
		}
		o.thread = thread
	})
	b.Run("Root.Slice", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			o.root.Slice(o.slice, ledger.StageAPIServerDispatch)
		}
	})
	b.Run("Root.Carry", func(b *testing.B) {
		b.ReportAllocs()
		carried := o.request.Trace
		for range b.N {
			carried = o.root.Carry(ledger.StageAPIServerDispatch)
		}
		o.request.Trace = carried
	})
	b.Run("Root.Dispatched", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			o.root.Dispatched(o.slice)
		}
	})
	b.Run("Thread.Slice", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			o.thread.Slice(o.slice, ledger.StagePrefillWaiting)
		}
	})
	b.Run("Thread.Scheduled", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			o.thread.Scheduled(1, 1, 1, "decode")
		}
	})
	b.Run("Thread.Close", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			o.thread.Close(1, o.finish)
		}
	})
	b.Run("nothing", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			continue
		}
	})
}

// BenchmarkOn is the cost of a traced request's spans on the goroutine of its scheduler, the export not included.
func BenchmarkOn(b *testing.B) {
	clock := ledgertest.New()
	b.Run("decode_loop with its schedule event", func(b *testing.B) {
		l, p := begin(ledger.Unified, LevelSteps, "")
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			l.thread.Scheduled(clock.Now(), int64(i), 1, "decode")
			l.thread.Slice(ledger.Slice{Stage: ledger.StageDecodeLoop, Start: 0, End: 1}, ledger.StageDecodeForward)
			if i%64 == 0 { // as the export does
				spans, _, _, _ := p.out.queue.take()
				p.out.queue.giveBack(spans)
			}
		}
	})
	b.Run("decode_loop at level 1", func(b *testing.B) {
		l, _ := begin(ledger.Unified, LevelStages, "")
		b.ReportAllocs()
		for b.Loop() {
			l.thread.Slice(ledger.Slice{Stage: ledger.StageDecodeLoop, Start: 0, End: 1}, ledger.StageDecodeForward)
		}
	})
}
