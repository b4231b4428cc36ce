package runner

import (
	"fmt"

	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/gpu"
)

// picker turns the logits of a step, which come in slices, into what its rows sample and what they want to know of logprobs.
type picker struct {
	r       *Runner
	rows    []scheduler.Row // the token of a Future row is in its Tokens by now, and still not in its History
	sampled []scheduler.Sampled
	wanted  []wantedBy // of the logits that are still to come, in their order
}

// wantedBy says what the logits after one token are for.
type wantedBy struct {
	row      int
	position int // of the prompt whose logprobs the row wants; 0: the row samples
}

// slice takes logits [rows, vocab] of the next wanted tokens.
func (p *picker) slice(logits gpu.Tensor) error {
	if cap(p.r.logits) < logits.Len() {
		p.r.logits = make([]float32, logits.Len())
	}
	all := p.r.logits[:logits.Len()]
	if err := p.r.device.Read(gpu.Bytes(all), logits); err != nil {
		return fmt.Errorf("read logits: %w", err)
	}
	for range logits.Rows {
		if err := p.take(p.wanted[0], all[:logits.Cols]); err != nil {
			return err
		}
		p.wanted, all = p.wanted[1:], all[logits.Cols:]
	}
	return nil
}

// take takes the logits, [vocab], of one wanted token.
func (p *picker) take(by wantedBy, logits []float32) error {
	row, sampled, sampler := p.rows[by.row], &p.sampled[by.row], &p.r.sampler
	if by.position > 0 {
		if err := sampler.Observe(logits); err != nil {
			return fmt.Errorf("logprobs of row %d at position %d: %w", by.row, by.position, err)
		}
		l := logprobs(sampled)
		l.Prompt = append(l.Prompt, sampler.Logprobs(row.Logprobs, row.History[by.position]))
		return nil
	}
	token, logprob, err := sampler.Sample(logits, p.r.input(row))
	if err != nil {
		return fmt.Errorf("sample row %d at position %d: %w", by.row, row.Start+len(row.Tokens), err)
	}
	sampled.Token, sampled.Logprob = token, logprob
	if row.Logprobs != nil {
		l := sampler.Logprobs(row.Logprobs, token)
		logprobs(sampled).Sampled = &l
	}
	return nil
}

// logprobs gives s.Logprobs, made where it is nil.
func logprobs(s *scheduler.Sampled) *scheduler.Logprobs {
	if s.Logprobs == nil {
		s.Logprobs = &scheduler.Logprobs{}
	}
	return s.Logprobs
}
