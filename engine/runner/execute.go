package runner

import (
	"context"
	"fmt"

	"github.com/sluice-dev/sluice/engine/sampling"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

var _ scheduler.Stage = (*Runner)(nil)

// Execute computes rows in one forward pass; see scheduler.Executor. A row that isn't whole gives a *RowError before
// anything is written. The context is looked at once, before the pass: a pass that has begun is finished, so that pages
// are never half written. All ranks of a world execute the same rows; an error of one ends the world.
func (r *Runner) Execute(ctx context.Context, rows []scheduler.Row, layerDone func(layer int)) ([]scheduler.Sampled, error) {
	tokens, err := r.Begin(ctx, rows, layerDone)
	if err != nil {
		return nil, err
	}
	return tokens(ctx)
}

// Begin computes this rank's part of a step; see scheduler.Stage. In a world of one stage the tokens are there when it
// returns, and a row of the next step may be Future.
func (r *Runner) Begin(ctx context.Context, rows []scheduler.Row, layerDone func(layer int)) (tokens func(context.Context) ([]scheduler.Sampled, error), err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("execute step: %w", err)
			r.abort(err)
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rows, err = r.future.resolve(rows)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return func(context.Context) ([]scheduler.Sampled, error) { return nil, nil }, nil
	}
	sampled, err := r.forward(rows, layerDone)
	if err != nil {
		return nil, err
	}
	if sampled == nil && r.world.Place().PPSize > 1 {
		n := len(rows)
		return func(ctx context.Context) ([]scheduler.Sampled, error) {
			sampled, err := r.hear(ctx, n)
			if err != nil {
				err = fmt.Errorf("execute step: %w", err)
				r.abort(err)
				return nil, err
			}
			return sampled, nil
		}, nil
	}
	if sampled == nil {
		if sampled, err = r.hear(context.Background(), len(rows)); err != nil {
			return nil, err
		}
	}
	if r.world == nil || r.world.Place().PPSize == 1 {
		r.future.remember(rows, sampled)
	}
	return func(context.Context) ([]scheduler.Sampled, error) { return sampled, nil }, nil
}

// forward runs the pass and, on the rank that samples, samples and tells all others; else it gives nil.
func (r *Runner) forward(rows []scheduler.Row, layerDone func(layer int)) ([]scheduler.Sampled, error) {
	if err := r.checker.check(rows, r.info); err != nil {
		return nil, err
	}
	r.step.flatten(rows, r.info)
	input, err := r.step.upload(r.device)
	if err != nil {
		return nil, err
	}
	input.At.PageSize, input.At.KVHeads, input.At.HeadDim = r.info.PageSize, r.info.KVHeads, r.info.HeadDim
	input.KV, input.LayerDone = r.pages.layers, layerDone
	if !r.samples() {
		return nil, r.model.Forward(input)
	}
	p := picker{r: r, rows: rows, sampled: make([]scheduler.Sampled, len(rows)), wanted: r.step.wantedBy}
	input.Logits = p.slice
	if err := r.model.Forward(input); err != nil {
		return nil, err
	}
	return p.sampled, r.tell(p.sampled)
}

// input is what the row's token depends on besides the logits.
func (r *Runner) input(row scheduler.Row) sampling.Input {
	in := sampling.Input{
		Params: row.Params, Seed: row.Seed, Index: row.Index, History: row.History, PromptTokens: row.PromptTokens, Mask: row.Mask,
		Forbidden: row.Forbidden,
	}
	if row.Future && sampling.UsesHistory(row.Params) {
		r.history = append(append(r.history[:0], row.History...), row.Tokens...)
		in.History = r.history
	}
	return in
}
