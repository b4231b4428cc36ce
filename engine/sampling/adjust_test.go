package sampling

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sluice-dev/sluice/engine/request"
)

func TestAdjust(t *testing.T) {
	inf := float32(math.Inf(-1))
	logits := []float32{2, -2, 1, 0, 4}
	history := []int32{0, 1, 2, 2, 1, 2} // the first two are the prompt
	for _, tc := range []struct {
		name, reason string
		params       request.Sampling
		mask         []uint64
		forbidden    []int32
		want         []float32
	}{
		{"nothing", "the logits as they are", request.Sampling{RepetitionPenalty: 1}, nil, nil, []float32{2, -2, 1, 0, 4}},
		{"repetition", "in the answer, once; away from positive", request.Sampling{RepetitionPenalty: 2}, nil, nil, []float32{2, -4, 0.5, 0, 4}},
		{"tiny repetition", "stays finite", request.Sampling{RepetitionPenalty: 1e-45}, nil, nil, []float32{2, -2 * math.SmallestNonzeroFloat32, math.MaxFloat32, 0, 4}},
		{"frequency", "in the answer, each time", request.Sampling{FrequencyPenalty: 0.5}, nil, nil, []float32{2, -2.5, -0.5, 0, 4}},
		{"presence", "in the answer, once", request.Sampling{PresencePenalty: -1}, nil, nil, []float32{2, -1, 2, 0, 4}},
		{"both", "they add up", request.Sampling{FrequencyPenalty: 1, PresencePenalty: 1}, nil, nil, []float32{2, -4, -3, 0, 4}},
		{"bias", "added", request.Sampling{LogitBias: []request.TokenBias{{Token: 0, Bias: -100}, {Token: 4, Bias: 1}, {Token: 9, Bias: 1}}}, nil, nil, []float32{-98, -2, 1, 0, 5}},
		{"mask", "no bias brings a token back", request.Sampling{LogitBias: []request.TokenBias{{Token: 0, Bias: 100}}}, []uint64{0b01010}, nil, []float32{inf, -2, inf, 0, inf}},
		{"all", "the subtracted ones before repetition", request.Sampling{RepetitionPenalty: 2, FrequencyPenalty: 1, LogitBias: []request.TokenBias{{Token: 2, Bias: 3}}}, []uint64{0b11110}, nil,
			[]float32{inf, -6, -1, 0, 4}},
		{"forbidden", "as if masked", request.Sampling{}, nil, []int32{4, 0, 4, 77, -1}, []float32{inf, -2, 1, 0, inf}},
		{"only forbidden", "something has to come", request.Sampling{LogitBias: []request.TokenBias{{Token: 3, Bias: 1}}}, []uint64{0b01001}, []int32{3, 0, 3}, []float32{2, inf, inf, 1, inf}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s Sampler
			for range 2 { // scratch of the first leaves nothing to the second
				got := s.adjust(logits, Input{Params: &tc.params, History: history, PromptTokens: 2, Mask: tc.mask, Forbidden: tc.forbidden})
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s (-want +got)\n%s", tc.reason, diff)
				}
			}
			if diff := cmp.Diff([]float32{2, -2, 1, 0, 4}, logits); diff != "" {
				t.Fatalf("the caller's logits changed:\n%s", diff)
			}
		})
	}
}

// TestAdjustIsAsItsTwin compares with one token at a time, by the rules as they are written.
func TestAdjustIsAsItsTwin(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 5))
	var s Sampler
	for round := range 500 {
		logits := make([]float32, 1+random.IntN(150))
		mask := make([]uint64, (len(logits)+63)/64)
		for i := range logits {
			logits[i] = float32(random.NormFloat64() * 3)
			if random.IntN(3) > 0 {
				mask[i/64] |= 1 << (i % 64)
			}
		}
		mask[0] |= 1
		in := Input{Params: &request.Sampling{}, Mask: [][]uint64{nil, mask}[random.IntN(2)]}
		for range random.IntN(30) {
			in.History = append(in.History, int32(random.IntN(len(logits))))
		}
		in.PromptTokens = random.IntN(len(in.History) + 1)
		if random.IntN(2) == 0 {
			in.Params.FrequencyPenalty, in.Params.PresencePenalty = random.Float32()*4-2, random.Float32()*4-2
		}
		if random.IntN(2) == 0 {
			in.Params.RepetitionPenalty = random.Float32() * 2
		}
		if random.IntN(2) == 0 {
			in.Params.LogitBias = []request.TokenBias{{Token: int32(random.IntN(len(logits))), Bias: random.Float32()*200 - 100}}
		}
		if random.IntN(2) == 0 && len(logits) > 3 {
			in.Forbidden = []int32{1, 2}
		}
		want := make([]float32, len(logits))
		for id, logit := range logits {
			count := 0
			for _, token := range in.History[in.PromptTokens:] {
				if int(token) == id {
					count++
				}
			}
			if count > 0 {
				logit -= in.Params.FrequencyPenalty*float32(count) + in.Params.PresencePenalty
				if r := in.Params.RepetitionPenalty; r > 0 && logit > 0 {
					logit /= r
				} else if r > 0 {
					logit *= r
				}
			}
			for _, bias := range in.Params.LogitBias {
				if int(bias.Token) == id {
					logit += bias.Bias
				}
			}
			if in.Mask != nil && mask[id/64]&(1<<(id%64)) == 0 || slices.Contains(in.Forbidden, int32(id)) {
				logit = float32(math.Inf(-1)) // token 0 stays
			}
			want[id] = logit
		}
		if diff := cmp.Diff(want, s.adjust(logits, in), cmpopts.EquateApprox(0, 1e-4)); diff != "" {
			t.Fatalf("seed %d round %d: %+v (-want +got)\n%s", seed, round, in, diff)
		}
	}
}

