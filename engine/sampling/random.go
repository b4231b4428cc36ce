package sampling

// uniform gives a number in [0, 1), a function of seed and index alone, so that a sequence's tokens don't depend on
// what else is drawn, nor on whether it was stopped and computed again. Different seeds give unrelated sequences.
func uniform(seed uint64, index int) float64 {
	// A counter through two rounds of a mixing function that is a bijection of 64 bits.
	x := mix(mix(seed+golden) + golden*uint64(index+1))
	return float64(x>>11) * (1.0 / (1 << 53))
}

// golden is 2^64 divided by the golden ratio, made odd: its multiples are spread evenly.
const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
