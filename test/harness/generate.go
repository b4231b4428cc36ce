package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Answer is what /generate says of one sequence.
type Answer struct {
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	MetaInfo  struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		CachedTokens     int `json:"cached_tokens"`
		NumRetractions   int `json:"num_retractions"`
		FinishReason     struct {
			Type    string `json:"type"`
			Matched any    `json:"matched"`
		} `json:"finish_reason"`
		// OutputTopLogprobs has, for each position, [logprob, token id, text or null] of the likeliest tokens.
		OutputTopLogprobs [][][]any `json:"output_top_logprobs"`
	} `json:"meta_info"`
}

// StatusError is an answer other than 200.
type StatusError struct {
	Status int
	Body   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.Status, e.Body) }

// Post sends a JSON body and reads the answer into to, which may be nil. An answer other than 200 is a *StatusError.
func Post(ctx context.Context, url string, body, to any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("POST %s: read the answer: %w", url, err)
	}
	if answer.StatusCode != http.StatusOK {
		return &StatusError{answer.StatusCode, string(text)}
	}
	if to == nil {
		return nil
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("POST %s: %w in %s", url, err, text)
	}
	return nil
}