// TestSampleAllocatesNothing once its scratch is there, whatever is asked for.
func TestSampleAllocatesNothing(t *testing.T) {
	logits := make([]float32, 1000)
	for i := range logits {
		logits[i] = float32(i % 17)
	}
	mask := make([]uint64, 16)
	mask[3] = 0xff00
	for _, in := range []Input{
		{Params: &request.Sampling{TopP: 1}},
		{Params: &request.Sampling{Temperature: 1, TopP: 0.9, TopK: 40, MinP: 0.1}},
		{Params: &request.Sampling{Temperature: 1, TopP: 1, FrequencyPenalty: 1, RepetitionPenalty: 1.1}, History: []int32{1, 2, 3}, Mask: mask, Forbidden: []int32{200}},
	} {
		var s Sampler
		if n := testing.AllocsPerRun(20, func() {
			if _, _, err := s.Sample(logits, in); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%+v: %v allocations", in, n)
		}
	}
}

// TestMinP: what stays is what a plain reading of the rule says, with and without the other cuts.
func TestMinP(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 3))
	for round := range 500 {
		logits := make([]float32, 2+random.IntN(30))
		for i := range logits {
			logits[i] = float32(random.NormFloat64() * 2)
		}
		p := request.Sampling{Temperature: 0.5 + random.Float32(), TopP: 1, MinP: random.Float32()}
		if random.IntN(2) == 0 {
			p.TopK = 1 + random.IntN(len(logits))
		}
		var s Sampler
		token, logprob, err := s.Sample(logits, Input{Params: &p, Seed: random.Uint64()})
		if err != nil {
			t.Fatal(err)
		}
		order := make([]int32, len(logits))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return int(math.Copysign(1, float64(logits[b]-logits[a]))) })
		if p.TopK > 0 {
			order = order[:p.TopK]
		}
		var want []int32
		for _, id := range order {
			if math.Exp(float64(logits[id]-logits[order[0]])/float64(p.Temperature)) >= float64(p.MinP)-1e-9 {
				want = append(want, id)
			}
		}
		if !slices.Contains(want, token) || len(s.kept) > len(want) {
			t.Fatalf("seed %d round %d: %+v of %v gives token %d of %v, want one of %v", seed, round, p, logits, token, s.kept, want)
		}
		if logprob > 0 || logprob != s.Logprobs(&request.WantLogprobs{}, token).Logprob {
			t.Fatalf("seed %d round %d: logprob %v", seed, round, logprob)
		}
	}
}

// TestLogprobsOf compares with a sorted distribution.
func TestLogprobsOf(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 4))
	for round := range 300 {
		logits := make([]float32, 1+random.IntN(40))
		var total float64
		for i := range logits {
			logits[i] = float32(random.IntN(8)) // many ties
			total += math.Exp(float64(logits[i]))
		}
		want := request.WantLogprobs{Top: random.IntN(45), TokenIDs: []int32{int32(random.IntN(len(logits))), 99}}
		var s Sampler
		if err := s.Observe(logits); err != nil {
			t.Fatal(err)
		}
		one := func(id int32) request.TokenLogprob {
			return request.TokenLogprob{Token: id, Logprob: float32(float64(logits[id]) - math.Log(total))}
		}
		order := make([]int32, len(logits))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return int(logits[b] - logits[a]) })
		expect := request.TokenLogprobs{TokenLogprob: one(0), Asked: []request.TokenLogprob{one(want.TokenIDs[0]), {Token: 99, Logprob: float32(math.Inf(-1))}}}
		for _, id := range order[:min(want.Top, len(order))] {
			expect.Top = append(expect.Top, one(id))
		}
		if diff := cmp.Diff(expect, s.Logprobs(&want, 0), cmpopts.EquateApprox(0, 1e-5)); diff != "" {
			t.Fatalf("seed %d round %d: (-want +got)\n%s", seed, round, diff)
		}
	}
}
