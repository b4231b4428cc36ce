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
	kept    []int32   // heaviest first, unless MinP alone cuts: by id

	adjusted []float32 // [vocab]
	counts   []int32   // [vocab]: 0 but for the tokens of seen
	seen     []int32
	spared   []float32 // of forbid
	ranked   []int32   // of likeliest

	// The distribution of the last call: the logprob of token t is (logits[t]-top)/temperature - logTotal.
	logits      []float32 // [vocab], the caller's or adjusted
	best        int32     // the largest of them, the lowest id on ties
	top         float64   // logits[best]
	temperature float64   // > 0
	total       float64   // of weights
}

// Sample picks the token at position in.Index of a generated sequence. logits are [vocab], at least one, and are left as
// they are; penalties, biases and the mask work on a copy, see adjust. Temperature 0 is greedy: the largest logit, the
// lowest id on ties. Otherwise the distribution is softmax(logits/temperature), cut to the TopK heaviest tokens, then to
// the fewest of these whose share of what is left reaches TopP, then to those of at least MinP times the heaviest one's
// weight; among equally heavy ones the lowest ids stay. At least one token always stays.
//
// logprob is the natural logarithm of the token's probability in softmax(logits/temperature) before any cut, or in
// softmax(logits) when greedy.
func (s *Sampler) Sample(logits []float32, in Input) (token int32, logprob float32, err error) {
	p := in.Params
	temperature := float64(p.Temperature)
	if temperature <= 0 {
		temperature = 1
	}
	if err := s.weigh(s.adjust(logits, in), temperature); err != nil {
		return 0, 0, err
	}
	token = s.best
	if p.Temperature > 0 {
		token = s.draw(p, uniform(in.Seed, in.Index))
	}
	return token, s.logprob(token), nil
}

// weigh makes softmax(logits/temperature) the distribution.
func (s *Sampler) weigh(logits []float32, temperature float64) error {
	s.logits, s.temperature = logits, temperature
	s.best = argMax(logits)
	s.top = float64(logits[s.best])
	s.weights, s.total = resize(s.weights, len(logits)), 0
	for i, l := range logits {
		w := math.Exp((float64(l) - s.top) / temperature)
		s.weights[i] = w
		s.total += w
	}
	// The heaviest weight is 1, unless top is infinite or something is NaN.
	if !(s.total >= 1 && !math.IsInf(s.total, 1)) {
		return ErrNotFinite
	}
	return nil
}

// logprob is that of a token in the distribution.
func (s *Sampler) logprob(token int32) float32 {
	if token < 0 || int(token) >= len(s.logits) {
		return float32(math.Inf(-1))
	}
	return float32((float64(s.logits[token])-s.top)/s.temperature - math.Log(s.total))
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

// draw picks by the weights after the cuts. u is in [0, 1).
func (s *Sampler) draw(p *request.Sampling, u float64) int32 {
	total, topK, topP, minP := s.total, p.TopK, float64(p.TopP), float64(p.MinP)
	cutK := topK > 0 && topK < len(s.weights)
	cutP := topP < 1
	switch {
	case !cutK && !cutP && minP <= 0:
		return pick(s.weights, nil, u*total)
	case !cutK && !cutP:
		return pick(s.weights, s.kept, u*s.heavy(minP))
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
	for last := len(s.kept) - 1; s.weights[s.kept[last]] < minP; last-- { // the first weighs 1
		mass -= s.weights[s.kept[last]]
		s.kept = s.kept[:last]
	}
	return pick(s.weights, s.kept, u*mass)
}

// heavy keeps the tokens that weigh at least so much, by id, and gives their weight. The heaviest weighs 1.
func (s *Sampler) heavy(least float64) (mass float64) {
	s.kept = s.kept[:0]
	for id, w := range s.weights {
		if w >= least {
			s.kept = append(s.kept, int32(id))
			mass += w
		}
	}
	return mass
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
