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

	// Forbidden are tokens that may not come, unless nothing else may.
	Forbidden []int32
}

// adjusts reports whether the logits are changed before a token is picked.
func (in Input) adjusts() bool {
	return in.Mask != nil || len(in.Forbidden) > 0 || len(in.Params.LogitBias) > 0 || UsesHistory(in.Params)
}

// UsesHistory reports whether tokens depend on those before them through penalties.
func UsesHistory(p *request.Sampling) bool {
	return p.FrequencyPenalty != 0 || p.PresencePenalty != 0 || p.RepetitionPenalty > 0 && p.RepetitionPenalty != 1
}

// adjust gives the logits that a token is picked by: logits itself, or the sampler's copy with, in this order, which is
// SGLang's,
//
//	the frequency penalty for each time that a token is in the answer, and the presence penalty once, subtracted
//	the repetition penalty r of each token in the answer: positive logits / r, others * r
//	the biases, added
//	all tokens that the mask does not have, and the forbidden ones, negative infinity
//
// The prompt's tokens are not penalised. No finite logit becomes infinite but by the last rule.
func (s *Sampler) adjust(logits []float32, in Input) []float32 {
	if !in.adjusts() {
		return logits
	}
	s.adjusted = append(s.adjusted[:0], logits...)
	out, p := s.adjusted, in.Params
	if UsesHistory(p) {
		s.count(in.History[in.PromptTokens:], len(logits))
		for _, token := range s.seen {
			out[token] = clamp(out[token], penalise(out[token], s.counts[token], p))
		}
	}
	for _, bias := range p.LogitBias {
		if int(bias.Token) < len(out) {
			out[bias.Token] = clamp(out[bias.Token], out[bias.Token]+bias.Bias)
		}
	}
	if in.Mask != nil {
		cut(out, in.Mask)
	}
	if len(in.Forbidden) > 0 {
		s.forbid(out, in.Forbidden)
	}
	return out
}

// penalise gives the logit of a token that is count times in the answer, count >= 1.
func penalise(logit float32, count int32, p *request.Sampling) float32 {
	logit -= p.FrequencyPenalty*float32(count) + p.PresencePenalty
	switch r := p.RepetitionPenalty; {
	case r <= 0 || r == 1:
		return logit
	case logit > 0:
		return logit / r
	default:
		return logit * r
	}
}

// clamp gives after, or the finite number next to it when only before was finite.
func clamp(before, after float32) float32 {
	if math.IsInf(float64(before), 0) {
		return before
	}
	return max(-math.MaxFloat32, min(math.MaxFloat32, after))
}

var negativeInfinity = float32(math.Inf(-1))

// cut leaves the tokens of a mask.
func cut(out []float32, mask []uint64) {
	for from := 0; from < len(out); from += 64 {
		word := mask[from/64]
		if word == math.MaxUint64 {
			continue
		}
		for i := range out[from:min(from+64, len(out))] {
			if word>>i&1 == 0 {
				out[from+i] = negativeInfinity
			}
		}
	}
}

// forbid cuts tokens, unless these are all that are left.
func (s *Sampler) forbid(out []float32, tokens []int32) {
	s.spared = s.spared[:0]
	for _, token := range tokens {
		if token < 0 || int(token) >= len(out) {
			s.spared = append(s.spared, 0)
			continue
		}
		s.spared = append(s.spared, out[token])
		out[token] = negativeInfinity
	}
	for _, logit := range out {
		if logit != negativeInfinity {
			return
		}
	}
	for i := len(tokens) - 1; i >= 0; i-- { // backwards: the first of equal ones has the logit
		if token := tokens[i]; token >= 0 && int(token) < len(out) {
			out[token] = s.spared[i]
		}
	}
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
