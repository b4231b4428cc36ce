package scheduler

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// nothingness is a device that takes no time.
type nothingness struct{ sampled []Sampled }

func (n *nothingness) Execute(_ context.Context, rows []Row, _ func(int)) ([]Sampled, error) {
	for len(n.sampled) < len(rows) {
		n.sampled = append(n.sampled, Sampled{Token: 7})
	}
	return n.sampled[:len(rows)], nil
}

type dropped struct{}

func (dropped) Put(request.Output) {}

// newBench gives a scheduler with n sequences that decode for ever, stepped by hand.
func newBench(b *testing.B, x Executor, n int, overlap bool) *Scheduler {
	b.Helper()
	cfg := testConfig(Unified, 16, 1<<24)
	cfg.MaxRunning, cfg.DecodeInterval, cfg.Overlap = n, 40, overlap
	s, err := New(cfg, Deps{Executor: x, Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	begin(b, s)
	for i := range n {
		r := &request.Request{RID: fmt.Sprint(i), PromptIDs: testPrompt(100, i), Sampling: request.Sampling{MaxNewTokens: 1 << 30, IgnoreEOS: true}}
		if err := s.Submit(r, dropped{}); err != nil {
			b.Fatal(err)
		}
	}
	for range 2 { // the prompts, and with overlap the first decode step beside them
		if _, err := s.turn(); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

// BenchmarkDecodeStep is what the scheduler adds to a decode step of so many sequences.
func BenchmarkDecodeStep(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		for _, overlap := range []bool{false, true} {
			b.Run(fmt.Sprintf("sequences=%d/overlap=%t", n, overlap), func(b *testing.B) {
				s := newBench(b, &nothingness{}, n, overlap)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := s.turn(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkQueuedStep is what a decode step of 256 sequences costs while so many requests wait for a place.
func BenchmarkQueuedStep(b *testing.B) {
	for _, queued := range []int{0, 1000, 10_000} {
		b.Run(fmt.Sprintf("queued=%d", queued), func(b *testing.B) {
			s := newBench(b, &nothingness{}, 256, true)
			for i := range queued {
				r := &request.Request{RID: fmt.Sprint("q", i), PromptIDs: testPrompt(100, i), Sampling: request.Sampling{MaxNewTokens: 100, IgnoreEOS: true}}
				if err := s.Submit(r, dropped{}); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := s.turn(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.turn(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// device takes a known time for a step and keeps no CPU from others meanwhile, as a device does that is none.
type device struct {
	nothingness
	busy time.Duration
}

func (d *device) Execute(ctx context.Context, rows []Row, layerDone func(int)) ([]Sampled, error) {
	for end := time.Now().Add(d.busy); time.Now().Before(end); {
		runtime.Gosched()
	}
	return d.nothingness.Execute(ctx, rows, layerDone)
}

// BenchmarkOverlap compares decode steps of 256 sequences on a device of known cost with and without overlap, in turns:
// on÷off is how long the one takes for 1 of the other, ideal is the device's time for 1 of the other.
func BenchmarkOverlap(b *testing.B) {
	for _, busy := range []time.Duration{100 * time.Microsecond, 500 * time.Microsecond} {
		b.Run(busy.String(), func(b *testing.B) {
			off, on := newBench(b, &device{busy: busy}, 256, false), newBench(b, &device{busy: busy}, 256, true)
			const steps = 50
			var took [2]time.Duration
			rounds := 0
			for b.Loop() {
				for i, s := range []*Scheduler{off, on} {
					began := time.Now()
					for range steps {
						if _, err := s.turn(); err != nil {
							b.Fatal(err)
						}
					}
					took[i] += time.Since(began)
				}
				rounds++
			}
			n := time.Duration(rounds * steps)
			b.ReportMetric(float64((took[0] / n).Nanoseconds()), "off-ns/step")
			b.ReportMetric(float64((took[1] / n).Nanoseconds()), "on-ns/step")
			b.ReportMetric(float64(took[1])/float64(took[0]), "on÷off")
			b.ReportMetric(float64(busy*n)/float64(took[0]), "ideal")
		})
	}
}

// BenchmarkIntake is what a message costs in a burst of so many small requests, from the first turn until all are taken.
func BenchmarkIntake(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("burst=%d", n), func(b *testing.B) {
			burst := make([]message, n)
			for i := range burst {
				burst[i] = submitMsg{req: &request.Request{RID: fmt.Sprint(i), PromptIDs: testPrompt(100, i)}}
			}
			in := newInbox()
			b.ReportAllocs()
			for b.Loop() {
				for _, m := range burst {
					in.put(m)
				}
				for taken := 0; taken < n; {
					taken += len(in.take().taken)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/message")
		})
	}
}

// BenchmarkLoopTime compares decode steps of 256 sequences with what the account of the loop's time adds to each of them, in
// turns: its readings of the clock, alone. share is the part of a step that it is.
func BenchmarkLoopTime(b *testing.B) {
	for _, overlap := range []bool{false, true} {
		b.Run(fmt.Sprintf("overlap=%t", overlap), func(b *testing.B) {
			s := newBench(b, &nothingness{}, 256, overlap)
			var l loopTime
			l.start(ledger.System(), nil)
			const steps = 50
			var took [2]time.Duration
			rounds := 0
			b.ReportAllocs()
			for b.Loop() {
				began := time.Now()
				for range steps {
					if _, err := s.turn(); err != nil {
						b.Fatal(err)
					}
				}
				took[0] += time.Since(began)
				began = time.Now()
				for range steps {
					for _, stage := range []report.LoopStage{
						report.LoopReceive, report.LoopProcessInput, report.LoopQueue, report.LoopPick, report.LoopResult, report.LoopRun,
						report.LoopRun, report.LoopResult, report.LoopRun, report.LoopResult, report.LoopOther,
					} {
						l.enter(stage)
					}
					l.turn(false)
					l.flush(false)
				}
				took[1] += time.Since(began)
				rounds++
			}
			n := time.Duration(rounds * steps)
			b.ReportMetric(float64((took[0] / n).Nanoseconds()), "step-ns")
			b.ReportMetric(float64((took[1] / n).Nanoseconds()), "account-ns")
			b.ReportMetric(float64(took[1])/float64(took[0]), "share")
		})
	}
}

// BenchmarkAudit is what the books add to a report: while 256 sequences run and 10,000 wait, and while 16 prompts of 100,000 tokens
// are computed in chunks, with a window of 1,024.
func BenchmarkAudit(b *testing.B) {
	b.Run("queued", func(b *testing.B) {
		s := newBench(b, &nothingness{}, 256, true)
		for i := range 10_000 {
			r := &request.Request{RID: fmt.Sprint("q", i), PromptIDs: testPrompt(100, i), Sampling: request.Sampling{MaxNewTokens: 100, IgnoreEOS: true}}
			if err := s.Submit(r, dropped{}); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := s.turn(); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			s.audit()
		}
	})
	b.Run("window", func(b *testing.B) {
		cfg := testConfig(Unified, 16, 1<<24)
		cfg.MaxRunning, cfg.ChunkTokens, cfg.MaxPrefillTokens = 16, 256, 16*256
		slidingWindow(&cfg, 1024, 1<<20)
		s, err := New(cfg, Deps{Executor: &nothingness{}, Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
		if err != nil {
			b.Fatal(err)
		}
		begin(b, s)
		for i := range 16 {
			r := &request.Request{RID: fmt.Sprint(i), PromptIDs: testPrompt(100_000, i), Sampling: request.Sampling{MaxNewTokens: 100, IgnoreEOS: true}}
			if err := s.Submit(r, dropped{}); err != nil {
				b.Fatal(err)
			}
		}
		for range 80 {
			if _, err := s.turn(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			s.audit()
		}
	})
}
