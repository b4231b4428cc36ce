package sampling

import (
	"errors"
	"math"

	"github.com/sluice-dev/sluice/engine/request"
)

// ErrNotFinite means that the logits hold a NaN or a positive infinity, or nothing but negative infinities: the model
// or its input is broken, and no token would be right.
var ErrNotFinite = errors.New("logits are not finite")

// Sampler picks tokens. It keeps scratch memory between calls; one goroutine uses it at a time.
type Sampler struct {
	weights []float64 // [vocab]: exp((logit - largest) / temperature)
	order   []int32   // a heap of token ids, heaviest first, then lowest id
	kept    []int32   // heaviest first
}

// Sample picks the token at position index of a generated sequence. logits are [vocab], at least one, and are left as
// they are. Temperature 0 is greedy: the largest logit, the lowest id on ties. Otherwise the distribution is
// softmax(logits/temperature), cut to the TopK heaviest tokens and then to the fewest of these whose share of what is
// left reaches TopP; among equally heavy ones the lowest ids stay. At least one token always stays.
//
// logprob is the natural logarithm of the token's probability in softmax(logits/temperature) before any cut, or in
// softmax(logits) when greedy.
func (s *Sampler) Sample(logits []float32, p *request.Sampling, seed uint64, index int) (token int32, logprob float32, err error) {
	best := argMax(logits)
	top := float64(logits[best])
	temperature := float64(p.Temperature)
	if temperature <= 0 {
		temperature = 1
	}
	s.weights = resize(s.weights, len(logits))
	var total float64
	for i, l := range logits {
		w := math.Exp((float64(l) - top) / temperature)
		s.weights[i] = w
		total += w
	}
	// The heaviest weight is 1, unless top is infinite or something is NaN.
	if !(total >= 1 && !math.IsInf(total, 1)) {
		return 0, 0, ErrNotFinite
	}
	token = best
	if p.Temperature > 0 {
		token = s.draw(total, p.TopK, float64(p.TopP), uniform(seed, index))
	}
	return token, float32((float64(logits[token])-top)/temperature - math.Log(total)), nil
}

// argMax is the index of the largest element, the lowest on ties.
func argMax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

// draw picks by the weights, which sum to total, after the cuts. u is in [0, 1).
func (s *Sampler) draw(total float64, topK int, topP, u float64) int32 {
	cutK := topK > 0 && topK < len(s.weights)
	cutP := topP < 1
	if !cutK && !cutP {
		return pick(s.weights, nil, u*total)
	}
	s.order = resize(s.order, len(s.weights))
	for i := range s.order {
		s.order[i] = int32(i)
	}
	s.heapify()
	s.kept = s.kept[:0]
	mass := total
	if cutK {
		mass = 0
		for range topK {
			token := s.pop()
			s.kept = append(s.kept, token)
			mass += s.weights[token]
		}
	}
	if cutP {
		mass = s.nucleus(topP*mass, cutK)
	}
	return pick(s.weights, s.kept, u*mass)
}

// nucleus cuts kept to its shortest prefix that weighs at least enough, and gives its weight. Unless kept is complete
// already it is filled from the heap.
func (s *Sampler) nucleus(enough float64, complete bool) float64 {
	var mass float64
	for n := 0; ; n++ {
		if n == len(s.kept) {
			if complete || len(s.order) == 0 {
				return mass
			}
			s.kept = append(s.kept, s.pop())
		}
		mass += s.weights[s.kept[n]]
		if mass >= enough {
			s.kept = s.kept[:n+1]
			return mass
		}
	}
}

// pick walks tokens, or all ids when tokens is nil, until the weights so far exceed target. Rounding may leave target
// just above their sum; the last token that weighs anything is taken then.
func pick(weights []float64, tokens []int32, target float64) int32 {
	n := len(tokens)
	if tokens == nil {
		n = len(weights)
	}
	var sum float64
	var last int32
	for i := range n {
		token := int32(i)
		if tokens != nil {
			token = tokens[i]
		}
		w := weights[token]
		if w == 0 {
			continue
		}
		sum += w
		last = token
		if sum > target {
			break
		}
	}
	return last
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
