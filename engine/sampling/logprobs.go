package sampling

import (
	"slices"

	"github.com/sluice-dev/sluice/engine/request"
)

// Logprobs tells what want asks about the position whose logits the last call of Sample or Observe had; token is the one
// that is there. Logprobs are those that Sample describes, so a token that the mask cuts has negative infinity. Tokens
// outside the vocabulary have it too.
func (s *Sampler) Logprobs(want *request.WantLogprobs, token int32) request.TokenLogprobs {
	l := request.TokenLogprobs{TokenLogprob: s.one(token)}
	if want.Top > 0 {
		for _, id := range s.likeliest(want.Top) {
			l.Top = append(l.Top, s.one(id))
		}
	}
	for _, id := range want.TokenIDs {
		l.Asked = append(l.Asked, s.one(id))
	}
	return l
}

// Observe looks at logits, [vocab], without picking a token: the distribution is softmax(logits), as the model gave it.
func (s *Sampler) Observe(logits []float32) error {
	return s.weigh(logits, 1)
}

func (s *Sampler) one(token int32) request.TokenLogprob {
	return request.TokenLogprob{Token: token, Logprob: s.logprob(token)}
}

// likeliest gives the n tokens with the largest logits, the largest first, the lowest id among equals.
func (s *Sampler) likeliest(n int) []int32 {
	best := s.ranked[:0]
	for i, logit := range s.logits {
		if len(best) == n && logit <= s.logits[best[n-1]] {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, logit, func(id int32, logit float32) int {
			if s.logits[id] >= logit { // an equal one before it has a lower id
				return -1
			}
			return 1
		})
		if len(best) == n {
			best = best[:n-1]
		}
		best = slices.Insert(best, at, int32(i))
	}
	s.ranked = best
	return best
}
