package metrics

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

// client asks with a custom label.
var client = harness.Client{Header: http.Header{"X-Custom-Labels": {`{"team":"red"}`}}}

// load is what many clients send to one address, an engine's or a router's.
type load struct {
	t        *testing.T
	url      string
	sessions bool // the address is an engine with streaming sessions
	seed     uint64

	mu   sync.Mutex
	did  map[string]int
	next int // number of the next request
}

// clients are how many send at once: more than an engine of these tests runs.
const clients = 12

// run sends n requests of a mix that is a function of the seed, and gives how many of each kind there were.
func (l *load) run(n int) map[string]int {
	l.did = map[string]int{}
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			for {
				l.mu.Lock()
				i := l.next
				l.next++
				l.mu.Unlock()
				if i >= n {
					return
				}
				l.act(i, rand.New(rand.NewPCG(l.seed, uint64(i))))
			}
		})
	}
	wait.Wait()
	return l.did
}

func (l *load) act(i int, rng *rand.Rand) {
	var err error
	kind := "whole"
	switch i % 8 {
	case 0, 1:
		kind, err = "streamed", l.stream(l.body(i, rng), 0)
	case 2:
		kind, err = "cancelled", l.stream(l.body(i, rng), 1+rng.IntN(3))
	case 3:
		kind = "with grammar"
		body := l.body(i, rng)
		body["sampling_params"] = map[string]any{"max_new_tokens": 24, "regex": fmt.Sprintf("[a-z]{1,%d}", 8+i%5)}
		err = l.post("/generate", body)
	case 4:
		kind = "with labels"
		err = l.post("/v1/completions", map[string]any{"model": "m", "prompt": "the quick brown fox", "max_tokens": 8 + rng.IntN(16)})
	case 5:
		if l.sessions {
			turn := map[string]any{"input_ids": harness.Tokens(rng, 12), "sampling_params": map[string]any{"max_new_tokens": 12, "ignore_eos": true}}
			kind, err = "session", client.Talk(l.t.Context(), l.url, turn, turn)
			break
		}
		err = l.post("/generate", l.body(i, rng))
	case 6:
		kind = "long"
		body := l.body(i, rng)
		body["input_ids"] = harness.Tokens(rng, 300+rng.IntN(300))
		body["sampling_params"] = map[string]any{"max_new_tokens": 100 + rng.IntN(60), "ignore_eos": true}
		err = l.post("/generate", body)
	default:
		err = l.post("/generate", l.body(i, rng))
	}
	if err != nil {
		l.t.Errorf("%s: %v", kind, err)
	}
	l.mu.Lock()
	l.did[kind]++
	l.mu.Unlock()
}

// body makes a request, half of whose prompt others share.
func (l *load) body(i int, rng *rand.Rand) map[string]any {
	prompt := harness.Tokens(rng, 20+rng.IntN(60))
	for at := range 16 {
		prompt[at] = int32(20 + at)
	}
	return map[string]any{
		"input_ids": prompt, "sampling_params": map[string]any{"max_new_tokens": 10 + rng.IntN(50), "ignore_eos": true},
		"priority": rng.IntN(4), "routing_key": fmt.Sprint("user-", i%3),
	}
}

// post waits for a whole answer.
func (l *load) post(path string, body map[string]any) error {
	return client.Post(l.t.Context(), l.url+path, body, nil)
}

// stream reads an answer piece by piece and goes away after some of them; 0: never.
func (l *load) stream(body map[string]any, leaveAfter int) error {
	return client.Stream(l.t.Context(), l.url+"/generate", body, harness.LeaveAfter(leaveAfter))
}
