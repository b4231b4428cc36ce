package model

import "math"

// inverseFrequencies gives the angle per position of each pair of a head's elements, [headDim/2], in radians.
func inverseFrequencies(c Config) []float32 {
	freq := make([]float32, c.HeadDim/2)
	for j := range freq {
		f := 1 / math.Pow(c.RopeTheta, float64(2*j)/float64(c.HeadDim))
		freq[j] = float32(c.RopeScaling.apply(f))
	}
	return freq
}

// apply stretches a frequency: slow ones by Factor, fast ones not at all, those between by a linear blend.
func (s *RopeScaling) apply(freq float64) float64 {
	if s == nil {
		return freq
	}
	turns := float64(s.OriginalContext) * freq / (2 * math.Pi) // in the original context
	if turns < s.LowFreqFactor {
		return freq / s.Factor
	}
	if turns > s.HighFreqFactor {
		return freq
	}
	blend := (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
	return (1-blend)*freq/s.Factor + blend*freq
}
