package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/test/harness"
)

// client is one user.
type client struct {
	*world
	rng *rand.Rand
}

// act does one of the things that users do.
func (c *client) act() {
	switch n := c.rng.IntN(20); {
	case n < 7:
		c.whole()
	case n < 12:
		c.stream(-1)
	case n < 16:
		c.stream(c.rng.IntN(6)) // goes away after so many pieces
	case n < 18:
		c.abort()
	default:
		if c.sessions {
			c.session()
			return
		}
		c.whole()
	}
}

// body makes a request: mostly short, sometimes of the size that fills half the pool.
func (c *client) body() map[string]any {
	n := 1 + c.rng.IntN(60)
	if c.rng.IntN(6) == 0 {
		n = 200 + c.rng.IntN(500)
	}
	prompt := harness.Tokens(c.rng, n)
	if c.rng.IntN(2) == 0 { // a beginning that others have too
		for i := range min(n, 40) {
			prompt[i] = int32(20 + i)
		}
	}
	params := map[string]any{"max_new_tokens": 1 + c.rng.IntN(120), "ignore_eos": true, "temperature": c.rng.Float64()}
	switch c.rng.IntN(12) {
	case 0:
		params["n"] = 2
	case 1:
		params["regex"], params["ignore_eos"] = "[a-z]{1,20}", false
	case 2:
		params["frequency_penalty"] = 0.5
	}
	body := map[string]any{"input_ids": prompt, "sampling_params": params, "rid": fmt.Sprintf("soak-%d", c.rids.Add(1))}
	if c.rng.IntN(3) > 0 {
		body["priority"] = c.rng.IntN(40)
	}
	if c.rng.IntN(10) == 0 {
		body["return_logprob"], body["logprob_start_len"] = true, 0
	}
	return body
}

// expect counts how a request ended and fails on an end that nobody caused.
func (c *client) expect(err error, finished string) {
	switch status(err) {
	case http.StatusOK:
		c.count(finished)
	case http.StatusServiceUnavailable:
		switch text := err.Error(); {
		case strings.Contains(text, "queue is full"), strings.Contains(text, "priority"):
			c.count("refused")
		case strings.Contains(text, "aborted"):
			c.count("aborted")
		default:
			c.t.Errorf("503 for another reason: %v", err)
		}
	default:
		c.t.Errorf("a request failed: %v", err)
	}
}

// whole waits for the whole answer.
func (c *client) whole() {
	body := c.body()
	var answers json.RawMessage
	err := harness.Post(c.t.Context(), c.engine.URL+"/generate", body, &answers)
	if err == nil {
		c.check(body, answers)
	}
	c.expect(err, "finished")
}

// check looks at a whole answer, or two.
func (c *client) check(body map[string]any, raw json.RawMessage) {
	var list []harness.Answer
	if json.Unmarshal(raw, &list) != nil {
		list = make([]harness.Answer, 1)
		if err := json.Unmarshal(raw, &list[0]); err != nil {
			c.t.Errorf("%v in %s", err, raw)
			return
		}
	}
	params := body["sampling_params"].(map[string]any)
	for _, a := range list {
		if a.MetaInfo.NumRetractions > 0 {
			c.count("retracted")
		}
		most := params["max_new_tokens"].(int)
		if a.MetaInfo.FinishReason.Type == "abort" || len(a.OutputIDs) > most || len(a.OutputIDs) != a.MetaInfo.CompletionTokens {
			c.t.Errorf("%d tokens of %d, finish %+v: %s", len(a.OutputIDs), most, a.MetaInfo.FinishReason, raw)
		}
	}
}

// stream reads an answer piece by piece and goes away after some of them; -1: never.
func (c *client) stream(leaveAfter int) {
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	if leaveAfter == 0 {
		time.AfterFunc(time.Duration(c.rng.IntN(20))*time.Millisecond, cancel)
	}
	pieces, end := 0, ""
	err := harness.Client{}.Stream(ctx, c.engine.URL+"/generate", c.body(), func(event string) (stay bool) {
		pieces++
		switch {
		case event == "[DONE]":
			end = "streamed"
		case strings.HasPrefix(event, `{"error"`) && strings.Contains(event, "aborted"):
			end = "aborted"
		case strings.HasPrefix(event, `{"error"`) && strings.Contains(event, "queue is full"): // the second of two sequences, when the first had begun
			end = "refused"
		case strings.HasPrefix(event, `{"error"`):
			end = "failed"
			c.t.Errorf("a stream ended with %s", event)
		case leaveAfter > 0 && pieces >= leaveAfter:
			end = "cancelled"
		}
		return end == ""
	})
	var refused *harness.StatusError
	switch {
	case end != "":
		c.count(end)
	case errors.As(err, &refused):
		c.expect(err, "")
	case ctx.Err() != nil:
		c.count("cancelled")
	default:
		c.t.Errorf("a stream ended after %d pieces without its end: %v", pieces, err)
	}
}

// abort ends an own request from another connection.
func (c *client) abort() {
	body := c.body()
	ended := make(chan error, 1)
	go func() { ended <- harness.Post(c.t.Context(), c.engine.URL+"/generate", body, nil) }()
	select {
	case err := <-ended:
		c.expect(err, "finished")
		return
	case <-time.After(time.Duration(c.rng.IntN(50)) * time.Millisecond):
	}
	if err := harness.Post(c.t.Context(), c.engine.URL+"/abort_request", map[string]any{"rid": body["rid"]}, nil); err != nil {
		c.t.Errorf("abort: %v", err)
	}
	c.expect(<-ended, "finished")
}

// session holds a conversation of a few turns.
func (c *client) session() {
	id, err := harness.Client{}.OpenSession(c.t.Context(), c.engine.URL)
	if err != nil {
		c.t.Errorf("open a session: %v", err)
		return
	}
	for range 1 + c.rng.IntN(4) {
		prompt := harness.Tokens(c.rng, 1+c.rng.IntN(40))
		err := harness.Post(c.t.Context(), c.engine.URL+"/generate", map[string]any{
			"input_ids": prompt, "sampling_params": map[string]any{"max_new_tokens": 1 + c.rng.IntN(30), "temperature": 0, "ignore_eos": true},
			"session_params": map[string]any{"id": id}, "rid": fmt.Sprintf("soak-%d", c.rids.Add(1)),
		}, nil)
		c.expect(err, "session turn")
		if err != nil {
			break
		}
	}
	if err := (harness.Client{}).CloseSession(c.t.Context(), c.engine.URL, id); err != nil {
		c.t.Errorf("close a session: %v", err)
	}
}
