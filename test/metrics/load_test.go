package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

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
		kind, err = "streamed", l.stream(l.body(i, rng), -1)
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
			kind, err = "session", l.session(rng)
			break
		}
		err = l.post("/generate", l.body(i, rng))
	case 6:
		kind = "long"
		body := l.body(i, rng)
		body["input_ids"] = tokens(rng, 300+rng.IntN(300))
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
	prompt := tokens(rng, 20+rng.IntN(60))
	for at := range 16 {
		prompt[at] = int32(20 + at)
	}
	return map[string]any{
		"input_ids": prompt, "sampling_params": map[string]any{"max_new_tokens": 10 + rng.IntN(50), "ignore_eos": true},
		"priority": rng.IntN(4), "routing_key": fmt.Sprint("user-", i%3),
	}
}

func tokens(rng *rand.Rand, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(10 + rng.IntN(480))
	}
	return list
}

// post waits for a whole answer. Every request has a custom label.
func (l *load) post(path string, body map[string]any) error {
	answer, err := l.send(l.t.Context(), path, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = &harness.StatusError{Status: answer.StatusCode, Body: string(text)}
	}
	return err
}

func (l *load) send(ctx context.Context, path string, body map[string]any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("x-custom-labels", `{"team":"red"}`)
	return http.DefaultClient.Do(req)
}

// stream reads an answer piece by piece and goes away after some of them; -1: never.
func (l *load) stream(body map[string]any, leaveAfter int) error {
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	body["stream"] = true
	answer, err := l.send(ctx, "/generate", body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		return &harness.StatusError{Status: answer.StatusCode, Body: string(text)}
	}
	buffer := make([]byte, 4096)
	for pieces := 0; pieces != leaveAfter; pieces++ {
		if _, err := answer.Body.Read(buffer); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// session holds a conversation of a few turns.
func (l *load) session(rng *rand.Rand) error {
	var id string
	if err := harness.Post(l.t.Context(), l.url+"/open_session", map[string]any{"capacity_of_str_len": 1000, "streaming": true}, &id); err != nil {
		return err
	}
	for range 2 {
		if err := l.post("/generate", map[string]any{
			"input_ids": tokens(rng, 12), "sampling_params": map[string]any{"max_new_tokens": 12, "ignore_eos": true}, "session_params": map[string]any{"id": id},
		}); err != nil {
			return err
		}
	}
	return harness.Post(l.t.Context(), l.url+"/close_session", map[string]any{"session_id": id}, nil)
}
