package trial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Completion is a request to /v1/completions. Temperature is always sent, since 0 means greedy.
type Completion struct {
	Model       string  `json:"model"`
	Prompt      string  `json:"prompt"`
	MaxTokens   int     `json:"max_tokens"`
	Temperature float64 `json:"temperature"`
	IgnoreEOS   bool    `json:"ignore_eos,omitempty"`
	Stream      bool    `json:"stream,omitempty"`
}

type completionAnswer struct {
	Choices []struct {
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// Complete sends a completion to base (http://host:port) and gives the whole text. With c.Stream each piece is passed to
// piece, when it is not nil, as it arrives; a stream that ends without [DONE] is an error.
func Complete(ctx context.Context, base string, c Completion, piece func(string)) (string, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return "", fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	if !c.Stream {
		var answer completionAnswer
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return "", fmt.Errorf("decode the answer: %w", err)
		}
		if len(answer.Choices) != 1 {
			return "", fmt.Errorf("the answer has %d choices, want 1", len(answer.Choices))
		}
		return answer.Choices[0].Text, nil
	}
	return readStream(resp.Body, piece)
}

func readStream(r io.Reader, piece func(string)) (string, error) {
	var text strings.Builder
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		data, ok := strings.CutPrefix(scanner.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return text.String(), nil
		}
		var answer completionAnswer
		if err := json.Unmarshal([]byte(data), &answer); err != nil {
			return text.String(), fmt.Errorf("decode a chunk %.120q: %w", data, err)
		}
		if len(answer.Error) > 0 {
			return text.String(), fmt.Errorf("error in the stream: %.300s", answer.Error)
		}
		for _, choice := range answer.Choices {
			text.WriteString(choice.Text)
			if piece != nil && choice.Text != "" {
				piece(choice.Text)
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return text.String(), fmt.Errorf("read the stream: %w", err)
	}
	return text.String(), fmt.Errorf("the stream ended without [DONE]: %w", io.ErrUnexpectedEOF)
}
