package runner

import (
	"context"
	"fmt"

	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/gpu"
)

var _ scheduler.Executor = (*Runner)(nil)

// Execute computes rows in one forward pass; see scheduler.Executor. A row that isn't whole gives a *RowError before
// anything is written. The context is looked at once, before the pass: a pass that has begun is finished, so that pages
// are never half written.
func (r *Runner) Execute(ctx context.Context, rows []scheduler.Row, layerDone func(layer int)) ([]scheduler.Sampled, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("execute step: %w", err)
	}
	rows, err := r.future.resolve(rows)
	if err != nil {
		return nil, fmt.Errorf("execute step: %w", err)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	if err := r.checker.check(rows, r.info); err != nil {
		return nil, fmt.Errorf("execute step: %w", err)
	}
	r.step.flatten(rows, r.info.PageSize)
	input, err := r.step.upload(r.device)
	if err != nil {
		return nil, fmt.Errorf("execute step: %w", err)
	}
	c := r.model.Config()
	input.At.PageSize, input.At.KVHeads, input.At.HeadDim = r.info.PageSize, c.NumKVHeads, c.HeadDim
	input.KV, input.LayerDone = r.pages.layers, layerDone
	logits, err := r.model.Forward(input)
	if err != nil {
		return nil, fmt.Errorf("execute step: %w", err)
	}
	sampled, err := r.sample(rows, logits)
	if err != nil {
		return nil, fmt.Errorf("execute step: %w", err)
	}
	r.future.remember(rows, sampled)
	return sampled, nil
}

// sample picks a token from each wanted row of logits, [wanted, vocab]. The token of a Future row is in its Tokens by
// now, and still not in its History.
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
	for i, row := range rows {
		if !row.Sample {
			continue
		}
		token, logprob, err := r.sampler.Sample(all[:logits.Cols], row.Params, row.Seed, row.Index)
		if err != nil {
			return nil, fmt.Errorf("sample row %d at position %d: %w", i, row.Start+len(row.Tokens), err)
		}
		sampled[i] = scheduler.Sampled{Token: token, Logprob: logprob}
		all = all[logits.Cols:]
	}
	return sampled, nil
}
