package bench

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"
)

// Alternation says how two servers take turns.
type Alternation string

const (
	// ByRequest sends each request of the plan to both servers, side by side, and swaps the order each time.
	ByRequest Alternation = "request"
	// ByRound sends a round of requests to one server and then the same to the other, and swaps the order each round: while
	// one works the other is idle, as it must be when both share a machine and throughput is compared.
	ByRound Alternation = "round"
)

// Run is one measurement. It is used once.
type Run struct {
	Load    Load
	Clients []*Client // one, or two that take turns

	Alternate   Alternation // with two clients
	RoundLength int         // requests of a round

	mu     sync.Mutex
	status Status
}

// Status is how far a run has come.
type Status struct {
	Planned  int           // requests; 0: bounded by time
	Duration time.Duration // 0: bounded by requests
	Started  time.Time     // zero: not yet

	InFlight, Completed, Cancelled, Failed int
	OutputTokens                           int // of requests that are over
}

// Done counts the requests that are over.
func (s Status) Done() int { return s.Completed + s.Cancelled + s.Failed }

// Result is all that was seen.
type Result struct {
	Records []Record
	// Busy is, for each server, the time in which requests were sent to it or awaited.
	Busy        []time.Duration
	Interrupted bool // the context ended before the run
}

// job is a request for one server.
type job struct {
	Request
	server, round int
}

// phase is a part of the run that begins when the one before is over.
type phase struct {
	jobs    iter.Seq[job]
	servers []int // those that work in it
}

// planBlock is how many requests are planned at once where their number is not known.
const planBlock = 256

// Status may be called at any time, from any goroutine.
func (r *Run) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// Do runs the load until its bounds or the end of the context, and waits for every request that was sent; the end of the
// context interrupts them.
func (r *Run) Do(ctx context.Context) Result {
	start := time.Now()
	r.mu.Lock()
	r.status = Status{Planned: r.Load.Requests * len(r.Clients), Duration: r.Load.Duration, Started: start}
	r.mu.Unlock()
	result := Result{Busy: make([]time.Duration, len(r.Clients))}
	for p := range r.phases() {
		if ctx.Err() != nil || r.over(start) {
			break
		}
		began := time.Now()
		records := r.runPhase(ctx, p, start)
		for _, server := range p.servers {
			result.Busy[server] += time.Since(began)
		}
		result.Records = append(result.Records, records...)
	}
	slices.SortStableFunc(result.Records, func(a, b Record) int { return int(a.Start - b.Start) })
	result.Interrupted = ctx.Err() != nil
	return result
}

// over reports whether the time in which requests may start has passed.
func (r *Run) over(start time.Time) bool {
	return r.Load.Duration > 0 && time.Since(start) >= r.Load.Duration
}

// phases cuts the plan.
func (r *Run) phases() iter.Seq[phase] {
	if len(r.Clients) == 2 && r.Alternate == ByRound {
		return r.rounds
	}
	servers := make([]int, len(r.Clients))
	for i := range servers {
		servers[i] = i
	}
	jobs := r.single
	if len(r.Clients) == 2 {
		jobs = r.pairs
	}
	return func(yield func(phase) bool) { yield(phase{jobs: jobs, servers: servers}) }
}

// requests gives the whole plan in order. An open loop is planned at once, for its times add up.
func (r *Run) requests(yield func(Request) bool) {
	block := planBlock
	if r.Load.Open() {
		block = 1 << 62
	}
	for from := 0; ; from += block {
		list := Plan(r.Load, from, from+block)
		for _, request := range list {
			if !yield(request) {
				return
			}
		}
		if len(list) < block {
			return
		}
	}
}

func (r *Run) single(yield func(job) bool) {
	for request := range r.requests {
		if !yield(job{Request: request}) {
			return
		}
	}
}

