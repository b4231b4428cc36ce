package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Model asks the server for the name of its first model.
func (c *Client) Model(ctx context.Context) (string, error) {
	response, err := c.send(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s/v1/models: status %d: %w", c.URL, response.StatusCode, statusError(response))
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&list); err != nil {
		return "", fmt.Errorf("GET %s/v1/models: %w", c.URL, err)
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", fmt.Errorf("GET %s/v1/models names no model", c.URL)
	}
	return list.Data[0].ID, nil
}

// FlushCache empties the server's prefix cache, by SGLang's route.
func (c *Client) FlushCache(ctx context.Context) error {
	response, err := c.post(ctx, "/flush_cache", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s/flush_cache: status %d: %w", c.URL, response.StatusCode, statusError(response))
	}
	return nil
}

// Calibrate learns how many tokens the server's tokenizer makes of a word and of an empty prompt: it sends a short and a
// longer prompt and compares their usage. It gives the client's Writer with both filled in.
func (c *Client) Calibrate(ctx context.Context) (Writer, error) {
	var refused *failure
	for _, count := range []int{len(vocabulary) / 4, 64, 16} { // a small context takes the shorter ones only
		few, err := c.promptTokens(ctx, count/8)
		if err != nil {
			return c.Writer, err
		}
		many, err := c.promptTokens(ctx, count)
		if errors.As(err, &refused) && strings.HasPrefix(string(refused.kind), "http 4") {
			continue
		}
		if err != nil {
			return c.Writer, err
		}
		w := c.Writer
		w.TokensPerWord = float64(many-few) / float64(count-count/8)
		w.Overhead = max(0, float64(few)-w.TokensPerWord*float64(count/8))
		if !(w.TokensPerWord > 0) {
			return c.Writer, fmt.Errorf("a prompt of %d words has %d tokens and one of %d has %d", count/8, few, count, many)
		}
		return w, nil
	}
	return c.Writer, refused
}

// promptTokens asks for the tokens of a prompt of so many different words.
func (c *Client) promptTokens(ctx context.Context, count int) (int, error) {
	list := make([]string, count)
	for i := range list {
		list[i] = vocabulary[i*len(vocabulary)/count]
	}
	probe := *c
	probe.Target.Stream = false
	body, err := probe.Target.body(Request{OutputTokens: 1}, Prompt{Text: strings.Join(list, " ")})
	if err != nil {
		return 0, err
	}
	var record Record
	if err := probe.exchange(ctx, body, &follower{record: &record, epoch: time.Now(), api: probe.Target.API}); err != nil {
		return 0, err
	}
	if !record.Counted {
		return 0, errors.New("the server does not say how many tokens a prompt has")
	}
	return record.InputTokens, nil
}

// warmSeed keeps the prompts of the warm-up apart from those that are measured.
const warmSeed = 0x5EED

// WarmUp sends so many requests of the load's kind, some at a time, and forgets what they took. It fails when none of them
// was answered.
func WarmUp(ctx context.Context, c *Client, load Load, count int) error {
	load.Seed ^= warmSeed
	load.Rate, load.Duration, load.Requests, load.CancelShare = 0, 0, count, 0
	load.Concurrency = max(1, min(count, load.Concurrency, 16))
	warm := *c
	warm.Seed = load.Seed
	run := Run{Load: load, Clients: []*Client{&warm}}
	result := run.Do(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, record := range result.Records {
		if record.Outcome == Completed {
			return nil
		}
	}
	last := result.Records[len(result.Records)-1]
	return fmt.Errorf("warm-up of %s: none of %d requests was answered: %s: %s", c.URL, count, last.Failure, last.Message)
}

// Each runs a function for every client at once and joins their errors.
func Each(clients []*Client, do func(*Client) error) error {
	failures := make([]error, len(clients))
	var group sync.WaitGroup
	for i, c := range clients {
		group.Go(func() { failures[i] = do(c) })
	}
	group.Wait()
	return errors.Join(failures...)
}
