package metamorphic

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// question is one request of /generate, without its rid.
type question struct {
	name   string
	prompt []int32
	params map[string]any // sampling_params
	extra  map[string]any // other fields of the body
}

// sampled reports whether tokens are drawn, so that a rounding difference may change any of them, not those at near ties
// alone.
func (q question) sampled() bool { return q.params["temperature"] != 0.0 }

const vocabulary = 512 // of the test models

// questions gives the requests of a run: prompts of many lengths, some with a common beginning, greedy and with a seed,
// with what bends the choice of a token.
func questions(seed uint64) []question {
	rng := rand.New(rand.NewPCG(seed, 0))
	tokens := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(10 + rng.IntN(vocabulary-20))
		}
		return ids
	}
	shared := tokens(150)
	var list []question
	add := func(name string, prompt []int32, params, extra map[string]any) {
		all := map[string]any{"max_new_tokens": 8 + rng.IntN(40), "ignore_eos": true, "temperature": 0.0}
		for k, v := range params {
			all[k] = v
		}
		list = append(list, question{fmt.Sprintf("%d %s", len(list), name), prompt, all, extra})
	}
	for _, n := range []int{1, 2, 15, 16, 17, 63, 64, 65, 130, 200} {
		add(fmt.Sprint("greedy, prompt of ", n), tokens(n), nil, nil)
	}
	for i := range 6 {
		at := 20 + rng.IntN(130)
		add("greedy, common beginning", append(slices.Clone(shared[:at]), tokens(1+rng.IntN(30))...), nil, nil)
		add("seeded, common beginning", append(slices.Clone(shared[:at]), tokens(1+rng.IntN(30))...),
			map[string]any{"temperature": 0.9, "top_p": 0.9, "sampling_seed": i}, nil)
	}
	add("the same prompt", shared, nil, nil)
	add("the same prompt again", shared, nil, nil)
	add("top_k", tokens(40), map[string]any{"temperature": 1.2, "top_k": 20, "sampling_seed": 11}, nil)
	add("min_p", tokens(40), map[string]any{"temperature": 1.2, "min_p": 0.05, "sampling_seed": 12}, nil)
	add("penalties", tokens(40), map[string]any{"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.2}, nil)
	add("penalties, seeded", tokens(40), map[string]any{"temperature": 0.8, "frequency_penalty": 0.9, "sampling_seed": 13}, nil)
	add("bias", tokens(30), map[string]any{"logit_bias": map[string]any{"100": 5, "101": -100}}, nil)
	add("stop token", tokens(30), map[string]any{"stop_token_ids": []int{100, 200, 300}, "max_new_tokens": 60}, nil)
	add("regex", tokens(30), map[string]any{"regex": `[a-z]{3}( [a-z]{2,6}){2,4}`, "ignore_eos": false, "max_new_tokens": 48}, nil)
	add("schema", tokens(30), map[string]any{
		"json_schema": `{"type":"object","properties":{"name":{"type":"string","maxLength":8},"n":{"type":"integer","minimum":0,"maximum":99}},"required":["name","n"],"additionalProperties":false}`,
		"ignore_eos":  false, "max_new_tokens": 64,
	}, nil)
	return list
}
