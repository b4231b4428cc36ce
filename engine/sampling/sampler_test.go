package sampling

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/request"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

func TestSample(t *testing.T) {
	tests := []struct {
		name, reason string
		logits       []float32
		params       request.Sampling
		want         int32
		wantErr      error
	}{
		{"greedy", "the largest", []float32{1, 3, 2}, request.Sampling{TopP: 1}, 1, nil},
		{"greedy tie", "the lowest id", []float32{1, 3, 3, 3}, request.Sampling{TopP: 1}, 1, nil},
		{"greedy ignores the cuts", "", []float32{1, 3, 2}, request.Sampling{TopP: 0.01, TopK: 1}, 1, nil},
		{"one token", "", []float32{-7}, request.Sampling{Temperature: 1, TopP: 1}, 0, nil},
		{"top-k 1", "is greedy at any temperature", []float32{1, 1.01, 1, 1.01}, request.Sampling{Temperature: 50, TopP: 1, TopK: 1}, 1, nil},
		{"tiny top-p", "at least one stays", []float32{1, 1.01, 1, 1.01}, request.Sampling{Temperature: 50, TopP: 1e-9}, 1, nil},
		{"cold", "a temperature near 0 is greedy, without overflow", []float32{1, 1.01, 1}, request.Sampling{Temperature: 1e-30, TopP: 1}, 1, nil},
		{"masked", "a token at minus infinity never comes", []float32{-inf, 0, -inf}, request.Sampling{Temperature: 9, TopP: 1}, 1, nil},
		{"NaN", "", []float32{0, nan, 1}, request.Sampling{Temperature: 1, TopP: 1}, 0, ErrNotFinite},
		{"NaN first", "comparisons with it are all false", []float32{nan, 0, 1}, request.Sampling{TopP: 1}, 0, ErrNotFinite},
		{"infinity", "", []float32{0, inf, 1}, request.Sampling{TopP: 1}, 0, ErrNotFinite},
		{"all masked", "", []float32{-inf, -inf}, request.Sampling{TopP: 1}, 0, ErrNotFinite},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var s Sampler
			for index := range 50 {
				got, logprob, err := s.Sample(test.logits, Input{Params: &test.params, Seed: 1, Index: index})
				if got != test.want || !errors.Is(err, test.wantErr) {
					t.Fatalf("%s: token %d, error %v; want %d, %v", test.reason, got, err, test.want, test.wantErr)
				}
				if !(logprob <= 0) {
					t.Fatalf("logprob %g is above 0", logprob)
				}
			}
		})
	}
}

func TestLogprob(t *testing.T) {
	logits := []float32{1, 2, 3, 0}
	logSum := func(temperature float64) float64 {
		var sum float64
		for _, l := range logits {
			sum += math.Exp(float64(l) / temperature)
		}
		return math.Log(sum)
	}
	tests := []struct {
		name, reason string
		params       request.Sampling
		want         float64
	}{
		{"greedy", "the model's own distribution", request.Sampling{TopP: 1}, 3 - logSum(1)},
		{"temperature", "the sharpened distribution", request.Sampling{Temperature: 0.25, TopP: 1, TopK: 1}, 3/0.25 - logSum(0.25)},
		{"top-p", "before the cut", request.Sampling{Temperature: 2, TopP: 1e-9}, 3/2.0 - logSum(2)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, got, err := new(Sampler).Sample(logits, Input{Params: &test.params, Seed: 1})
			if err != nil || math.Abs(float64(got)-test.want) > 1e-6 {
				t.Errorf("%s: logprob %g, error %v; want %g", test.reason, got, err, test.want)
			}
		})
	}
}

// expected is the distribution that Sample should have, computed by sorting everything.
func expected(logits []float32, p request.Sampling) []float64 {
	weights := make([]float64, len(logits))
	ids := make([]int, len(logits))
	for i, l := range logits {
		weights[i], ids[i] = math.Exp(float64(l)/float64(p.Temperature)), i
	}
	slices.SortStableFunc(ids, func(a, b int) int {
		switch {
		case weights[a] > weights[b]:
			return -1
		case weights[a] < weights[b]:
			return 1
		}
		return 0
	})
	if p.TopK > 0 && p.TopK < len(ids) {
		ids = ids[:p.TopK]
	}
	sum := func(ids []int) (total float64) {
		for _, id := range ids {
			total += weights[id]
		}
		return total
	}
	if p.TopP < 1 {
		n := 1
		for n < len(ids) && sum(ids[:n]) < float64(p.TopP)*sum(ids) {
			n++
		}
		ids = ids[:n]
	}
	probability := make([]float64, len(logits))
	for _, id := range ids {
		probability[id] = weights[id] / sum(ids)
	}
	return probability
}

