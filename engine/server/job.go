package server

import (
	"context"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/sluice-dev/sluice/engine/request"
)

// job is one client request: its sequences, in the order of the answer.
type job struct {
	id        string // the client request's own: aborting what begins with it ends all sequences
	sequences []*sequence
	streaming bool
}

// start hands all sequences of a request to the rank, or none.
func (s *Server) start(ctx context.Context, e *engine, id string, specs []sequenceSpec) (_ *job, err *apiError) {
	j, failed := &job{id: id, streaming: specs[0].streaming}, panicked()
	defer func() {
		if failed != nil { // also by a panic
			j.abandon(context.WithoutCancel(ctx))
			j.settle(failed)
		}
	}()
	for _, spec := range specs {
		q, err := s.submit(ctx, e, spec)
		if err != nil {
			failed = err
			return nil, err
		}
		j.sequences = append(j.sequences, q)
	}
	failed = nil
	return j, nil
}

func (j *job) abandon(ctx context.Context) {
	for _, q := range j.sequences {
		q.abandon(ctx)
	}
}

// settle ends in the books the sequences that have not ended there: in the error's outcome, or in their own.
func (j *job) settle(err *apiError) {
	for _, q := range j.sequences {
		q.settle(err)
	}
}

// stream calls each for every piece as it comes: in order for one sequence, in any order between them, never two at a
// time. It returns when all sequences have ended. The first failure ends the others and is returned; no piece follows it.
//
// Sequences of a request that has failed end in its outcome, except those whose stream had come to its end before. Those of
// one that is streamed are settled here, the others by who answers.
func (j *job) stream(ctx context.Context, each func(index int, p piece)) *apiError {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu    sync.Mutex
		first *apiError
		wait  sync.WaitGroup
	)
	take := func(index int, q *sequence) {
		p, err := q.next(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && first == nil {
			err = q.server.protect(func() { each(index, p) })
			if err == nil && p.finish != nil && j.streaming {
				q.settle(nil)
			}
		}
		if err != nil && first == nil {
			first = err
			cancel()
		}
	}
	run := func(index int, q *sequence) {
		for !q.ended {
			if err := q.server.protect(func() { take(index, q) }); err != nil {
				mu.Lock()
				if first == nil {
					first = err
				}
				mu.Unlock()
				cancel()
				q.abandon(ctx)
			}
		}
	}
	for i, q := range j.sequences[1:] {
		wait.Go(func() { run(i+1, q) })
	}
	run(0, j.sequences[0])
	wait.Wait()
	if j.streaming || first != nil {
		j.settle(first)
	}
	return first
}

// protect turns a panic of f, which may run outside the handler's goroutine, into an error.
func (s *Server) protect(f func()) (failed *apiError) {
	defer func() {
		if cause := recover(); cause != nil {
			s.log.Error("a request made the server panic", "panic", cause, "stack", string(debug.Stack()))
			failed = panicked()
		}
	}()
	f()
	return nil
}

// answer is a whole sequence.
type answer struct {
	text           strings.Builder
	ids            []int32
	logprobs       []request.TokenLogprobs // [len(ids)], when wanted
	promptLogprobs []request.TokenLogprobs // from WantLogprobs.PromptFrom on
	finish         *request.Finish
}

func (a *answer) add(p piece) {
	a.text.WriteString(p.text)
	a.ids = append(a.ids, p.ids...)
	a.logprobs = append(a.logprobs, p.logprobs...)
	a.promptLogprobs = append(a.promptLogprobs, p.promptLogprobs...)
	a.finish = p.finish
}

// collect waits for the whole answer.
func (j *job) collect(ctx context.Context) ([]answer, *apiError) {
	answers := make([]answer, len(j.sequences))
	err := j.stream(ctx, func(index int, p piece) { answers[index].add(p) })
	return answers, err
}
