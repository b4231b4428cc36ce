package runner

import (
	"context"
	"fmt"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/sampling"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/gpu"
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
	logits, err := r.model.Forward(input)
	if err != nil {
		return nil, err
	}
	if !r.samples() {
		return nil, nil
	}
	sampled, err := r.sample(rows, logits)
	if err != nil {
		return nil, err
	}
	return sampled, r.tell(sampled)
}

// sample picks a token from the logits of each row that samples, and tells what the rows want to know of logprobs. logits
// are [wanted, vocab], in the order of step.wanted. The token of a Future row is in its Tokens by now, and still not in its
// History.
func (r *Runner) sample(rows []scheduler.Row, logits gpu.Tensor) ([]scheduler.Sampled, error) {
	sampled := make([]scheduler.Sampled, len(rows))
	if logits.Buf == nil {
		return sampled, nil
	}
	if cap(r.logits) < logits.Len() {
		r.logits = make([]float32, logits.Len())
	}
	all := r.logits[:logits.Len()]
	if err := r.device.Read(gpu.Bytes(all), logits); err != nil {
		return nil, fmt.Errorf("read logits: %w", err)
	}
	next := func() []float32 {
		one := all[:logits.Cols]
		all = all[logits.Cols:]
		return one
	}
	for i, row := range rows {
		var prompt []request.TokenLogprobs
		for position, end := promptLogits(row); position < end; position++ {
			if err := r.sampler.Observe(next()); err != nil {
				return nil, fmt.Errorf("logprobs of row %d at position %d: %w", i, position, err)
			}
			prompt = append(prompt, r.sampler.Logprobs(row.Logprobs, row.History[position]))
		}
		if row.Sample {
			token, logprob, err := r.sampler.Sample(next(), r.input(row))
			if err != nil {
				return nil, fmt.Errorf("sample row %d at position %d: %w", i, row.Start+len(row.Tokens), err)
			}
			sampled[i].Token, sampled[i].Logprob = token, logprob
		}
		if row.Logprobs == nil || !row.Sample && len(prompt) == 0 {
			continue
		}
		sampled[i].Logprobs = &scheduler.Logprobs{Prompt: prompt}
		if row.Sample {
			l := r.sampler.Logprobs(row.Logprobs, sampled[i].Token)
			sampled[i].Logprobs.Sampled = &l
		}
	}
	return sampled, nil
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
