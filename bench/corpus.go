package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// Prompt is one line of a file of prompts: exactly one of Text, Messages and IDs is set.
type Prompt struct {
	Text         string
	Messages     json.RawMessage // a chat's messages, sent as they are
	IDs          []int32
	OutputTokens int // 0: as the output distribution says
}

// maxLineBytes bounds one line of a file of prompts.
const maxLineBytes = 64 << 20

// ReadPrompts reads JSON lines: {"prompt": "…"}, {"messages": […]} or {"input_ids": […]}, each with an optional
// "output_tokens" (or "max_tokens"). Other fields are ignored, empty lines too.
func ReadPrompts(r io.Reader) ([]Prompt, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<16), maxLineBytes)
	var prompts []Prompt
	number := 0
	for lines.Scan() {
		number++
		if len(lines.Bytes()) == 0 {
			continue
		}
		var line struct {
			Prompt       *string         `json:"prompt"`
			Messages     json.RawMessage `json:"messages"`
			InputIDs     []int32         `json:"input_ids"`
			OutputTokens int             `json:"output_tokens"`
			MaxTokens    int             `json:"max_tokens"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		p := Prompt{Messages: line.Messages, IDs: line.InputIDs, OutputTokens: line.OutputTokens}
		if p.OutputTokens == 0 {
			p.OutputTokens = line.MaxTokens
		}
		given := 0
		if line.Prompt != nil {
			p.Text = *line.Prompt
			given++
		}
		if len(p.Messages) > 0 {
			given++
		}
		if len(p.IDs) > 0 {
			given++
		}
		switch {
		case given != 1:
			return nil, fmt.Errorf("line %d: give one of prompt, messages and input_ids", number)
		case p.OutputTokens < 0:
			return nil, fmt.Errorf("line %d: output_tokens is %d: give 1 or more", number, p.OutputTokens)
		}
		prompts = append(prompts, p)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", number+1, err)
	}
	if len(prompts) == 0 {
		return nil, fmt.Errorf("no prompts: give one JSON object a line, such as {\"prompt\": \"Hello\"}")
	}
	return prompts, nil
}

// Shuffle puts prompts into an order that the seed decides.
func Shuffle(prompts []Prompt, seed uint64) {
	random(seed, streamShuffle, 0).Shuffle(len(prompts), func(i, k int) {
		prompts[i], prompts[k] = prompts[k], prompts[i]
	})
}