// pairs gives each request to both servers: the first one first in even pairs. In an open loop the second of a pair comes
// half a gap later, so that each server gets the rate of the load.
func (r *Run) pairs(yield func(job) bool) {
	pair := func(request, next Request) bool {
		first := request.Index % 2
		second := request
		second.At += (next.At - request.At) / 2
		return yield(job{Request: request, server: first, round: request.Index}) &&
			yield(job{Request: second, server: 1 - first, round: request.Index})
	}
	var held *Request
	for request := range r.requests {
		if held != nil && !pair(*held, request) {
			return
		}
		held = &request
	}
	if held != nil {
		pair(*held, *held)
	}
}

// rounds gives each round to one server and then to the other; times count from the round's first request.
func (r *Run) rounds(yield func(phase) bool) {
	next, stop := iter.Pull(iter.Seq[Request](r.requests))
	defer stop()
	for round := 0; ; round++ {
		var list []Request
		for len(list) < r.RoundLength {
			request, ok := next()
			if !ok {
				break
			}
			list = append(list, request)
		}
		if len(list) == 0 {
			return
		}
		for turn := range 2 {
			server := (round + turn) % 2
			jobs := func(yield func(job) bool) {
				for _, request := range list {
					request.At -= list[0].At
					if !yield(job{Request: request, server: server, round: round}) {
						return
					}
				}
			}
			if !yield(phase{jobs: jobs, servers: []int{server}}) {
				return
			}
		}
	}
}

// runPhase runs the jobs of a phase to their end.
func (r *Run) runPhase(ctx context.Context, p phase, epoch time.Time) []Record {
	var mu sync.Mutex
	var records []Record
	do := func(j job, body []byte, due time.Time) {
		r.began()
		record := r.Clients[j.server].do(ctx, j.Request, body, due, epoch)
		record.Server, record.Round = j.server, j.round
		r.ended(&record)
		mu.Lock()
		defer mu.Unlock()
		records = append(records, record)
	}
	if r.Load.Open() {
		r.open(ctx, p, do)
	} else {
		r.closed(ctx, p, epoch, do)
	}
	return records
}

// open starts each job at its time.
func (r *Run) open(ctx context.Context, p phase, do func(job, []byte, time.Time)) {
	var group sync.WaitGroup
	defer group.Wait()
	var free chan struct{} // nil: no bound
	if r.Load.Concurrency > 0 {
		free = make(chan struct{}, r.Load.Concurrency)
	}
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for j := range p.jobs {
		body := r.prepare(j)
		due := began.Add(j.At)
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if free != nil {
			select {
			case <-ctx.Done():
				return
			case free <- struct{}{}:
			}
		}
		group.Go(func() {
			do(j, body, due)
			if free != nil {
				<-free
			}
		})
	}
}

// closed keeps so many jobs in flight: each worker takes the next one when its last is over.
func (r *Run) closed(ctx context.Context, p phase, epoch time.Time, do func(job, []byte, time.Time)) {
	next, stop := iter.Pull(p.jobs)
	defer stop()
	var mu sync.Mutex
	take := func() (job, bool) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil || r.over(epoch) {
			return job{}, false
		}
		return next()
	}
	var group sync.WaitGroup
	for range r.Load.Concurrency {
		group.Go(func() {
			for j, ok := take(); ok; j, ok = take() {
				body := r.prepare(j)
				do(j, body, time.Now())
			}
		})
	}
	group.Wait()
}

// prepare writes the body of a job. That can't fail: what goes in came from JSON or is plain data.
func (r *Run) prepare(j job) []byte {
	body, err := r.Clients[j.server].prepare(j.Request)
	if err != nil {
		panic(fmt.Sprintf("bench: write request %d: %v", j.Index, err))
	}
	return body
}

func (r *Run) began() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.InFlight++
}

func (r *Run) ended(record *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.InFlight--
	r.status.OutputTokens += record.OutputTokens
	switch record.Outcome {
	case Completed:
		r.status.Completed++
	case Cancelled:
		r.status.Cancelled++
	case Failed:
		r.status.Failed++
	case Interrupted:
	}
}