// TestDistribution draws often and compares the counts with the expected distribution by a chi-square test. The seed is
// fixed, so that the test can't fail by bad luck.
func TestDistribution(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 0))
	logits := make([]float32, 60)
	for i := range logits {
		logits[i] = float32(random.NormFloat64() * 2)
	}
	logits[7] = logits[31] // a tie
	tests := []struct {
		name   string
		params request.Sampling
	}{
		{"plain", request.Sampling{Temperature: 1, TopP: 1}},
		{"hot", request.Sampling{Temperature: 3, TopP: 1, TopK: -1}},
		{"top-k", request.Sampling{Temperature: 1.5, TopP: 1, TopK: 10}},
		{"top-p", request.Sampling{Temperature: 1.5, TopP: 0.7}},
		{"top-k and top-p", request.Sampling{Temperature: 2, TopP: 0.8, TopK: 20}},
		{"top-k of all", request.Sampling{Temperature: 2, TopP: 1, TopK: 60}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			const draws = 40000
			counts := make([]int, len(logits))
			var s Sampler
			for i := range draws {
				// Half of the draws go along one sequence, half over the seeds.
				seed, index := uint64(5), i
				if i%2 == 1 {
					seed, index = uint64(i), 0
				}
				token, _, err := s.Sample(logits, Input{Params: &test.params, Seed: seed, Index: index})
				if err != nil {
					t.Fatal(err)
				}
				counts[token]++
			}
			var chi float64
			freedom := -1
			for id, p := range expected(logits, test.params) {
				if p == 0 {
					if counts[id] > 0 {
						t.Fatalf("token %d came %d times though it was cut", id, counts[id])
					}
					continue
				}
				difference := float64(counts[id]) - p*draws
				chi += difference * difference / (p * draws)
				freedom++
			}
			// The mean is freedom, the deviation sqrt(2*freedom).
			if limit := float64(freedom) + 4*math.Sqrt(2*float64(freedom)); chi > limit {
				t.Errorf("chi-square is %.1f with %d degrees of freedom, want at most %.1f", chi, freedom, limit)
			}
		})
	}
}

func TestCutsKeepTheRightTokens(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		logits := make([]float32, 1+random.IntN(30))
		for i := range logits {
			logits[i] = float32(random.IntN(6)) // many ties
		}
		p := request.Sampling{Temperature: 0.5 + random.Float32(), TopK: random.IntN(len(logits)+2) - 1, TopP: 1}
		if random.IntN(3) > 0 {
			p.TopP = random.Float32()*0.98 + 0.01
		}
		var s Sampler
		if _, _, err := s.Sample(logits, Input{Params: &p, Seed: 1, Index: 1}); err != nil {
			t.Fatal(err)
		}
		if (p.TopK <= 0 || p.TopK >= len(logits)) && p.TopP == 1 {
			continue // nothing was cut
		}
		kept := make([]bool, len(logits))
		for _, id := range s.kept {
			kept[id] = true
		}
		want := make([]bool, len(logits))
		for id, probability := range expected(logits, p) {
			want[id] = probability > 0
		}
		if diff := cmp.Diff(want, kept); diff != "" {
			t.Fatalf("%+v of %v (-want +got):\n%s", p, logits, diff)
		}
	}
}

func TestUniform(t *testing.T) {
	seen := map[float64]bool{}
	var sum float64
	for seed := range uint64(100) {
		for index := range 100 {
			u := uniform(seed, index)
			if !(u >= 0 && u < 1) {
				t.Fatalf("uniform(%d, %d) is %g: want it in [0, 1)", seed, index, u)
			}
			if seen[u] {
				t.Fatalf("uniform(%d, %d) is %g, as another was", seed, index, u)
			}
			seen[u] = true
			sum += u
		}
	}
	if mean := sum / 10000; math.Abs(mean-0.5) > 0.01 {
		t.Errorf("mean %g, want 0.5", mean)
	}
	// Fixed values: a change would change every seeded answer.
	got := []float64{uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(math.MaxUint64, 1<<20)}
	want := []float64{0.6524484863740322, 0.7012121095215252, 0.36818951565166946, 0.6439801416380194}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func BenchmarkSample(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 0))
	logits := make([]float32, 32000)
	for i := range logits {
		logits[i] = float32(random.NormFloat64() * 3)
	}
	for _, bench := range []struct {
		name   string
		params request.Sampling
	}{
		{"greedy", request.Sampling{TopP: 1}},
		{"temperature", request.Sampling{Temperature: 1, TopP: 1}},
		{"top-k=50", request.Sampling{Temperature: 1, TopP: 1, TopK: 50}},
		{"top-p=0.9", request.Sampling{Temperature: 1, TopP: 0.9}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var s Sampler
			for i := range b.N {
				if _, _, err := s.Sample(logits, Input{Params: &bench.params, Seed: 1, Index: i}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
