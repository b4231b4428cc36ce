package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/sluice-dev/sluice/hack/trial"
)

const prompt = "The quick brown fox"

// local runs prefill, decode and router as processes and sends one request through them.
func (s *story) local(ctx context.Context) (err error) {
	s.title("Build the engine and the router, make a small model, start prefill, decode and router")
	l, err := trial.StartLocal(ctx, s.root, s.out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Stop()) }()

	s.title("A completion, streamed: router -> prefill -> KV pages -> decode -> router")
	if err := s.complete(ctx, l.Router); err != nil {
		return err
	}

	s.title("What the two engines say about it")
	var expositions []trial.Exposition
	for _, mode := range []string{"prefill", "decode"} {
		text, err := get(ctx, l.Engines[mode]+"/metrics")
		if err != nil {
			return err
		}
		e, err := trial.ParseExposition(mode, text)
		if err != nil {
			return err
		}
		expositions = append(expositions, e)
	}
	if err := trial.WriteLoadTable(s.out, expositions); err != nil {
		return err
	}
	s.title("Done. As root, `make demo` shows it on a real Kubernetes, with scaling")
	return nil
}

func (s *story) complete(ctx context.Context, base string) error {
	c := trial.Completion{Model: "tiny", Prompt: prompt, MaxTokens: 48, Stream: true}
	s.say("POST %s/v1/completions  prompt=%q  max_tokens=%d  stream=true", base, c.Prompt, c.MaxTokens)
	s.say("(the weights are random, so is the text; the path of the request is real)")
	fmt.Fprintf(s.out, "    %s", c.Prompt)
	_, err := trial.Complete(ctx, base, c, func(piece string) { fmt.Fprintf(s.out, "|%s", printable(piece)) })
	fmt.Fprintln(s.out)
	return err
}

// printable keeps a piece of random text from moving the cursor.
func printable(piece string) string {
	runes := []rune(piece)
	for i, r := range runes {
		if r < ' ' || r == 0x7f {
			runes[i] = '·'
		}
	}
	return string(runes)
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d: %.200s", url, resp.StatusCode, body)
	}
	return body, err
}
