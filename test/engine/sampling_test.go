package engine

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ids asks /generate for the tokens of an answer.
func (r *replica) ids(sampling string) []int32 {
	r.t.Helper()
	return r.score(`{"text":"the old mill","sampling_params":{"max_new_tokens":24,"ignore_eos":true,` + sampling + `}}`).OutputIDs
}

// TestSamplingParameters: each changes the answer as it says.
func TestSamplingParameters(t *testing.T) {
	r := start(t)
	greedy := r.ids(`"temperature":0`)
	banned := greedy[0]
	for i, id := range r.ids(fmt.Sprintf(`"temperature":0,"logit_bias":{"%d":-100}`, banned)) {
		if id == banned {
			t.Errorf("token %d, at %d, comes in spite of its bias", id, i)
		}
	}
	for i, id := range r.ids(`"temperature":1,"sampling_seed":1,"logit_bias":{"77":100}`) {
		if id != 77 {
			t.Errorf("token %d, at %d, comes in spite of another's bias", id, i)
		}
	}
	times := map[int32]int{}
	for _, id := range r.ids(`"temperature":0,"frequency_penalty":2,"presence_penalty":2,"logit_bias":{"77":5,"78":5}`) {
		times[id]++
	}
	if times[77] > 4 || times[78] > 4 || len(times) < 5 {
		t.Errorf("the penalties don't spread the answer: %v", times)
	}
	if diff := cmp.Diff(greedy, r.ids(`"temperature":1,"sampling_seed":9,"min_p":1`)); diff != "" {
		t.Errorf("min_p 1 leaves the likeliest alone (-greedy +got)\n%s", diff)
	}
	if diff := cmp.Diff(greedy, r.ids(`"temperature":1,"sampling_seed":9,"top_k":1`)); diff != "" {
		t.Errorf("top_k 1 too (-greedy +got)\n%s", diff)
	}
	status, body := r.post("/generate", fmt.Sprintf(`{"text":"the old mill","sampling_params":{"temperature":0,"max_new_tokens":24,"stop_token_ids":[%d],"min_new_tokens":2}}`, greedy[2]))
	if got := decode[scored](t, body).OutputIDs; status != http.StatusOK || len(got) < 3 || got[len(got)-1] != greedy[2] {
		t.Errorf("status %d: the stop token %d does not end %v", status, greedy[2], got)
	}
	status, body = r.post("/generate", fmt.Sprintf(`{"text":"the old mill","sampling_params":{"temperature":0,"max_new_tokens":24,"stop_token_ids":[%d],"min_new_tokens":4}}`, greedy[2]))
	if got := decode[scored](t, body).OutputIDs; status != http.StatusOK || len(got) < 4 || slices.Contains(got[:4], greedy[2]) {
		t.Errorf("status %d: the stop token %d is in the first four of %v", status, greedy[2], got)
	}
	r.idle()
}

// TestSeedIgnoresCompany: with penalties, a grammar and logprobs too, a seeded answer is the same alone and in a crowd, and
// whether steps overlap or not.
func TestSeedIgnoresCompany(t *testing.T) {
	const body = `{"prompt":"the old mill","max_tokens":40,"seed":5,"frequency_penalty":0.5,"repetition_penalty":1.2,"min_p":0.01,"logprobs":2%s}`
	var first []string
	for _, flags := range [][]string{nil, {"--disable-overlap-schedule"}, {"--chunked-prefill-size", "4", "--enable-mixed-chunk", "--page-size", "1"}} {
		r := start(t, flags...)
		for _, grammar := range []string{"", `,"regex":"[a-z ]{20,60}"`} {
			ask := func() string {
				status, text := r.post("/v1/completions", fmt.Sprintf(body, grammar))
				if status != http.StatusOK {
					t.Errorf("status %d: %s", status, text)
					return ""
				}
				return decode[completion](t, text).Choices[0].Text
			}
			alone := ask()
			crowd := make(chan string, 4)
			for i := range cap(crowd) {
				go func() {
					if i%2 == 0 {
						_, _ = r.post("/v1/completions", fmt.Sprintf(`{"prompt":"number %d","max_tokens":30,"presence_penalty":1}`, i))
					}
					crowd <- ask()
				}()
			}
			for range cap(crowd) {
				if got := <-crowd; got != alone {
					t.Errorf("%v%s: alone %q, in a crowd %q", flags, grammar, alone, got)
				}
			}
			first = append(first, alone)
		}
		r.idle()
	}
	if first[0] != first[2] || first[0] != first[4] || first[1] != first[3] || first[1] != first[5] {
		t.Errorf("flags change the answer: %q", first)
	}
}
