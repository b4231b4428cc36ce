package pd

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestPressure runs many requests through pools that hold only a few of them at once: they must wait, be retracted and
// go on, and give the same tokens as on a unified engine with room for all.
func TestPressure(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	unified := startEngine(t, "", engineOptions{model: tiny, pageSize: 16, chunk: 2048})
	o := engineOptions{model: tiny, pageSize: 8, chunk: 64, more: []string{"--max-total-tokens", "1024"}}
	prefills := []*harness.Engine{startEngine(t, "prefill", o), startEngine(t, "prefill", o)}
	decodes := []*harness.Engine{startEngine(t, "decode", o), startEngine(t, "decode", o)}
	router := startRouter(t, prefills, decodes)
	var wg sync.WaitGroup
	for range 60 {
		prompt := make([]int32, 1+rng.IntN(300))
		for j := range prompt {
			prompt[j] = int32(10 + rng.IntN(480))
		}
		tokens := 1 + rng.IntN(80)
		wg.Go(func() {
			want, err := generate(t.Context(), unified.URL, prompt, tokens)
			if err != nil {
				t.Errorf("unified, %d tokens: %v", len(prompt), err)
				return
			}
			got, err := generate(t.Context(), router, prompt, tokens)
			if err != nil {
				t.Errorf("prefill and decode, %d tokens: %v", len(prompt), err)
				return
			}
			if !slices.Equal(got.OutputIDs, want.OutputIDs) || len(got.OutputIDs) != tokens {
				t.Errorf("prompt of %d tokens: prefill and decode give %v, unified gives %v", len(prompt), got.OutputIDs, want.OutputIDs)
			}
		})
	}
	wg.Wait()
	for _, e := range append(prefills, decodes...) {
		e.Idle(t)
	}
}

// TestStream reads OpenAI streams through the router: the same text as from a unified engine, and a proper end.
func TestStream(t *testing.T) {
	o := engineOptions{model: tiny, pageSize: 16, chunk: 64}
	unified, prefill, decode := startEngine(t, "", o), startEngine(t, "prefill", o), startEngine(t, "decode", o)
	router := startRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode})
	for _, tc := range []struct{ path, body string }{
		{"/v1/completions", `{"model":"m","prompt":"The boats go out to sea","max_tokens":20,"temperature":0,"stream":true}`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Where do the boats go?"}],"max_tokens":20,"temperature":0,"stream":true}`},
		{"/v1/completions", `{"model":"m","prompt":"The boats go out to sea","max_tokens":20,"temperature":0.8,"top_p":0.9,"seed":7,"stream":true}`},
		{"/v1/completions", `{"model":"m","prompt":["One","Two words","And three words"],"max_tokens":9,"temperature":0,"stream":true}`},
		{"/v1/completions", `{"model":"m","prompt":"One token","max_tokens":1,"temperature":0,"stream":true}`},
	} {
		want := events(t, unified.URL+tc.path, tc.body)
		got := events(t, router+tc.path, tc.body)
		if got != want || want == "" {
			t.Errorf("%s %s:\nprefill and decode say %q\nunified says           %q", tc.path, tc.body, got, want)
		}
	}
	prefill.Idle(t)
	decode.Idle(t)
}

// events reads a stream to its end and gives the text of each choice, in order.
func events(t *testing.T, url, body string) (text string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	texts := map[int]string{}
	done := false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			done = true
			continue
		}
		var event struct {
			Choices []struct {
				Index int                      `json:"index"`
				Text  string                   `json:"text"`
				Delta struct{ Content string } `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal(data, &event); err != nil {
			t.Fatalf("event %s: %v", data, err)
		}
		for _, c := range event.Choices {
			texts[c.Index] += c.Text + c.Delta.Content
		}
	}
	if err := lines.Err(); err != nil || !done {
		t.Errorf("%s: the stream ended without [DONE] (%v)", url, err)
	}
	for i := range len(texts) {
		text += fmt.Sprintf("[%d]%s", i, texts[i])
	}
	return text
}
