package scheduler

import (
	"context"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// batchKind says what a step computes.
type batchKind uint8

const (
	noBatch      batchKind = iota // nothing to compute
	prefillBatch                  // chunks of sequences in prefilling
	decodeBatch                   // the next token of every running sequence
)

func (k batchKind) String() string {
	switch k {
	case prefillBatch:
		return "prefill"
	case decodeBatch:
		return "decode"
	default:
		return "no"
	}
}

// batch is the decision of a step: what is computed, in this order. Its items are valid for the step.
type batch struct {
	kind  batchKind
	items []item
}

// item is the share of one sequence: tokens [computed, computed+n).
type item struct {
	seq *sequence
	n   int
}

// last reports whether the item computes the sequence's last token, so that the next one is sampled.
func (i item) last() bool { return i.seq.computed+i.n == len(i.seq.tokens) }

// tokens is the number of tokens that the batch computes.
func (b batch) tokens() int {
	n := 0
	for _, i := range b.items {
		n += i.n
	}
	return n
}

// result is what came out of a forward.
type result struct {
	sampled []Sampled      // one per item
	ended   ledger.Instant // when the forward was over
}

// scratch holds slices that are reused from step to step.
type scratch struct {
	all   []*sequence
	items []item
	rows  []Row
}

// forward computes the batch. Where sequences are handed over, pages leave layer by layer while it computes.
func (s *Scheduler) forward(ctx context.Context, b batch) (result, error) {
	if b.kind == noBatch {
		return result{ended: s.deps.Clock.Now()}, nil
	}
	rows := s.scratch.rows[:0]
	for _, i := range b.items {
		q := i.seq
		rows = append(rows, Row{
			Tokens: q.tokens[q.computed : q.computed+i.n],
			Start:  q.computed,
			Pages:  q.pages,
			Sample: i.last(),
			Params: &q.req.Sampling,
			Seed:   q.seed,
			Index:  q.generated(),
		})
	}
	s.scratch.rows = rows

	started := s.deps.Clock.Now()
	sampled, err := s.deps.Executor.Execute(ctx, rows, s.layerDone(b))
	clear(rows)
	if err != nil {
		return result{}, err
	}
	r := result{sampled: sampled, ended: s.deps.Clock.Now()}
	if b.kind == prefillBatch {
		s.steps.prefillNanos += r.ended.Sub(started)
		s.steps.prefillTokens += int64(b.tokens())
	}
	return r, nil
}

// layerDone gives the function that hands pages over after each layer: those that this step completes, and the last,
// partial one with the end of the prompt. It is nil when nothing leaves.
func (s *Scheduler) layerDone(b batch) func(layer int) {
	if s.cfg.Role != Prefill {
		return nil
	}
	return func(layer int) {
		for _, i := range b.items {
			q := i.seq
			if q.sending == nil {
				continue
			}
			for ordinal := q.sent; ordinal < s.sendable(i); ordinal++ {
				q.sending.Send(layer, ordinal, q.pages[ordinal])
			}
		}
	}
}

// sendable is the number of pages whose KV is final once the item is computed.
func (s *Scheduler) sendable(i item) int {
	if i.last() {
		return s.pool.Pages(len(i.seq.tokens))
	}
	return (i.seq.computed + i.n) / s.cfg.PageSize
}
