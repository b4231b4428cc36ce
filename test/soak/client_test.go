package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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
	prompt := make([]int32, n)
	for i := range prompt {
		prompt[i] = int32(10 + c.rng.IntN(480))
	}
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
	body := c.body()
	body["stream"] = true
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		c.t.Error(err)
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.engine.URL+"/generate", bytes.NewReader(data))
	if err != nil {
		c.t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if leaveAfter == 0 {
		time.AfterFunc(time.Duration(c.rng.IntN(20))*time.Millisecond, cancel)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			c.t.Errorf("a stream failed: %v", err)
			return
		}
		c.count("cancelled")
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		var text bytes.Buffer
		_, _ = text.ReadFrom(answer.Body)
		c.expect(&harness.StatusError{Status: answer.StatusCode, Body: text.String()}, "")
		return
	}
	pieces, done := 0, false
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() && !done {
		event, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		pieces++
		switch {
		case event == "[DONE]":
			done = true
		case strings.HasPrefix(event, `{"error"`):
			switch {
			case strings.Contains(event, "aborted"):
				c.count("aborted")
			case strings.Contains(event, "queue is full"): // the second of two sequences, when the first had begun
				c.count("refused")
			default:
				c.t.Errorf("a stream ended with %s", event)
			}
			return
		}
		if leaveAfter > 0 && pieces >= leaveAfter {
			c.count("cancelled")
			return
		}
	}
	switch {
	case done:
		c.count("streamed")
	case ctx.Err() != nil:
		c.count("cancelled")
	default:
		c.t.Errorf("a stream ended after %d pieces without its end: %v", pieces, lines.Err())
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
	var id string
	if err := harness.Post(c.t.Context(), c.engine.URL+"/open_session", map[string]any{"capacity_of_str_len": 1000, "streaming": true}, &id); err != nil {
		c.t.Errorf("open a session: %v", err)
		return
	}
	for range 1 + c.rng.IntN(4) {
		prompt := make([]int32, 1+c.rng.IntN(40))
		for i := range prompt {
			prompt[i] = int32(10 + c.rng.IntN(480))
		}
		err := harness.Post(c.t.Context(), c.engine.URL+"/generate", map[string]any{
			"input_ids": prompt, "sampling_params": map[string]any{"max_new_tokens": 1 + c.rng.IntN(30), "temperature": 0, "ignore_eos": true},
			"session_params": map[string]any{"id": id}, "rid": fmt.Sprintf("soak-%d", c.rids.Add(1)),
		}, nil)
		c.expect(err, "session turn")
		if err != nil {
			break
		}
	}
	if err := harness.Post(c.t.Context(), c.engine.URL+"/close_session", map[string]any{"session_id": id}, nil); err != nil {
		c.t.Errorf("close a session: %v", err)
	}
}
