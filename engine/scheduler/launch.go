package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// launched is a step on its way: written by launch, then the executor's goroutine's, and the loop's again once done has a
// value. It is reused.
type launched struct {
	number int64 // 1 for the first step of a scheduler
	kind   batchKind
	items  []item

	rows    []Row
	copies  [][]int32 // of the rows' page tables, to see that nobody changes them; with checks only
	windows []int32   // backs the rows' window tables
	sends   []sending // what leaves layer by layer

	done           chan struct{} // capacity 1
	started, ended ledger.Instant
	busy           int64                                    // nanoseconds for which the device computed it; 0 without a device timer
	tokens         func(context.Context) ([]Sampled, error) // of a pipeline stage; else nil
	sampled        []Sampled                                // one per item
	found          hits                                     // what the sequences that begin with it found in the cache
	decoded        int                                      // decode items whose sequence had not ended meanwhile
	err            error
}

// sending is the pages [from, to) of one sequence that a step makes final.
type sending struct {
	to     Sending
	from   int // ordinal of pages[0]
	pages  []int32
	window []int32 // of sliding-window layers; nil without them
}

// flight is the steps that are launched and not taken.
//
// Invariants: over <= last; steps are numbered over+1 to last, oldest first; len(steps) <= depth.
type flight struct {
	steps  []*launched
	spare  []*launched
	last   int64    // number of the newest step
	newest struct { // what it was, for errors
		kind  batchKind
		items int
	}
	over int64 // steps up to this one touch no page any more

	ctx  context.Context // of Execute and of what ranks do together
	work chan *launched  // to the executor's goroutine
}

// start begins to execute what is launched, in that order, on a goroutine of its own. stop ends it once the steps in
// flight are over; their results are dropped.
func (s *Scheduler) start(ctx context.Context) (stop func()) {
	f := &s.flight
	ctx = s.steady(ctx)
	f.ctx, f.work = ctx, make(chan *launched, s.cfg.depth())
	s.time.start(s.deps.Clock, s.deps.CPU)
	var wg sync.WaitGroup
	wg.Go(func() {
		var failed error // an executor that failed computes nothing any more
		for st := range f.work {
			if st.err = failed; failed == nil {
				s.execute(ctx, st)
				failed = st.err
			}
			s.time.computing.Add(-1)
			st.done <- struct{}{}
		}
	})
	return func() {
		close(f.work)
		wg.Wait()
		f.steps, f.over = nil, f.last
	}
}

// execute runs on the executor's goroutine.
func (s *Scheduler) execute(ctx context.Context, st *launched) {
	var layerDone func(layer int)
	if len(st.sends) > 0 {
		layerDone = func(layer int) {
			for _, x := range st.sends {
				pages := x.pages
				if layer < len(s.cfg.Windowed) && s.cfg.Windowed[layer] {
					pages = x.window
				}
				for i, page := range pages {
					if page != noPage {
						x.to.Send(layer, x.from+i, page)
					}
				}
			}
		}
	}
	busy := int64(0)
	if s.deps.Busy != nil {
		busy = s.deps.Busy()
	}
	st.started = s.deps.Clock.Now()
	if stage, ok := s.deps.Executor.(Stage); ok && s.cfg.Stages > 1 {
		st.tokens, st.err = stage.Begin(ctx, st.rows, layerDone)
	} else {
		st.sampled, st.err = s.deps.Executor.Execute(ctx, st.rows, layerDone)
	}
	st.ended = s.deps.Clock.Now()
	if s.deps.Busy != nil {
		st.busy = s.deps.Busy() - busy
	}
}

