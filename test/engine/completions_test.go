package engine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestStreamEqualsWhole: for any prompt and sampling, also with stop strings, the pieces of a stream are the whole answer.
func TestStreamEqualsWhole(t *testing.T) {
	r := start(t)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	words := strings.Fields("the river runs past an old mill where water turns a wheel and grain becomes flour für Brot 水")
	for round := range 12 {
		var prompt []string
		for range 1 + rng.IntN(40) {
			prompt = append(prompt, words[rng.IntN(len(words))])
		}
		body := map[string]any{
			"prompt": strings.Join(prompt, " "), "max_tokens": 1 + rng.IntN(40), "temperature": float64(rng.IntN(2)), "seed": rng.IntN(1000),
		}
		if rng.IntN(2) == 0 {
			body["stop"] = []string{"e", "an"}
		}
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		status, whole := r.post("/v1/completions", string(text))
		if status != http.StatusOK {
			t.Fatalf("round %d: status %d: %s", round, status, whole)
		}
		body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
		text, err = json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		status, streamed := r.post("/v1/completions", string(text))
		if status != http.StatusOK {
			t.Fatalf("round %d: stream: status %d: %s", round, status, streamed)
		}
		if diff := cmp.Diff(decode[completion](t, whole), joined(t, streamed)); diff != "" {
			t.Errorf("round %d: %s: (-whole +stream)\n%s", round, text, diff)
		}
		if stops, set := body["stop"].([]string); set {
			for _, stop := range stops {
				if answer := decode[completion](t, whole).Choices[0].Text; strings.Contains(answer, stop) {
					t.Errorf("round %d: the stop string %q is in %q", round, stop, answer)
				}
			}
		}
	}
	r.idle()
}

// joined puts a stream of one sequence together.
func joined(t testing.TB, body string) completion {
	t.Helper()
	list := events(body)
	if len(list) < 2 || list[len(list)-1] != "[DONE]" {
		t.Fatalf("the stream does not end with [DONE]:\n%s", body)
	}
	var whole completion
	for _, data := range list[:len(list)-1] {
		chunk := decode[completion](t, data)
		if chunk.Usage.PromptTokens > 0 {
			whole.Usage = chunk.Usage
		}
		if len(chunk.Choices) == 0 {
			continue
		}
		if whole.Choices == nil {
			whole.Choices = chunk.Choices
			continue
		}
		whole.Choices[0].Text += chunk.Choices[0].Text
		whole.Choices[0].FinishReason = chunk.Choices[0].FinishReason
	}
	return whole
}

// TestBatchEqualsSingles: what else is in the batch changes nothing, greedy or with a seed.
func TestBatchEqualsSingles(t *testing.T) {
	r := start(t)
	prompts := []string{"the mill", "water and grain and water and grain", "a", strings.Repeat("long ", 60)}
	for _, sampling := range []string{`"temperature":0`, `"temperature":1,"seed":5`} {
		var singles []string
		for _, prompt := range prompts {
			status, body := r.post("/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":12,%s}`, prompt, sampling))
			if status != http.StatusOK {
				t.Fatalf("status %d: %s", status, body)
			}
			singles = append(singles, decode[completion](t, body).Choices[0].Text)
		}
		list, err := json.Marshal(prompts)
		if err != nil {
			t.Fatal(err)
		}
		status, body := r.post("/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":12,%s}`, list, sampling))
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, body)
		}
		var together []string
		for i, choice := range decode[completion](t, body).Choices {
			if choice.Index != i {
				t.Errorf("choice %d has index %d", i, choice.Index)
			}
			together = append(together, choice.Text)
		}
		if diff := cmp.Diff(singles, together); diff != "" {
			t.Errorf("%s: (-alone +together)\n%s", sampling, diff)
		}
	}
}

// TestGenerate: the cumulative stream of /generate ends with the whole answer.
func TestGenerate(t *testing.T) {
	r := start(t, "--enable-metrics")
	type answer struct {
		Text      string  `json:"text"`
		OutputIDs []int32 `json:"output_ids"`
		MetaInfo  struct {
			FinishReason     map[string]any `json:"finish_reason"`
			PromptTokens     int            `json:"prompt_tokens"`
			CompletionTokens int            `json:"completion_tokens"`
			E2ELatency       float64        `json:"e2e_latency"`
			ForwardEntry     float64        `json:"forward_entry_time"`
			Received         float64        `json:"request_received_ts"`
			Finished         float64        `json:"request_finished_ts"`
		} `json:"meta_info"`
	}
	body := `{"text":"the old mill","sampling_params":{"max_new_tokens":9,"temperature":0}`
	status, text := r.post("/generate", body+"}")
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	whole := decode[answer](t, text)
	_, text = r.post("/generate", body+`,"stream":true}`)
	list := events(text)
	last := decode[answer](t, list[len(list)-2])
	if whole.Text != last.Text || !cmp.Equal(whole.OutputIDs, last.OutputIDs) || len(whole.OutputIDs) != 9 {
		t.Errorf("whole %+v, last chunk %+v", whole, last)
	}
	m := whole.MetaInfo
	if !(m.Received <= m.ForwardEntry && m.ForwardEntry <= m.Finished && m.E2ELatency > 0) || m.FinishReason["type"] != "length" {
		t.Errorf("times out of order in %+v", m)
	}
}

// TestConcurrent: many clients at once get what each gets alone.
func TestConcurrent(t *testing.T) {
	r := start(t, "--max-running-requests", "4")
	ask := func(i int) string {
		status, body := r.post("/v1/completions", fmt.Sprintf(`{"prompt":"number %d of the mill","max_tokens":16,"temperature":0}`, i))
		if status != http.StatusOK {
			t.Errorf("status %d: %s", status, body)
			return ""
		}
		return decode[completion](t, body).Choices[0].Text
	}
	const clients = 12
	var alone, together [clients]string
	for i := range alone {
		alone[i] = ask(i)
	}
	var wait sync.WaitGroup
	for i := range together {
		wait.Go(func() { together[i] = ask(i) })
	}
	wait.Wait()
	if diff := cmp.Diff(alone, together); diff != "" {
		t.Errorf("(-alone +together)\n%s", diff)
	}
	r.idle()
}
