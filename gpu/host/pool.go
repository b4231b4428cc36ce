package host

import (
	"sync"
	"sync/atomic"
)

// pool shares loops among a fixed set of goroutines, the caller being one of them. One loop runs at a time.
type pool struct {
	threads int
	jobs    chan *job // nil when there is no helper
	helpers sync.WaitGroup
	job     job // reused: run returns only when no helper holds it
}

// job is one loop over [0, n), handed out in pieces of grain by next.
type job struct {
	body  func(from, to int)
	n     int
	grain int
	next  atomic.Int64
	open  sync.WaitGroup // helpers that were sent the job and aren't done with it
	fault atomic.Pointer[fault]
}

// fault is the first panic of a body.
type fault struct{ value any }

func newPool(threads int) *pool {
	p := &pool{threads: threads}
	if threads == 1 {
		return p
	}
	p.jobs = make(chan *job, threads-1)
	for range threads - 1 {
		p.helpers.Go(func() {
			for j := range p.jobs {
				j.work()
				j.open.Done()
			}
		})
	}
	return p
}

// run calls body for pieces [from, to) that cover [0, n) once, each of grain except the last. Pieces run at the same
// time and in any order. A panic of body comes out of run.
func (p *pool) run(n, grain int, body func(from, to int)) {
	pieces := (n + grain - 1) / grain
	helpers := min(p.threads, pieces) - 1
	if helpers < 1 {
		if n > 0 {
			body(0, n)
		}
		return
	}
	j := &p.job
	j.body, j.n, j.grain = body, n, grain
	j.next.Store(0)
	j.fault.Store(nil)
	j.open.Add(helpers)
	for range helpers {
		p.jobs <- j
	}
	j.work()
	j.open.Wait()
	j.body = nil
	if f := j.fault.Load(); f != nil {
		panic(f.value)
	}
}

func (j *job) work() {
	defer func() {
		if value := recover(); value != nil {
			j.fault.CompareAndSwap(nil, &fault{value})
			j.next.Store(int64(j.n)) // nobody takes another piece
		}
	}()
	for {
		from := int(j.next.Add(int64(j.grain))) - j.grain
		if from >= j.n {
			return
		}
		j.body(from, min(from+j.grain, j.n))
	}
}

func (p *pool) close() {
	if p.jobs != nil {
		close(p.jobs)
		p.helpers.Wait()
	}
}