// launch gives the batch to the executor and returns. From now on its sequences count what it computes as launched. The step
// reads tokens, pages and masks of the sequences in place: their elements don't change any more while it is under way, and
// who replaces a page makes a new table.
func (s *Scheduler) launch(b batch) {
	if b.kind == noBatch {
		return
	}
	began := s.traceStart()
	f := &s.flight
	st := s.spareStep()
	f.last++
	f.newest.kind, f.newest.items = b.kind, len(b.items)
	st.number, st.kind, st.items = f.last, b.kind, append(st.items[:0], b.items...)
	st.found = hits{}
	if b.kind.prefills() {
		st.found, s.admitted = s.admitted, hits{}
	}
	s.digest.note(notedLaunch, uint64(b.kind), uint64(len(b.items)))
	for at := range st.items {
		i := &st.items[at]
		q := i.seq
		i.sample = i.last()
		s.cover(q, q.launched, q.launched+i.n)
		row := Row{
			Start:        q.launched,
			Pages:        q.pages[:len(q.pages):len(q.pages)],
			Sample:       i.sample,
			Params:       &q.req.Sampling,
			Seed:         q.seed,
			Index:        q.generated() + q.future,
			History:      q.tokens[:len(q.tokens):len(q.tokens)],
			PromptTokens: q.prompt,
			Logprobs:     q.logprobs.want,
		}
		if q.launched < len(q.tokens) {
			row.Tokens = q.tokens[q.launched : q.launched+i.n]
		} else {
			row.Future, row.PreviousRow = true, q.row
		}
		if i.sample {
			row.Mask = q.mask
			if row.Index < q.req.Sampling.MinNewTokens {
				row.Forbidden = s.enders(q)
			}
		}
		if s.windowed() {
			from := len(st.windows) // a copy: the window slides while the step is under way
			st.windows = append(st.windows, q.window...)
			row.Window = st.windows[from:len(st.windows):len(st.windows)]
		}
		st.rows = append(st.rows, row)
		if !i.decode {
			st.found.add(i.n, 0, q.retractions > 0)
		}
		if s.checking() {
			st.copies = append(st.copies, slices.Clone(row.Pages))
		}
		q.launched += i.n
		if i.sample {
			q.future++
		}
		q.step, q.row = st.number, at
		s.digest.note(uint64(q.arrival), uint64(row.Start), uint64(i.n))
		if q.sending != nil {
			if to := s.sendable(q); to > q.sent {
				x := sending{to: q.sending, from: q.sent, pages: row.Pages[q.sent:to]}
				if s.windowed() {
					x.window = s.wantedWindow(q, row.Window, to)
				}
				st.sends = append(st.sends, x)
				q.sent = to
			}
		}
	}
	f.steps = append(f.steps, st)
	s.steps.prefilled = b.kind.prefills()
	s.traceLaunch(st, began)
	s.time.computing.Add(1)
	f.work <- st
}

// wantedWindow is the window pages of ordinals [q.sent, to) that the token behind q's prompt sees.
func (s *Scheduler) wantedWindow(q *sequence, window []int32, to int) []int32 {
	first := s.firstSeen(q.prompt)
	if first <= q.sent {
		return window[q.sent:to]
	}
	wanted := slices.Clone(window[q.sent:to])
	forget(wanted[:min(first, to)-q.sent])
	return wanted
}

// sendable is the number of q's pages whose KV is final once all that is launched is computed.
func (s *Scheduler) sendable(q *sequence) int {
	if q.launched == len(q.tokens) {
		return s.pool.Pages(q.launched)
	}
	return q.launched / s.cfg.PageSize
}

func (s *Scheduler) spareStep() *launched {
	f := &s.flight
	if n := len(f.spare); n > 0 {
		st := f.spare[n-1]
		f.spare = f.spare[:n-1]
		return st
	}
	return &launched{done: make(chan struct{}, 1)}
}

// take waits for the oldest step in flight and processes its results.
func (s *Scheduler) take() error {
	f := &s.flight
	st := f.steps[0]
	around := s.time.stage
	s.time.enter(report.LoopRun)
	defer s.time.enter(around)
	<-st.done
	if st.err == nil && st.tokens != nil {
		st.sampled, st.err = st.tokens(f.ctx)
		st.ended = s.deps.Clock.Now()
	}
	if st.err != nil {
		// It stays in flight: its pages are given to nobody.
		st.done <- struct{}{}
		return fmt.Errorf("compute %s batch of %d: %w", st.kind, len(st.items), st.err)
	}
	s.time.enter(report.LoopResult)
	f.steps = slices.Delete(f.steps, 0, 1)
	f.over = st.number
	for at, pages := range st.copies {
		if !slices.Equal(pages, st.rows[at].Pages) {
			return fmt.Errorf("scheduler: the page table of request %s was %v at the launch of a step and is %v at its end",
				st.items[at].seq.req.RID, pages, st.rows[at].Pages)
		}
	}
	s.process(st)
	s.settleHeld()
	s.report(st)

	clear(st.rows)
	clear(st.items)
	clear(st.sends)
	st.rows, st.items, st.sends, st.copies, st.windows = st.rows[:0], st.items[:0], st.sends[:0], nil, st.windows[:0]
	st.sampled, st.tokens = nil, nil
	f.spare = append(f.spare, st)
	s.progress.reach(f.over)
	return nil
}

// settle takes the results of all steps in flight: for decisions that need to know every token, or to have every page to
// themselves.
func (s *Scheduler) settle() error {
	for len(s.flight.steps) > 0 {
		if err := s.take(); err != nil {
			return err
		}
	}
	return nil
}
