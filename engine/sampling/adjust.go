package sampling

import (
	"math"

	"github.com/sluice-dev/sluice/engine/request"
)

// Input is what a token depends on besides the logits.
type Input struct {
	Params *request.Sampling
	Seed   uint64
	Index  int // number of tokens generated before this one

	// History is the sequence so far, the prompt's PromptTokens first. Only penalties look at it.
	History      []int32
	PromptTokens int // 0 <= PromptTokens <= len(History)

	// Mask has a bit for each token that may come, bit t%64 of word t/64; nil: all may. [ceil(vocab/64)]
	Mask []uint64
}

// adjusts reports whether the logits are changed before a token is picked.
func (in Input) adjusts() bool {
	return in.Mask != nil || len(in.Params.LogitBias) > 0 || UsesHistory(in.Params)
}

// UsesHistory reports whether tokens depend on those before them through penalties.
func UsesHistory(p *request.Sampling) bool {
	return p.FrequencyPenalty != 0 || p.PresencePenalty != 0 || p.RepetitionPenalty > 0 && p.RepetitionPenalty != 1
}

func (in Input) repeats() bool {
	return in.Params.RepetitionPenalty > 0 && in.Params.RepetitionPenalty != 1
}

// adjust gives the logits that a token is picked by: logits itself, or the sampler's copy with, in this order,
//
//	the repetition penalty r of each token in prompt or answer: positive logits / r, others * r
//	the frequency penalty for each time that a token is in the answer, and the presence penalty once, subtracted
//	the biases, added
//	all tokens that the mask does not have, negative infinity
func (s *Sampler) adjust(logits []float32, in Input) []float32 {
	if !in.adjusts() {
		return logits
	}
	s.adjusted = append(s.adjusted[:0], logits...)
	out, p := s.adjusted, in.Params
	if in.repeats() {
		s.count(in.History, len(logits))
		for _, token := range s.seen {
			if out[token] > 0 {
				out[token] /= p.RepetitionPenalty
			} else {
				out[token] *= p.RepetitionPenalty
			}
		}
	}
	if p.FrequencyPenalty != 0 || p.PresencePenalty != 0 {
		s.count(in.History[in.PromptTokens:], len(logits))
		for _, token := range s.seen {
			out[token] -= p.FrequencyPenalty*float32(s.counts[token]) + p.PresencePenalty
		}
	}
	for _, bias := range p.LogitBias {
		if int(bias.Token) < len(out) {
			out[bias.Token] += bias.Bias
		}
	}
	if in.Mask != nil {
		for t := range out {
			if in.Mask[t/64]>>(t%64)&1 == 0 {
				out[t] = float32(math.Inf(-1))
			}
		}
	}
	return out
}

// count sets counts of tokens, and seen to those of at least one, in the order in which they first come.
func (s *Sampler) count(tokens []int32, vocab int) {
	for _, token := range s.seen {
		s.counts[token] = 0
	}
	s.seen = s.seen[:0]
	if len(s.counts) < vocab {
		s.counts = make([]int32, vocab)
	}
	for _, token := range tokens {
		if s.counts[token] == 0 {
			s.seen = append(s.seen, token)
		}
		s.counts[token]++
	}
}
